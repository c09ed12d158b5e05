"""Sound as a text's markup asks for it: stretched, louder or softer, with silence before and after."""

from collections.abc import Generator, Iterable
from dataclasses import replace
from math import inf

import numpy as np

from ane.audio.time_stretch import TimeStretcher
from ane.speech.lanes import Lanes
from ane.speech.request import Piece
from ane.speech.words import delivered_words
from ane.system.iterators import closing_source
from ane.text.passages import PLAIN, Delivery

BLOCK_SECONDS = 1.0     # of silence in a piece


class ChunkDelivery:
    """Delivers the sound of one chunk, which arrives in pieces. Samples that a gain takes beyond ±1 are clipped.

    Attributes:
        before, after: samples of silence that are still to come before and after the sound.
    """

    def __init__(self, delivery: Delivery, sample_rate: int):
        self.delivery = delivery
        self.stretcher = TimeStretcher(delivery.speed, sample_rate)
        self.before, self.after = round(delivery.before * sample_rate), round(delivery.after * sample_rate)

    def feed(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        """Take (n,) float32 and return what is certain without the silence, all with ``last``."""
        if replace(self.delivery, voice="") == PLAIN:
            return samples
        sound = self.stretcher.feed(samples)
        if last:
            sound = np.concatenate((sound, self.stretcher.finish()))
        return np.clip(sound * np.float32(self.delivery.gain), -1, 1) if self.delivery.gain != 1 else sound

    def whole(self, samples: np.ndarray) -> np.ndarray:
        """All of a chunk's sound at once, with its silence."""
        sound = self.feed(samples, last=True)
        return np.concatenate((np.zeros(self.before, np.float32), sound, np.zeros(self.after, np.float32)))


def delivered(pieces: Iterable[Piece | Lanes], sample_rate: int) -> Generator[Piece | Lanes, None, None]:
    """Yield the pieces as they are to be heard, the words of each text in seconds from its beginning; and the lanes.

    The silence before a chunk comes when its sound does. Silence of more than ``BLOCK_SECONDS`` comes in blocks.
    """
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
            before = silent_blocks(current.before if len(sound) or piece.last else 0, sample_rate)
            after = silent_blocks(current.after if piece.last else 0, sample_rate)
            current.before -= sum(map(len, before))
            if before or after:
                sound = np.concatenate((*before[-1:], sound, *after[:1]))
            yield from (Piece(block, piece.chunk) for block in before[:-1])
            samples += sum(map(len, (*before[:-1], sound, *after[1:])))
            length = (samples - begins) / sample_rate if piece.last else inf
            yield replace(
                piece, samples=sound, last=piece.last and not after[1:],
                words=delivered_words(piece.words, delivery, 0.0, length, begins / sample_rate),
                alternatives=[ChunkDelivery(delivery, sample_rate).whole(each) for each in piece.alternatives])
            yield from (Piece(block, piece.chunk, block is after[-1]) for block in after[1:])
            if piece.last:
                current, begins = None, samples
                if piece.chunk.final:
                    begins = samples = 0


def silent_blocks(samples: int, sample_rate: int) -> list[np.ndarray]:
    """Silence of so many samples in blocks that share their memory; none for 0."""
    block = np.zeros(min(samples, round(BLOCK_SECONDS * sample_rate)), np.float32)
    return [block[:samples - begin] for begin in range(0, samples, max(1, len(block)))]
