"""What a sound tells about itself, without its text."""

from dataclasses import dataclass

import numpy as np

FRAME = 0.01            # seconds of a frame
QUIET = 10 ** (-45 / 20)        # root mean square of a silent frame, as ``ane.audio.trimming`` has it
CLICK = 11.0            # a click is a step between samples of this many times the median step around it: speech has 7
LEAST_STEP = 0.0008     # of full scale: the median step in what is nearly silent
FULL = 0.999            # of full scale
CLIPPED_RUN = 4         # samples at full scale in a row that are clipping
EDGE_FRAMES = 2         # frames at either end that must be quieter than the speech


@dataclass(frozen=True)
class SoundSignals:
    """Signals of a sound (S,).

    Attributes:
        seconds: from the first to the last frame that is not silent.
        loudness: of these frames, in dBFS.
        clipped: runs of at least ``CLIPPED_RUN`` samples at full scale. clicks: frames with a step that no speech has.
        pause: seconds of the longest silence inside.
        edge: level of the louder end, in dB relative to ``loudness``: near 0 or above where speech is cut off.
    """

    seconds: float
    loudness: float
    clipped: int
    clicks: int
    pause: float
    edge: float


def signals_of(audio: np.ndarray, rate: int) -> SoundSignals:
    """The signals of a sound (S,) float32, trimmed as the chunks of a book are."""
    size = round(FRAME * rate)
    frames = audio[:len(audio) // size * size].reshape(-1, size)
    levels = np.sqrt((frames ** 2).mean(axis=1)) if len(frames) else np.zeros(0)
    loud = np.flatnonzero(levels > QUIET)
    if not len(loud):
        return SoundSignals(0.0, -120.0, 0, 0, 0.0, -120.0)
    level = float(np.sqrt((levels[loud] ** 2).mean()))
    ends = [audio[:EDGE_FRAMES * size], audio[-EDGE_FRAMES * size:]]
    edge = max(float(np.sqrt((end ** 2).mean())) for end in ends)
    return SoundSignals((loud[-1] + 1 - loud[0]) * FRAME, decibels(level), runs_at_full_scale(audio), clicks(frames),
                        float(max(np.diff(loud), default=1) - 1) * FRAME, decibels(edge / level))


def runs_at_full_scale(audio: np.ndarray) -> int:
    full = np.concatenate(([0], (np.abs(audio) >= FULL).astype(np.int8), [0]))
    edges = np.flatnonzero(np.diff(full))
    return int((edges[1::2] - edges[::2] >= CLIPPED_RUN).sum())


def clicks(frames: np.ndarray) -> int:
    """Frames (n, size) with a step between samples of ``CLICK`` times the median step there and beside."""
    if len(frames) < 3:
        return 0
    steps = np.abs(np.diff(frames, axis=1))
    usual = np.median(steps, axis=1)
    around = np.maximum(np.maximum(usual[:-2], usual[1:-1]), usual[2:])
    return int((steps[1:-1].max(axis=1) > CLICK * np.maximum(around, LEAST_STEP)).sum())


def decibels(ratio: float) -> float:
    return float(20 * np.log10(max(ratio, 1e-6)))
