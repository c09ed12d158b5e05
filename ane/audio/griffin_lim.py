"""Sound from a mel spectrogram without a trained vocoder: the mel basis inverted, the phases estimated.

Griffin and Lim 1984 (doi 10.1109/TASSP.1984.1164317), with the momentum of Perraudin et al. 2013
(doi 10.1109/WASPAA.2013.6701851).
"""

from functools import lru_cache

import numpy as np

from ane.audio.mel import HOP, WINDOW, mel_filters

ITERATIONS = 32
MOMENTUM = 0.99
EDGE = (WINDOW - HOP) // 2      # samples of the first frame before the sound, and of the last frame after it


def griffin_lim(mel: np.ndarray, rate: int, high: float, iterations: int = ITERATIONS) -> np.ndarray:
    """Sound whose magnitude mel is about exp(``mel``). The same mel always gives the same sound.

    Args:
        mel: (M, L) float32, natural logarithms of magnitudes in bands on Slaney's scale, from 0 Hz to ``high`` Hz.
        rate: sample rate in Hz.

    Returns:
        (256·L,) float32 within ±1.
    """
    if not mel.shape[1]:
        return np.zeros(0, np.float32)
    magnitudes = np.maximum(_inverse_filters(rate, mel.shape[0], high) @ np.exp(mel.astype(np.float64)), 0.0).T
    turns = np.random.default_rng(0).random(magnitudes.shape)
    phases, previous = np.exp(2j * np.pi * turns), np.zeros(magnitudes.shape, complex)
    for _ in range(iterations):
        spectrum = _spectrum(_overlap_add(magnitudes * phases), len(magnitudes))
        accelerated = spectrum + MOMENTUM * (spectrum - previous)
        phases, previous = accelerated / np.maximum(np.abs(accelerated), 1e-12), spectrum
    audio = _overlap_add(magnitudes * phases)[EDGE:EDGE + HOP * len(magnitudes)]
    return (audio / max(1.0, np.abs(audio).max())).astype(np.float32)


def _window() -> np.ndarray:
    return np.hanning(WINDOW + 1)[:-1]


def _spectrum(audio: np.ndarray, frames: int) -> np.ndarray:
    """(WINDOW + HOP·(L − 1),) → (L, 513) complex."""
    windows = np.lib.stride_tricks.sliding_window_view(audio, WINDOW)[::HOP][:frames]
    return np.fft.rfft(windows * _window())


def _overlap_add(spectrum: np.ndarray) -> np.ndarray:
    """The sound whose windowed frames are closest to ``spectrum`` (L, 513): (WINDOW + HOP·(L − 1),) float64."""
    window, overlap = _window(), WINDOW // HOP
    frames = np.fft.irfft(spectrum, WINDOW) * window
    parts = len(frames) + overlap - 1
    audio, weight = np.zeros((parts, HOP)), np.zeros((parts, HOP))
    for part in range(overlap):                     # each frame is four hops long
        audio[part:part + len(frames)] += frames[:, part * HOP:(part + 1) * HOP]
        weight[part:part + len(frames)] += window[part * HOP:(part + 1) * HOP] ** 2
    return (audio / np.maximum(weight, 1e-3)).reshape(-1)


@lru_cache(maxsize=4)
def _inverse_filters(rate: int, bands: int, high: float) -> np.ndarray:
    """(513, bands) float64; read-only, because callers share it."""
    inverse = np.linalg.pinv(mel_filters(rate, bands, high, "slaney"))
    inverse.flags.writeable = False
    return inverse
