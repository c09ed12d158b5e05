"""Test that reading a document twice as long takes about twice the time."""

import json

import pytest

from tools.campaigns.growth import CASES, MOST, RESULT, grown

# share of the largest size, at which work that grows with the square of the length shows within a second or two
SCALES = {
    "levels of headings": 0.2,
    "chapters titled Copyright": 0.1,
    "parts and manifest": 0.25,
    "fallbacks": 0.05,
    "places in a file": 0.05,
    "quotations in paragraphs": 0.05,
    "quotations in one paragraph": 0.05,
    "quotations without end": 0.01,
    "pauses of a request": 0.05,
    "a PDF of lines": 0.03,
}


@pytest.mark.parametrize("name", SCALES)
def test_the_time_to_read_grows_as_the_document_does(name):
    found = grown(CASES[name], SCALES[name])
    assert max(found["ratios"]) <= MOST, found


def test_the_committed_results_are_of_all_cases_at_their_full_size():
    results = json.loads(RESULT.read_text())
    assert {name: case["size"] for name, case in results["cases"].items()} == {
        name: case.size for name, case in CASES.items()
    }
    assert all(case["linear"] for case in results["cases"].values())
