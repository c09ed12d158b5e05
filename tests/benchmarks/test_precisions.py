"""The comparison of precisions, on figures with known results."""

import numpy as np
import pytest

from benchmarks.listening import Wave
from benchmarks.precisions import compared_row, mean_interval
from benchmarks.quality import ScoredSpeech


def scored(errors: int, dnsmos: float) -> ScoredSpeech:
    wave = Wave(2.0, 100.0, -23.0, 0.1, 0, True)
    return ScoredSpeech("a b c d", "a b c d", errors, 4, None, wave, None, True, dnsmos, None)


def test_differences_are_paired_by_sentence():
    first = [scored(errors, 2.0 + errors) for errors in (0, 1, 2, 1)]
    row = compared_row("int8", [scored(one.errors + 1, one.dnsmos - 0.5) for one in first], first, "slt")
    assert row.value.median == pytest.approx(8 / 16)
    assert row.value.low < 8 / 16 < row.value.high
    # every sentence differs by the same amount, so the differences have no spread, however far sentences are apart
    for name, expected in (("wer_more", 4 / 16), ("dnsmos_more", -0.5)):
        assert [row.figures[name + part] for part in ("", "_low", "_high")] == pytest.approx([expected] * 3)
    assert row.figures["dnsmos_low"] < row.figures["dnsmos"] == 2.5 < row.figures["dnsmos_high"]


def test_an_interval_narrows_with_the_number_of_sentences():
    values = np.tile([1.0, 2.0, 3.0], 4)
    (low, high), (lower, higher) = mean_interval(np.tile(values, 25)), mean_interval(values)
    assert lower < low < 2 < high < higher
