"""Compute the envelopes of speech by CheapTrick, as WORLD does.

See Morise 2015, doi 10.1016/j.specom.2014.09.003. A window has three periods. Its power is smoothed over two thirds of
the pitch, and its cepstrum is multiplied by two lifters: one smooths over the pitch, so that no harmonic is left, and
the other restores what all smoothing took away.
"""

import numpy as np

from ane.models.vocoders.source_filter import BINS, FFT, HOP
from training.pitch import LOWEST, RATE

RECOVERY = -0.3  # CheapTrick's q1, sharper than its -0.15, since predicted envelopes are too smooth
UNVOICED = 500.0  # Hz, the pitch assumed for windows of unvoiced frames
HALF = int(1.5 * RATE / LOWEST) + 1  # samples of the longest window on either side
QUIETEST = 1e-12  # power
WIDTH = RATE / FFT  # Hz per bin


def envelopes_of(audio: np.ndarray, f0: np.ndarray) -> np.ndarray:
    """Return log magnitudes (L, 513) of a clip (S,) at 24 kHz.

    ``f0`` is its pitch (L,) in Hz every 256 samples, with 0 for unvoiced frames.
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
    """Return power (L, 513) with its mirror added below the pitch (L, 1).

    The mirror is the power that is as far above 0 Hz as a bin is below the pitch.
    """
    bins = np.arange(BINS)
    mirror = pitch / WIDTH - bins
    return np.where(mirror > 0, power + between(power, np.clip(mirror, 0, BINS - 1.001)), power)


def smoothed(power: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Return means of power (L, 513) over ``width`` (L, 1) Hz around each bin. The spectrum is mirrored at its ends."""
    whole = np.concatenate((power[:, :0:-1], power, power[:, -2::-1]), axis=1)
    sums = np.pad(np.cumsum(whole, axis=1), ((0, 0), (1, 0)))
    centres, half = np.arange(BINS) + BINS - 0.5, width / WIDTH / 2
    return (between(sums, centres + half) - between(sums, centres - half)) / (2 * half)


def between(rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Interpolate linearly in each row (L, n) at positions (L, m)."""
    before = positions.astype(np.int64)
    share = positions - before
    at = np.take_along_axis(rows, before, axis=1)
    return at + share * (np.take_along_axis(rows, before + 1, axis=1) - at)
