"""Sound of a chunk with its speed, its volume and the silence around it."""

from collections.abc import Iterator

import numpy as np
import pytest

from ane.speech.delivery import delivered
from ane.speech.request import Chunk, Piece
from ane.speech.words import SpokenWord
from ane.text.passages import PLAIN, Delivery

RATE = 24000
SOUND = (0.5 * np.sin(np.arange(RATE) / 40)).astype(np.float32)


def pieces_of(delivery: Delivery, count: int = 1, sound: np.ndarray = SOUND, **facts) -> Iterator[Piece]:
    chunk = Chunk("a", delivery=delivery)
    for index, samples in enumerate(np.array_split(sound, count)):
        yield Piece(samples, chunk, index == count - 1, **(facts if index == 0 else {}))


def sound_of(delivery: Delivery, count: int = 1, sound: np.ndarray = SOUND) -> list[np.ndarray]:
    return [piece.samples for piece in delivered(pieces_of(delivery, count, sound), RATE)]


def test_plain_sound_is_not_touched():
    assert sound_of(PLAIN)[0].base is SOUND


def test_silence_lies_around_the_sound_and_the_first_piece_is_not_silence_alone():
    pieces = sound_of(Delivery(before=0.5, after=0.25), 4)
    np.testing.assert_array_equal(np.concatenate(pieces),
                                  np.concatenate((np.zeros(12000), SOUND, np.zeros(6000))).astype(np.float32))
    assert pieces[0].any()


def test_gain_is_a_factor_and_clips():
    np.testing.assert_allclose(sound_of(Delivery(gain=0.5))[0], SOUND / 2, atol=1e-7)
    assert np.abs(sound_of(Delivery(gain=4), sound=SOUND * 0.9)[0]).max() == 1


@pytest.mark.parametrize("pieces", [1, 3, 100])
def test_speed_changes_the_length_alike_in_pieces_and_whole(pieces):
    delivery = Delivery(speed=1.25, before=0.1, gain=0.7)
    [whole] = sound_of(delivery)
    assert len(whole) == RATE * 0.8 + 2400
    np.testing.assert_array_equal(np.concatenate(sound_of(delivery, pieces)), whole)


def test_silence_around_no_sound_stays():
    assert len(sound_of(Delivery(before=0.1, after=0.1), sound=SOUND[:0])[0]) == 4800


def test_words_and_alternatives_are_delivered_as_the_sound_is():
    """The second text begins at 0 again."""
    facts = {"words": [SpokenWord("a", 0.25, 0.5)], "alternatives": [SOUND / 2]}
    delivery = Delivery(speed=2.0, before=1.0)
    for piece in list(delivered([*pieces_of(delivery, **facts), *pieces_of(delivery, **facts)], RATE)):
        assert piece.words == [SpokenWord("a", 1.125, 1.25)]
        assert [len(other) for other in piece.alternatives] == [len(piece.samples)] == [36000]


def test_closing_closes_the_source():
    closed = []

    def source() -> Iterator[Piece]:
        try:
            yield from pieces_of(Delivery(after=1), 2)
        finally:
            closed.append(True)

    sound = delivered(source(), RATE)
    next(sound)
    sound.close()
    assert closed
