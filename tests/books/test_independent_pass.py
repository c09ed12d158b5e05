"""The independent pass over a narrated book: what its comparison with the teacher's sound finds, and its result."""

import json

import numpy as np

from tests.books.independent_pass import RESULT, beside

RATE = 16000


def syllables(count: int, seed: int = 0) -> np.ndarray:
    """Noise that sounds otherwise every 0.15 s, (S,) float32."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(0.15 * RATE)) / RATE
    return np.concatenate([sum(np.sin(2 * np.pi * frequency * time) for frequency in rng.uniform(200, 5000, 4)) / 8
                           for _ in range(count)]).astype(np.float32)


def test_speech_that_is_missing_or_added_is_where_one_sound_stands_still():
    whole = syllables(12)
    cut, other = round(0.9 * RATE), syllables(3, seed=1)
    added, missing, misfit = beside(whole, whole)
    assert max(added, missing) < 2
    assert beside(whole, np.concatenate((whole[:cut], other, whole[cut:])))[0] > 15
    assert beside(whole, np.delete(whole, np.s_[cut:cut + len(other)]))[1] > 15
    assert beside(whole, syllables(12, seed=2))[2] > misfit


def test_the_committed_pass_found_at_most_one_defect_that_the_check_did_not_report():
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert result["words"] >= 10_000
    assert "not yet" not in result["judged_as"]
    assert result["judged_as"].get("defect", 0) + result["judged_as"].get("doubtful", 0) <= 1
    made, found = (sum(kind[which] for kind in result["power"].values()) for which in ("made", "found"))
    assert found / made >= 0.9
