"""Compute spectral envelopes of speech with CheapTrick, the method of the vocoder WORLD.

It is described in Morise 2015, doi 10.1016/j.specom.2014.09.003. A window is three periods long. The power spectrum of
the window is smoothed over two thirds of the pitch. Then its cepstrum is multiplied by two lifters. The first smooths
the spectrum over the pitch, so that no harmonics are left. The second restores what both smoothings removed.
"""

import numpy as np

from ane.models.vocoders.source_filter import BINS, FFT, HOP
from training.pitch import LOWEST, RATE

# CheapTrick's q1. Its usual value is -0.15. This one sharpens more, because networks predict envelopes too smoothly
RECOVERY = -0.3
UNVOICED = 500.0  # Hz. The window of an unvoiced frame is as long as for this pitch
HALF = int(1.5 * RATE / LOWEST) + 1  # samples of the longest window before and after its centre
QUIETEST = 1e-12  # power that is added before the logarithm
WIDTH = RATE / FFT  # width of a bin in Hz


def envelopes_of(audio: np.ndarray, f0: np.ndarray) -> np.ndarray:
    """Compute the envelopes of a clip (S,) at 24 kHz: log magnitudes, (L frames, 513 bins).

    ``f0`` is the pitch of the clip in Hz every 256 samples, (L,). It is 0 in unvoiced frames.
    """
    pitch = np.where(f0 > 0, f0, UNVOICED)[:, None]
    starts = np.arange(len(f0)) * HOP
    padded = np.pad(audio.astype(np.float64), (HALF, HALF + max(0, len(f0) * HOP - len(audio))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * HALF + 1)[starts]
    turns = np.arange(-HALF, HALF + 1) * pitch / RATE / 1.5
    shape = np.where(np.abs(turns) <= 1, 0.5 + 0.5 * np.cos(np.pi * turns), 0)
    shape /= np.sqrt((shape**2).sum(axis=1, keepdims=True))
    windows = windows * shape
    windows -= shape * (windows.sum(axis=1, keepdims=True) / shape.sum(axis=1, keepdims=True))
    power = (np.abs(np.fft.rfft(windows, 2 * FFT)) ** 2)[:, ::2]
    power = smoothed(with_mirror(power, pitch), 2 * pitch / 3) + QUIETEST
    lags = np.minimum(np.arange(FFT), FFT - np.arange(FFT)) / RATE * pitch  # in periods
    lifter = np.sinc(lags) * (1 - 2 * RECOVERY + 2 * RECOVERY * np.cos(2 * np.pi * lags))
    return 0.5 * np.fft.rfft(np.fft.irfft(np.log(power), axis=1) * lifter, axis=1).real


def with_mirror(power: np.ndarray, pitch: np.ndarray) -> np.ndarray:
    """Add power to the bins below the pitch (L, 1): each bin of ``power`` (L, 513) gets the power of its mirror bin.

    The mirror of a bin is as far above 0 Hz as the bin is below the pitch.
    """
    bins = np.arange(BINS)
    mirror = pitch / WIDTH - bins
    return np.where(mirror > 0, power + between(power, np.clip(mirror, 0, BINS - 1.001)), power)


def smoothed(power: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Average power (L, 513) over ``width`` (L, 1) Hz around each bin. The spectrum is mirrored at both ends."""
    whole = np.concatenate((power[:, :0:-1], power, power[:, -2::-1]), axis=1)
    sums = np.pad(np.cumsum(whole, axis=1), ((0, 0), (1, 0)))
    centres, half = np.arange(BINS) + BINS - 0.5, width / WIDTH / 2
    return (between(sums, centres + half) - between(sums, centres - half)) / (2 * half)


def between(rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Interpolate each row of ``rows`` (L, n) linearly at the positions (L, m) → (L, m)."""
    before = positions.astype(np.int64)
    share = positions - before
    at = np.take_along_axis(rows, before, axis=1)
    return at + share * (np.take_along_axis(rows, before + 1, axis=1) - at)
