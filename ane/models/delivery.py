"""Sound as a text's markup asks for it: stretched, louder or softer, with silence before and after."""

from collections.abc import Iterable, Iterator

import numpy as np

from ane.audio.time_stretch import TimeStretcher
from ane.system.iterators import closing_source
from ane.text.passages import PLAIN, Delivery


def delivered(pieces: Iterable[np.ndarray], delivery: Delivery, sample_rate: int) -> Iterator[np.ndarray]:
    """Yield the sound of a chunk, which arrives in pieces (n,) float32, as it is to be delivered.

    Samples that a gain takes beyond ±1 are clipped. The silence before is part of the first piece.
    """
    with closing_source(pieces):
        if delivery == PLAIN:
            yield from pieces
            return
        stretcher = TimeStretcher(delivery.speed, sample_rate)
        waiting = silence(delivery.before, sample_rate)
        for piece in pieces:
            sound = amplified(stretcher.feed(piece), delivery.gain)
            if len(sound):
                yield np.concatenate((waiting, sound)) if len(waiting) else sound
                waiting = waiting[:0]
        rest = amplified(stretcher.finish(), delivery.gain)
        if len(last := np.concatenate((waiting, rest, silence(delivery.after, sample_rate)))):
            yield last


def delivered_whole(sound: np.ndarray, delivery: Delivery, sample_rate: int) -> np.ndarray:
    """``delivered`` for the sound (S,) float32 of a whole chunk: (n,) float32."""
    if delivery == PLAIN:
        return sound
    return np.concatenate(list(delivered([sound], delivery, sample_rate)) or [sound])


def amplified(sound: np.ndarray, gain: float) -> np.ndarray:
    return sound if gain == 1 else np.clip(sound * np.float32(gain), -1, 1)


def silence(seconds: float, sample_rate: int) -> np.ndarray:
    return np.zeros(round(seconds * sample_rate), np.float32)
