"""Bring the files of a book to a level: encode a file again until its decoded sound has the right level."""

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
CLOSE = 0.1  # maximum difference in dB between the level of a finished file and the wanted level
SAFE = 0.05  # dB by which a correction lowers the limiter's ceiling beyond the excess
TRIES = 4  # how often to encode a file, at most
PIECE = 1 << 17  # samples per measured piece


@dataclass
class BookLeveller:
    """A leveller that encodes a file again until its decoded sound has the right level.

    An encoder changes the levels of a book's files alike, so the leveller starts each file with the previous file's
    corrections. If a file cannot reach its level because of its peaks, the leveller does not reuse its corrections.

    Attributes:
        level: Name of the level that is set: a property of ``LoudnessMeter``.
        peak: Highest true peak that a file may have, in dB.
        correction: Number of dB that the leveller adds to the gain, because the encoder changes the level.
        whole: Meter that has measured the decoded sound of all finished files together.
    """

    level: str
    peak: float
    correction: float = 0.0
    whole: LoudnessMeter | None = None

    def __post_init__(self) -> None:
        self.ceiling = self.peak  # true peak that the limiter allows, in dB

    def write(
        self, path: Path, before: float, wanted: float, encode: Callable[[Callable[..., Iterator[np.ndarray]]], None]
    ) -> LoudnessMeter:
        """Write a file whose decoded sound has the level ``wanted``, and return a meter that has measured this sound.

        Args:
            before: Level of the sound before encoding, in dB.
            wanted: Level that the file must have, in dB.
            encode: Function that writes ``path``. Its argument is a function that changes the sound before encoding.
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
    """Decode a file, and measure its sound."""
    pieces = container_pieces(path, ChannelMix()) if has_pyav() else libsndfile_pieces(path)
    _, rate = next(pieces)
    return measured((piece for piece, _ in pieces), rate)


def libsndfile_pieces(path: Path) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the samples (n,) float32 of a mono file, block by block, with the file's rate in Hz.

    The first block is empty.
    """
    with soundfile.SoundFile(path) as file:
        yield np.zeros(0, np.float32), file.samplerate
        for block in file.blocks(PIECE, dtype="float32"):
            yield block, file.samplerate


def measured(pieces: Iterable[np.ndarray], rate: int) -> LoudnessMeter:
    """Measure sound that comes in arrays (n,) float32. Short arrays are joined, because that is faster."""
    meter, held, count = LoudnessMeter(rate), list[np.ndarray](), 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        if count >= PIECE:
            meter.feed(np.concatenate(held))
            held, count = [], 0
    meter.feed(np.concatenate([np.zeros(0, np.float32), *held]))
    return meter
