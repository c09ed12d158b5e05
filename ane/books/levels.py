"""Set the level of a book's files: encode a file again until its decoded level is right."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import soundfile

from ane.audio.containers import ChannelMix, container_pieces
from ane.audio.loudness import LoudnessMeter, PeakLimiter
from ane.audio.media import has_pyav

CEILING = -3.0  # dBTP of a finished file
CLOSE = 0.1  # dB by which the level of a finished file may differ from its goal
SAFE = 0.05  # dB that a correction of the ceiling adds to the excess
TRIES = 4  # maximum number of encodings of a file
PIECE = 1 << 17  # samples per measurement


@dataclass
class BookLeveller:
    """A leveller that encodes a file again until its decoded level is right.

    It starts the next file with the corrections of the last one, because an encoder changes all files of a book alike.
    If a file cannot reach its level because of its peaks, its corrections are dropped.

    Attributes:
        level: Name of the property of ``LoudnessMeter`` to set.
        peak: Highest true peak of a file in dB.
        correction: dB to add to the gain, because the encoder changes the level.
        whole: Meter of the decoded sound of all finished files.
    """

    level: str
    peak: float
    correction: float = 0.0
    whole: LoudnessMeter | None = None

    def __post_init__(self) -> None:
        self.ceiling = self.peak  # dB of the limiter

    def write(
        self, path: Path, before: float, wanted: float, encode: Callable[[Callable[..., Iterator[np.ndarray]]], None]
    ) -> LoudnessMeter:
        """Write a file, and return a meter of its decoded sound.

        Args:
            before: Level of the sound in dB.
            wanted: Level that the file must have, in dB.
            encode: Function that writes ``path``. It takes a function that changes the sound.
        """
        gain, former = wanted - before if math.isfinite(before) else 0.0, (self.correction, self.ceiling)
        for _ in range(TRIES):
            encode(partial(self._levelled, gain))
            after = measured_file(path)
            off = wanted - getattr(after, self.level)
            excess = after.true_peak - self.peak
            if not math.isfinite(before) or (excess <= 0 and abs(off) <= CLOSE):  # silence has no level
                break
            self.ceiling -= excess + SAFE if excess > 0 else 0.0
            self.correction += off if abs(off) > CLOSE else 0.0
        else:
            self.correction, self.ceiling = former
        if not self.whole:
            self.whole = LoudnessMeter(after.rate)
        self.whole.include(after)
        return after

    def _levelled(self, gain: float, pieces: Iterable[np.ndarray], rate: int) -> Iterator[np.ndarray]:
        limiter = PeakLimiter(rate, 10 ** ((gain + self.correction) / 20), 10 ** (self.ceiling / 20))
        for piece in pieces:
            yield limiter.feed(piece)
        yield limiter.finish()


def measured_file(path: Path) -> LoudnessMeter:
    """Measure the decoded sound of a file."""
    pieces = container_pieces(path, ChannelMix()) if has_pyav() else libsndfile_pieces(path)
    _, rate = next(pieces)
    return measured((piece for piece, _ in pieces), rate)


def libsndfile_pieces(path: Path) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the samples (n,) float32 of a mono file with its rate in Hz. There is at least one piece."""
    with soundfile.SoundFile(path) as file:
        yield np.zeros(0, np.float32), file.samplerate
        for block in file.blocks(PIECE, dtype="float32"):
            yield block, file.samplerate


def measured(pieces: Iterable[np.ndarray], rate: int) -> LoudnessMeter:
    """Measure pieces of sound. Short pieces are joined, because long ones are measured faster."""
    meter, held, count = LoudnessMeter(rate), list[np.ndarray](), 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        if count >= PIECE:
            meter.feed(np.concatenate(held))
            held, count = [], 0
    meter.feed(np.concatenate([np.zeros(0, np.float32), *held]))
    return meter
