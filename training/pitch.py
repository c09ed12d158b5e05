"""Find the pitch of the teachers' speech, as the best path through the peaks of autocorrelations.

The method is from P. Boersma 1993, "Accurate short-term analysis of the fundamental frequency and the
harmonics-to-noise ratio of a sampled sound", IFA Proceedings 17. The costs have the names that Boersma gives them.
"""

import numpy as np

from ane.audio.mel import CONDITIONING_RATE, DIFFUSION_RATE, HOP

RATE = DIFFUSION_RATE  # sample rate of the speech, 24 kHz
MIDDLE = 150.0  # pitch in Hz that counts as 0 octaves
LOWEST, HIGHEST = 60.0, 420.0  # smallest and largest pitch in Hz
WINDOW, FFT = 1000, 2048  # samples of a window, which holds two periods of a low voice, and of its Fourier transform
BAND = 1500.0  # frequencies above this, in Hz, are ignored: the first harmonics are enough, and noise is above them
PEAKS = 6  # number of peaks per frame through which the path may go
VOICING, SILENCE = 0.4, 0.03  # thresholds of the autocorrelation, and of the level relative to the loudest sample
# costs of a pitch that is one octave lower, of a jump by one octave, and of switching voicing on or off
OCTAVE, JUMP, SWITCH = 0.01, 0.35, 0.14
COST_SECONDS = 0.01  # the costs of changes hold for frames that are this many seconds apart

HANN = np.hanning(WINDOW).astype(np.float32)
TAPER = np.fft.irfft(np.abs(np.fft.rfft(HANN, FFT)) ** 2)[:WINDOW]
TAPER = np.maximum(TAPER / TAPER[0], 0.05)  # autocorrelation of the window


def pitch_of(audio: np.ndarray, frames: int, hop: float = HOP * RATE / CONDITIONING_RATE) -> np.ndarray:
    """Find the pitch of a clip (S,) at 24 kHz every ``hop`` samples, (frames,) float32 in Hz. Unvoiced frames have 0.

    With the default ``hop``, the frames are those of ``conditioning_mel``.
    """
    if not frames:
        return np.zeros(0, np.float32)
    starts = np.rint(np.arange(frames) * hop).astype(np.int64)
    padded = np.pad(audio, (WINDOW // 2, WINDOW + HOP))
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[np.minimum(starts, len(padded) - WINDOW)]
    windows = windows - windows.mean(axis=1, keepdims=True)
    level = np.abs(windows[:, WINDOW // 4 : -WINDOW // 4]).max(axis=1) / max(np.abs(audio).max(), 1e-9)
    octaves, strengths = _peaks(windows * HANN)
    unvoiced = VOICING + np.maximum(0, 2 - level * (1 + VOICING) / SILENCE)
    path = _best_path(octaves, strengths, unvoiced, COST_SECONDS * RATE / hop)
    chosen = octaves[np.arange(frames), path - 1]
    return np.where(path > 0, MIDDLE * np.exp2(chosen), 0).astype(np.float32)


def _peaks(windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the strongest peaks in the autocorrelations of windows (L, WINDOW).

    Returns:
        The pitches of the peaks in octaves above ``MIDDLE``, and the strengths of the peaks, (L, PEAKS) each.
    """
    power = np.abs(np.fft.rfft(windows, FFT)) ** 2
    power[:, int(BAND / RATE * FFT) :] = 0
    correlation = np.fft.irfft(power)[:, :WINDOW] / TAPER
    shortest, longest = int(RATE / HIGHEST), int(RATE / LOWEST)
    scores = correlation[:, shortest:longest] / np.maximum(correlation[:, :1], 1e-9)
    middle, lags = scores[:, 1:-1], np.arange(shortest + 1, longest - 1)
    is_peak = (middle >= scores[:, :-2]) & (middle > scores[:, 2:])
    strengths = np.where(is_peak, middle - OCTAVE * np.log2(LOWEST * lags / RATE), -np.inf)
    best = np.argsort(-strengths, axis=1)[:, :PEAKS]
    before, at, after = (np.take_along_axis(scores, best + shift, axis=1) for shift in range(3))
    curvature = np.minimum(before - 2 * at + after, -1e-9)
    offset = np.clip(0.5 * (before - after) / curvature, -0.5, 0.5)  # vertex of the parabola through three points
    return np.log2(RATE / (lags[best] + offset) / MIDDLE), np.take_along_axis(strengths, best, axis=1)


def _best_path(octaves: np.ndarray, strengths: np.ndarray, unvoiced: np.ndarray, weight: float) -> np.ndarray:
    """Find the path with the largest sum of strengths minus costs, (L,) ints.

    0 means that the frame is unvoiced. Any other number is the index of the frame's peak plus 1.
    """
    frames, peaks = strengths.shape
    gains = np.concatenate((unvoiced[:, None], strengths), axis=1)
    back = np.zeros(gains.shape, np.int64)
    best, cost = gains[0], np.full((peaks + 1, peaks + 1), SWITCH)
    cost[0, 0] = 0
    for frame in range(1, frames):
        cost[1:, 1:] = JUMP * np.abs(octaves[frame - 1][:, None] - octaves[frame])
        sums = best[:, None] - weight * cost
        back[frame] = sums.argmax(axis=0)
        best = sums.max(axis=0) + gains[frame]
    path = np.zeros(frames, np.int64)
    path[-1:] = best.argmax()
    for frame in range(frames - 1, 0, -1):
        path[frame - 1] = back[frame, path[frame]]
    return path
