"""What a sound tells about itself."""

import numpy as np
import pytest

from ane.books.checking.judging import signals_of
from tests.books.stand_in import RATE


def speech(seconds: float = 1.0, level: float = 0.1) -> np.ndarray:
    """Something like a vowel, with the silence that a chunk of a book has at its ends."""
    time = np.arange(round(seconds * RATE)) / RATE
    sound = level * sum(np.sin(2 * np.pi * 120 * number * time + number ** 2) / number for number in range(1, 12))
    quiet = np.zeros(RATE // 20)
    return np.concatenate((quiet, sound, quiet)).astype(np.float32)


def test_speech_has_no_defect():
    found = signals_of(speech(), RATE)
    assert (found.clipped, found.clicks) == (0, 0)
    assert found.seconds == pytest.approx(1.0, abs=0.02)
    power = sum(0.5 / harmonic ** 2 for harmonic in range(1, 12))
    assert found.loudness == pytest.approx(20 * np.log10(0.1 * power ** 0.5), abs=0.5)
    assert found.edge < -60


@pytest.mark.parametrize("at", [0.3, 0.031])
def test_a_click_is_found_in_speech_and_in_silence(at):
    sound = speech()
    sound[round(at * RATE)] = 0.8
    assert signals_of(sound, RATE).clicks >= 1


def test_clipping_is_found():
    assert signals_of(np.clip(speech(level=0.9), -1, 1), RATE).clipped > 10


def test_a_cut_end_is_as_loud_as_the_speech():
    assert signals_of(speech()[:RATE // 2], RATE).edge > -6
    assert signals_of(speech()[RATE // 2:], RATE).edge > -6


def test_a_pause_inside_is_measured():
    assert signals_of(np.concatenate((speech(), np.zeros(RATE, np.float32), speech())), RATE).pause == pytest.approx(
        1.1, abs=0.03)


def test_silence_has_no_speech():
    assert signals_of(np.zeros(RATE, np.float32), RATE).seconds == 0
    assert signals_of(np.zeros(0, np.float32), RATE).seconds == 0
