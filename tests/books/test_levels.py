"""Test the level of every file of a book, measured after encoding."""

import numpy as np
import pytest

from ane.audio import writing
from ane.books.levels import CLOSE, BookLeveller, measured

RATE = 24000


def clicks() -> np.ndarray:
    """Four loud samples a second: their level cannot become normal without peaks beyond full scale."""
    sound = np.zeros(3 * RATE, np.float32)
    sound[:: RATE // 4] = 0.9
    return sound


def hum(loud: float) -> np.ndarray:
    return (loud * np.sin(2 * np.pi * 220 * np.arange(3 * RATE) / RATE)).astype(np.float32)


@pytest.mark.parametrize("suffix", [".flac", ".mp3"])
def test_a_file_that_cannot_reach_its_level_changes_no_other_file(tmp_path, suffix):
    leveller, found = BookLeveller("rms", -3.2), []
    for number, sound in enumerate((hum(0.1), clicks(), hum(0.1), hum(0.05), clicks(), hum(0.1))):
        path = tmp_path / f"{number}{suffix}"

        def encode(change, path=path, sound=sound):
            with writing(path, RATE) as append:
                for piece in change([sound], RATE):
                    append(piece)

        found.append(leveller.write(path, measured([sound], RATE).rms, -20.0, encode))
    assert max(meter.true_peak for meter in found) <= -3.2
    assert max(found[1].rms, found[4].rms) < -21, "the clicks"
    assert [found[number].rms for number in (0, 2, 3, 5)] == pytest.approx([-20] * 4, abs=CLOSE)
