"""Test that texts sound the same on a cluster as without one, from a list and from a data set."""

import numpy as np
import pytest

import ane
from ane.cluster import speak_many
from ane.cluster.workers import connected
from tests.refusals import assert_refused

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]' makes these tests run")
data = pytest.importorskip("ray.data", reason="Ray Data needs pandas and pyarrow: pip install '.[ray]'")

TEXTS = ["The first line.", "Another line."]
REQUEST = {"preset": "fastest", "seed": 1, "threads": 1}


@pytest.fixture(scope="module")
def alone() -> dict[str, np.ndarray]:
    synthesizer = ane.load(threads=1)
    return {text: synthesizer.speak(text, preset="fastest", seed=1).audio for text in TEXTS}


def test_a_list_of_texts(alone):
    speeches = list(speak_many(TEXTS, workers=1, **REQUEST))
    assert [speech.chunks for speech in speeches] == [[text] for text in TEXTS]
    for text, speech in zip(TEXTS, speeches, strict=True):
        assert np.array_equal(speech.audio, alone[text])


def test_a_data_set_of_texts(alone):
    with connected(None):
        rows = data.from_items([{"line": text, "number": number} for number, text in enumerate(TEXTS)])
        spoken = speak_many(rows, column="line", workers=1, **REQUEST).take_all()
        assert_refused("address has no effect", speak_many, rows, address="auto")
    assert sorted(row["number"] for row in spoken) == [0, 1]
    for row in spoken:
        assert np.array_equal(row["audio"], alone[row["line"]])
        assert row["seconds"] == pytest.approx(len(row["audio"]) / row["sample_rate"])
