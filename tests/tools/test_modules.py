"""Test that the interpreter computes converted torch modules: some here, and all in the committed results."""

import itertools
import json

import pytest

pytest.importorskip("coremltools", reason="needs coremltools: pip install '.[convert]'")

from tools.campaigns.modules import AXES, DECIBELS, RESULTS, TARGETS, attempt
from tools.campaigns.torch_modules import MISREAD, MODULES


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("rotary positions", "equal"),
        ("LSTM", "equal"),
        ("y[y > 0] = 1", "equal"),
        ("nn.Hardshrink", "refused"),
        *((name, "misread") for name in MISREAD),
    ],
)
def test_a_module_has_the_outcome_that_the_campaign_states(name, outcome):
    [(found, details)] = attempt(name, "iOS18", "fp32", "one flexible")
    assert found.startswith(outcome), details


def test_the_committed_campaign_tried_every_module_and_found_nothing_wrong():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert set(results["pieces"]) == {", ".join(piece) for piece in itertools.product(TARGETS, DECIBELS, AXES)}
    assert results["modules"] == len(MODULES) >= 200
    assert results["wrong"] == 0
    assert results["share_equal"] >= 0.99
