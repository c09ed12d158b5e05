"""The pitch of the teachers' speech, by autocorrelation: clean speech of one speaker needs no more."""

import numpy as np

from ane.audio.mel import CONDITIONING_RATE, DIFFUSION_RATE, HOP

RATE = DIFFUSION_RATE       # of the speech, 24 kHz
MIDDLE = 150.0              # Hz, from which octaves are counted
LOWEST, HIGHEST = 60.0, 420.0
WINDOW, FFT = 1000, 2048    # samples, two periods of a low voice
BAND = 1500.0               # Hz: the first harmonics are enough, and noise lies above them
CLEAR, NEARLY = 0.6, 0.88   # autocorrelation of voiced speech; share of the highest peak that an earlier one must have
QUIET = 0.002               # root mean square of what is unvoiced at any rate

HANN = np.hanning(WINDOW).astype(np.float32)
TAPER = np.fft.irfft(np.abs(np.fft.rfft(HANN, FFT)) ** 2)[:WINDOW]
TAPER = np.maximum(TAPER / TAPER[0], 0.05)          # autocorrelation of the window itself


def pitch_of(audio: np.ndarray, frames: int) -> np.ndarray:
    """Clip (S,) at 24 kHz → (frames,) float32 Hz at the frames of ``conditioning_mel``, 0 where it is unvoiced."""
    starts = np.rint(np.arange(frames) * HOP * RATE / CONDITIONING_RATE).astype(np.int64)
    padded = np.pad(audio, (WINDOW // 2, WINDOW + HOP))
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[np.minimum(starts, len(padded) - WINDOW)]
    windows = (windows - windows.mean(axis=1, keepdims=True)) * HANN
    power = np.abs(np.fft.rfft(windows, FFT)) ** 2
    power[:, int(BAND / RATE * FFT):] = 0
    correlation = np.fft.irfft(power)[:, :WINDOW] / TAPER
    shortest, longest = int(RATE / HIGHEST), int(RATE / LOWEST)
    scores = correlation[:, shortest:longest] / np.maximum(correlation[:, :1], 1e-9)
    best, middle = scores.max(axis=1), scores[:, 1:-1]
    peaks = (middle >= scores[:, :-2]) & (middle >= scores[:, 2:]) & (middle >= NEARLY * best[:, None])
    period = peaks.argmax(axis=1) + 1 + shortest        # the first of the high peaks
    voiced = peaks.any(axis=1) & (best > CLEAR) & (np.sqrt((windows ** 2).mean(axis=1)) > QUIET)
    return np.where(voiced, RATE / period, 0).astype(np.float32)
