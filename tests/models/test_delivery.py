"""Sound of a chunk with its speed, its volume and the silence around it."""

import numpy as np
import pytest

from ane.models.delivery import delivered, delivered_whole
from ane.text.passages import PLAIN, Delivery

RATE = 24000
SOUND = (0.5 * np.sin(np.arange(RATE) / 40)).astype(np.float32)


def test_plain_sound_is_not_touched():
    assert delivered_whole(SOUND, PLAIN, RATE) is SOUND


def test_silence_lies_around_the_sound_and_the_first_piece_is_not_silence_alone():
    pieces = list(delivered(np.array_split(SOUND, 4), Delivery(before=0.5, after=0.25), RATE))
    np.testing.assert_array_equal(np.concatenate(pieces),
                                  np.concatenate((np.zeros(12000), SOUND, np.zeros(6000))).astype(np.float32))
    assert pieces[0].any()


def test_gain_is_a_factor_and_clips():
    np.testing.assert_allclose(delivered_whole(SOUND, Delivery(gain=0.5), RATE), SOUND / 2, atol=1e-7)
    assert np.abs(delivered_whole(SOUND * 0.9, Delivery(gain=4), RATE)).max() == 1


@pytest.mark.parametrize("pieces", [1, 3, 100])
def test_speed_changes_the_length_alike_in_pieces_and_whole(pieces):
    delivery = Delivery(speed=1.25, before=0.1, gain=0.7)
    whole = delivered_whole(SOUND, delivery, RATE)
    assert len(whole) == RATE * 0.8 + 2400
    np.testing.assert_array_equal(np.concatenate(list(delivered(np.array_split(SOUND, pieces), delivery, RATE))), whole)


def test_silence_around_no_sound_stays():
    assert len(delivered_whole(SOUND[:0], Delivery(before=0.1, after=0.1), RATE)) == 4800


def test_closing_closes_the_source():
    closed = []

    def source():
        try:
            yield SOUND
            yield SOUND
        finally:
            closed.append(True)

    sound = delivered(source(), Delivery(after=1), RATE)
    next(sound)
    sound.close()
    assert closed
