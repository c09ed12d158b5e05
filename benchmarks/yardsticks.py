"""Judge speech with networks: by its word errors, its naturalness, its noise, and its speaker.

The weights of the networks are in packages that ``benchmarks.data_packages`` fetches. Only DistillMOS also uses code
from its package.
"""

import importlib.util
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from types import ModuleType

import numpy as np
import torch
from torch import nn

from ane.audio import resample
from ane.audio.mel import mel_filters
from ane.backends import load_backend
from ane.backends.onnx.providers import onnxruntime_module
from ane.models.whisper.transcription import Transcriber, TranscriptionOptions
from benchmarks.data_packages import package_folder, whisper_folder
from benchmarks.imports import imported

RATE = 16000  # sample rate in Hz that all these networks take


class WhisperRecogniser:
    """A recogniser of English: the multilingual Whisper base, which decodes greedily and each sentence separately."""

    def __init__(self, size: str = "base"):
        model = imported(whisper_folder(size))
        self.transcriber = Transcriber(model, load_backend("torch:cpu", model, "fp32"))
        self.options = TranscriptionOptions(language="en", condition_on_previous_text=False)

    def transcribe(self, audio: np.ndarray, rate: int) -> str:
        """Transcribe audio (S,) float32."""
        return self.transcriber.transcribe(audio, rate, self.options).text.strip()


class DistillMos:
    """A judge of naturalness, from 1 to 5: DistillMOS (Stahl and Gamper 2025, arXiv 2502.05356).

    It was distilled from models that use wav2vec 2.0 XLS-R.
    """

    def __init__(self) -> None:
        folders = [str(package_folder(name)) for name in ("distillmos", "xls-r-sqa")]
        if "torchaudio" not in sys.modules and importlib.util.find_spec("torchaudio") is None:
            # distillmos imports torchaudio, but uses it only to read files
            sys.modules["torchaudio"] = ModuleType("torchaudio")
        sys.path[:0] = folders
        try:
            from distillmos import ConvTransformerSQAModel
        finally:
            sys.path[:] = [folder for folder in sys.path if folder not in folders]
        with redirect_stdout(sys.stderr):  # the constructor prints the version of distillmos
            self.network = ConvTransformerSQAModel().eval()

    @torch.no_grad()
    def score(self, audio: np.ndarray, rate: int) -> float:
        return float(self.network(torch.from_numpy(resample(audio, rate, RATE))[None]))


class Dnsmos:
    """A judge of overall quality (OVRL), from 1 to 5: DNSMOS P.835 (Reddy et al. 2022, arXiv 2110.01763).

    DNSMOS was made to judge noise. This class computes the same as the authors' script (microsoft/DNS-Challenge,
    DNSMOS/dnsmos_local.py).
    """

    SECONDS = 9.01  # length of the sound that the network takes. Shorter sound is repeated
    OVERALL = -0.06766283, 1.11546468, 0.04602535  # polynomial from the network's output to the scale 1 to 5

    def __init__(self) -> None:
        onnxruntime = onnxruntime_module()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = package_folder("speechmos") / "speechmos" / "dnsmos_models" / "sig_bak_ovr.onnx"
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def score(self, audio: np.ndarray, rate: int) -> float:
        """Judge audio (S,) float32. The score is the mean over windows that begin one second apart."""
        audio, size = resample(audio, rate, RATE), int(self.SECONDS * RATE)
        while len(audio) < size:
            audio = np.tile(audio, 2)
        starts = range(0, (int(len(audio) / RATE - self.SECONDS) + 1) * RATE, RATE)
        windows = [audio[start : start + size] for start in starts]
        scores = [
            self.session.run(None, {"input_1": window[None]})[0][0][2] for window in windows if len(window) == size
        ]
        return float(np.mean(np.polyval(self.OVERALL, scores)))


class SpeakerEncoder(nn.Module):
    """An encoder of speech whose embeddings say how alike two voices sound, by the cosine between them.

    It is GE2E (Wan et al. 2018, arXiv 1710.10467) with the weights of Resemblyzer.
    """

    WINDOW, HOP = 400, 160  # samples of a window, and samples from one window to the next (resemblyzer hparams.py)
    BANDS, FRAMES, WIDTH = 40, 160, 256  # mel bands, frames that the network takes at once, width of an embedding
    STEP = 77  # frames from one stretch that the network takes to the next stretch, 1.3 stretches per second

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(self.BANDS, self.WIDTH, 3, batch_first=True)
        self.linear = nn.Linear(self.WIDTH, self.WIDTH)
        path = package_folder("Resemblyzer") / "resemblyzer" / "pretrained.pt"
        weights = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
        self.load_state_dict({key: tensor for key, tensor in weights.items() if not key.startswith("similarity_")})
        self.filters = mel_filters(RATE, self.BANDS, RATE / 2, "slaney", self.WINDOW)

    @torch.no_grad()
    def embedding(self, audio: np.ndarray, rate: int) -> np.ndarray:
        """Compute the embedding of audio (S,) float32, (256,) float32 with the norm 1.

        It is the mean over stretches of 1.6 s, as in Resemblyzer's embed_utterance.
        """
        audio = resample(audio, rate, RATE)
        parts = max(1, 1 + (len(audio) // self.HOP - self.FRAMES) // self.STEP)
        audio = np.pad(audio, (self.WINDOW // 2, self.WINDOW + self.FRAMES * self.HOP))
        frames = np.lib.stride_tricks.sliding_window_view(audio, self.WINDOW)[:: self.HOP]
        frames = frames[: (parts - 1) * self.STEP + self.FRAMES]
        power = np.abs(np.fft.rfft(frames * np.hanning(self.WINDOW + 1)[:-1])) ** 2
        mel = (power @ self.filters.T).astype(np.float32)
        mels = torch.from_numpy(np.stack([mel[part * self.STEP :][: self.FRAMES] for part in range(parts)]))
        embeddings = torch.relu(self.linear(self.lstm(mels)[1][0][-1]))
        mean = (embeddings / embeddings.norm(dim=1, keepdim=True)).mean(dim=0)
        return (mean / mean.norm()).numpy()


def mean_embedding(embeddings: Sequence[np.ndarray]) -> np.ndarray:
    """Average the embeddings of several sentences by one speaker, with the norm 1."""
    mean = np.mean(embeddings, axis=0)
    return mean / np.linalg.norm(mean)
