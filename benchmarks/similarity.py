"""How alike two voices sound: the cosine of speaker embeddings (GE2E, Wan et al. 2018, arXiv 1710.10467).

The network's weights are in the wheel of ``resemblyzer`` (Apache-2.0, 2020). Only the weights are read, because the
package itself imports librosa and a C extension without wheels, which speech of clean sentences does not need:
``pip install --no-deps resemblyzer``.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ane.audio import resample
from ane.audio.mel import mel_filters

RATE, WINDOW, HOP = 16000, 400, 160         # Hz, samples, samples (resemblyzer hparams.py)
BANDS, FRAMES, WIDTH = 40, 160, 256         # of the mel; of a part that is heard at a time; of an embedding
STEP = 77                                   # frames from one part to the next: 1.3 parts a second


def similarity_problem() -> str | None:
    """Why voices cannot be compared; None: they can."""
    installed = importlib.util.find_spec("resemblyzer") is not None
    return None if installed else "speaker similarity needs the weights in a wheel: pip install --no-deps resemblyzer"


class SpeakerEncoder(nn.Module):
    """The network; ``similarity_problem`` must be None."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(BANDS, WIDTH, 3, batch_first=True)
        self.linear = nn.Linear(WIDTH, WIDTH)
        path = Path(importlib.util.find_spec("resemblyzer").origin).parent / "pretrained.pt"
        weights = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
        self.load_state_dict({key: tensor for key, tensor in weights.items() if not key.startswith("similarity_")})
        self.filters = mel_filters(RATE, BANDS, RATE / 2, "slaney", WINDOW)

    @torch.no_grad()
    def embedding(self, audio: np.ndarray, rate: int) -> np.ndarray:
        """Audio (S,) float32 → (256,) float32 of length 1: the mean over parts of 1.6 s (embed_utterance)."""
        audio = resample(audio, rate, RATE)
        parts = max(1, 1 + (len(audio) // HOP - FRAMES) // STEP)
        audio = np.pad(audio, (WINDOW // 2, WINDOW + FRAMES * HOP))
        frames = np.lib.stride_tricks.sliding_window_view(audio, WINDOW)[::HOP][:(parts - 1) * STEP + FRAMES]
        power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW + 1)[:-1])) ** 2
        mel = (power @ self.filters.T).astype(np.float32)
        mels = torch.from_numpy(np.stack([mel[part * STEP:part * STEP + FRAMES] for part in range(parts)]))
        found = torch.relu(self.linear(self.lstm(mels)[1][0][-1]))
        mean = (found / found.norm(dim=1, keepdim=True)).mean(dim=0)
        return (mean / mean.norm()).numpy()


def mean_embedding(embeddings: Sequence[np.ndarray]) -> np.ndarray:
    """That of a speaker, of several sentences."""
    mean = np.mean(embeddings, axis=0)
    return mean / np.linalg.norm(mean)
