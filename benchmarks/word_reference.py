"""True times of the words of a sentence that a voice learned from flite speaks, for comparison with predicted ones.

flite states when it pronounces each phoneme. A model that learned from it speaks a sentence nearly alike, so dynamic
time warping of the two sounds (cepstra, 5 ms apart) carries flite's times to the model's sound.
"""

from collections.abc import Sequence

import numpy as np

from ane.audio import resample
from ane.models.warping import warping_path
from training.timed_speech import RATE, Segment, TimedFlite

HOP, WINDOW, SIZE = 80, 400, 512        # samples at 16 kHz
BANDS, CEPSTRA, HIGHEST = 40, 16, 7600
SLOPE = 3.0                             # weight of the change of a cepstrum from frame to frame


def filters() -> np.ndarray:
    """Triangular filters on the mel scale, (BANDS, SIZE // 2 + 1)."""
    mels = 2595 * np.log10(1 + np.linspace(0, RATE / 2, SIZE // 2 + 1) / 700)
    edges = np.linspace(mels[2], 2595 * np.log10(1 + HIGHEST / 700), BANDS + 2)
    return np.stack([np.clip(np.minimum((mels - low) / (middle - low), (high - mels) / (high - middle)), 0, None)
                     for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False)])


def cepstra(audio: np.ndarray) -> np.ndarray:
    """(S,) at 16 kHz → (frames, 2 · CEPSTRA), the second half their slopes, of mean 0 and deviation 1."""
    audio = np.pad(audio / max(1e-9, float(np.abs(audio).max())), WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(audio, WINDOW)[::HOP] * np.hanning(WINDOW)
    energy = np.log(np.abs(np.fft.rfft(frames, SIZE)) ** 2 @ filters().T + 1e-7)
    cosines = np.cos(np.pi * np.arange(CEPSTRA)[:, None] * (np.arange(BANDS) + 0.5) / BANDS) * (2 / BANDS) ** 0.5
    cosines[0] /= 2 ** 0.5
    found = energy @ cosines.T
    return np.concatenate((found - found.mean(axis=0), SLOPE * np.gradient(found, axis=0)), axis=1)


def word_ends(segments: Sequence[Segment]) -> np.ndarray:
    """Seconds at which each word begins and ends, (words, 2), from flite's segments."""
    words: list[list[float]] = []
    before = 0.0
    for segment in segments:
        if segment.word == len(words):
            words.append([before, segment.end])
        elif segment.word >= 0:
            words[segment.word][1] = segment.end
        before = segment.end
    return np.array(words)


def true_times(flite: TimedFlite, text: str, audio: np.ndarray, rate: int) -> np.ndarray:
    """Seconds at which each word that flite pronounces begins and ends in the audio (S,) of a model, (words, 2)."""
    spoken, segments, _ = flite.speak(text)
    theirs, ours = cepstra(spoken), cepstra(resample(audio, rate, RATE))
    deviation = theirs.std(axis=0) + 1e-6
    ours, theirs = ours / deviation, theirs / deviation
    cost = np.sqrt(((theirs[:, None] - ours[None]) ** 2).sum(axis=-1)).astype(np.float64)
    rows, columns = warping_path(cost)
    along = np.bincount(rows, columns) / np.bincount(rows)      # mean of our frames for each of theirs
    return np.interp(word_ends(segments) * RATE / HOP, np.arange(len(along)), along) * HOP / RATE
