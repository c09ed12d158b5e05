"""Test the campaign ``readings``: the inputs that it draws, and how it judges readings."""

import re

import pytest

from ane.text import normalise_english
from tools.campaigns.readings import CLASSES, Verdict, compared, inputs, words


def test_each_class_is_drawn_and_all_of_it_is_read_in_words():
    found = inputs(10)
    assert {kind for kind, _ in found} == CLASSES.keys()
    assert found == inputs(10)
    assert not [text for _, text in found if re.search(r"[#?{}|]", text)]
    assert not [text for _, text in found if not re.fullmatch(r"[a-z',.: -]+", normalise_english(text))]


@pytest.mark.parametrize(
    ("ours", "theirs", "equal"),
    [
        ("two hundred and five", "Two hundred five.", True),
        ("f b i", "FBI", True),
        ("a-b c", "a b, c", True),
        ("nine oh five", "nine o five", False),
        ("john's", "johns", False),
    ],
)
def test_readings_are_equal_but_for_capitals_marks_and_the_spaces_between_letters(ours, theirs, equal):
    assert (words(ours) == words(theirs)) == equal


def test_a_difference_is_judged_by_the_first_verdict_that_covers_it():
    verdicts = [Verdict("money", re.compile(r"^\$"), "choice", ""), Verdict("*", re.compile("7"), "theirs", "")]
    result = compared(
        [
            ("money", "$5", "five dollars"),
            ("money", "$6", "six bucks"),
            ("money", "£7", "seven quid"),
            ("date", "8", "the eighth"),
        ],
        verdicts,
    )
    assert result["counts"] == {"equal": 1, "choice": 1, "theirs": 1, "unjudged": 1}
    assert result["share_right_or_choice"] == 0.5
    assert [each["input"] for each in result["unjudged"]] == ["8"]
