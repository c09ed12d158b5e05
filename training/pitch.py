"""Find the pitch of the teachers' speech: the best path through the peaks of autocorrelations (Boersma 1993).

P. Boersma, "Accurate short-term analysis of the fundamental frequency and the harmonics-to-noise ratio of a sampled
sound", IFA Proceedings 17. The names of the costs are his.
"""

import numpy as np

from ane.audio.mel import CONDITIONING_RATE, DIFFUSION_RATE, HOP

RATE = DIFFUSION_RATE  # sample rate of the speech, 24 kHz
MIDDLE = 150.0  # Hz, from which octaves are counted
LOWEST, HIGHEST = 60.0, 420.0
WINDOW, FFT = 1000, 2048  # samples, two periods of a low voice
BAND = 1500.0  # Hz: the first harmonics are enough, and noise is above them
PEAKS = 6  # peaks per frame that the path may go through
VOICING, SILENCE = 0.4, 0.03  # thresholds of autocorrelation and of the level (1 is the loudest)
OCTAVE, JUMP, SWITCH = 0.01, 0.35, 0.14  # costs of a lower pitch, a change by an octave, and voicing on or off
COST_SECONDS = 0.01  # between frames, for which the costs of changes hold

HANN = np.hanning(WINDOW).astype(np.float32)
TAPER = np.fft.irfft(np.abs(np.fft.rfft(HANN, FFT)) ** 2)[:WINDOW]
TAPER = np.maximum(TAPER / TAPER[0], 0.05)  # the window's autocorrelation


def pitch_of(audio: np.ndarray, frames: int, hop: float = HOP * RATE / CONDITIONING_RATE) -> np.ndarray:
    """Return the pitch (frames,) float32 in Hz every ``hop`` samples of a clip (S,) at 24 kHz, 0 where it is unvoiced.

    The default frames are the frames of ``conditioning_mel``.
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
    """Find the strongest peaks of windows (L, WINDOW): octaves above ``MIDDLE`` and strengths, (L, PEAKS) each."""
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
    """Return the path with the largest sum of strengths less costs, (L,) ints.

    0 means unvoiced, and any other number is 1 plus the index of the peak.
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
