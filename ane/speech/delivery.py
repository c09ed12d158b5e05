"""Sound as a text's markup asks for it: stretched, louder or softer, with silence before and after."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

import numpy as np

from ane.audio.time_stretch import TimeStretcher
from ane.speech.lanes import Lanes
from ane.speech.request import Piece
from ane.speech.words import delivered_words
from ane.system.iterators import closing_source
from ane.text.passages import PLAIN, Delivery


class ChunkDelivery:
    """Delivers the sound of one chunk, which arrives in pieces. Samples that a gain takes beyond ±1 are clipped."""

    def __init__(self, delivery: Delivery, sample_rate: int):
        self.delivery, self.sample_rate = delivery, sample_rate
        self.stretcher = TimeStretcher(delivery.speed, sample_rate)
        self._before = silence(delivery.before, sample_rate)

    def feed(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        """Take (n,) float32 and return what is certain, all with ``last``. The silence before comes with sound."""
        if self.delivery == PLAIN:
            return samples
        sound = self.stretcher.feed(samples)
        if last:
            sound = np.concatenate((sound, self.stretcher.finish()))
        if self.delivery.gain != 1:
            sound = np.clip(sound * np.float32(self.delivery.gain), -1, 1)
        if not len(sound) and not last:
            return sound
        before, self._before = self._before, self._before[:0]
        after = silence(self.delivery.after if last else 0, self.sample_rate)
        return np.concatenate((before, sound, after))


def delivered(pieces: Iterable[Piece | Lanes], sample_rate: int) -> Iterator[Piece | Lanes]:
    """Yield the pieces as they are to be heard, the words of each text in seconds from its beginning; and the lanes."""
    begins = samples = 0            # of the chunk, and so far, in its text
    current: ChunkDelivery | None = None
    with closing_source(pieces):
        for piece in pieces:
            if isinstance(piece, Lanes):
                yield piece
                continue
            delivery = piece.chunk.delivery
            current = current or ChunkDelivery(delivery, sample_rate)
            sound = current.feed(piece.samples, piece.last)
            samples += len(sound)
            length = (samples - begins) / sample_rate if piece.last else inf
            yield replace(
                piece, samples=sound, words=delivered_words(piece.words, delivery, 0.0, length, begins / sample_rate),
                alternatives=[ChunkDelivery(delivery, sample_rate).feed(each, True) for each in piece.alternatives])
            if piece.last:
                current, begins = None, samples
                if piece.chunk.final:
                    begins = samples = 0


def silence(seconds: float, sample_rate: int) -> np.ndarray:
    return np.zeros(round(seconds * sample_rate), np.float32)
