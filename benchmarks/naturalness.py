"""DNSMOS P.835: how natural speech sounds, as a network trained on listeners' opinions hears it (Reddy et al. 2022).

arXiv 2110.01763. Its model is in the wheel of ``speechmos`` (MIT), which computes what the authors' script does
(microsoft/DNS-Challenge, DNSMOS/dnsmos_local.py). The model is called here, without ``speechmos``' own code, which
imports librosa for a score that is not needed.
"""

import importlib.util
from pathlib import Path

import numpy as np

from ane.audio import resample

RATE = 16000                # Hz of the network
SECONDS = 9.01              # of sound that it hears at a time; shorter sound is repeated
OVERALL = -0.06766283, 1.11546468, 0.04602535       # of the polynomial from its output to the scale 1 to 5


def dnsmos_problem() -> str | None:
    """Why DNSMOS cannot be computed; None: it can."""
    missing = [name for name in ("speechmos", "onnxruntime") if importlib.util.find_spec(name) is None]
    return f"DNSMOS needs {' and '.join(missing)}: pip install 'tortoise-ane[test]'" if missing else None


class Dnsmos:
    """The network; ``dnsmos_problem`` must be None."""

    def __init__(self) -> None:
        import onnxruntime

        folder = Path(importlib.util.find_spec("speechmos").origin).parent
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(folder / "dnsmos_models" / "sig_bak_ovr.onnx"), options,
                                                    providers=["CPUExecutionProvider"])

    def overall(self, audio: np.ndarray, rate: int) -> float:
        """The overall quality (OVRL), 1 to 5, of audio (S,) float32: the mean over windows a second apart."""
        audio, size = resample(audio, rate, RATE), int(SECONDS * RATE)
        while len(audio) < size:
            audio = np.tile(audio, 2)
        starts = range(0, (int(len(audio) / RATE - SECONDS) + 1) * RATE, RATE)
        windows = [audio[start:start + size] for start in starts]
        scores = [self.session.run(None, {"input_1": window[None]})[0][0][2] for window in windows
                  if len(window) == size]
        return float(np.mean(np.polyval(OVERALL, scores)))
