"""The explanation of a reading: it equals what the normaliser does, and names the rules that did it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.text import Lexicon, LexiconEntry, normalise_english
from ane.text.explanation import ReadingStep, explain_english, respelled
from tests.text.test_english import READINGS

SHOWN = [
    ("Dr. Smith paid $5 today.", [("$5", "five dollars", "$5"), ("Dr.", "doctor", "Dr. who")]),
    ("on 3 May 2024, at 5 km", [("3 May 2024", "the third of may, twenty twenty-four", "1 May 2024"),
                                ("5 km", "five kilometers", "5 km")]),
    ("a <b>bold</b> café", [("é", "e", "ASCII"), ("<b>", "", "HTML tag"), ("</b>", "", "HTML tag")]),
    ("The FBI", [("FBI", "f b i", "FBI, DVDs")]),
    ("wow 😀 ok", [("😀", "", "ASCII")]),
]


@pytest.mark.parametrize(("text", "steps"), SHOWN)
def test_each_change_is_named_by_its_rule(text, steps):
    assert explain_english(text)[1] == [ReadingStep(*step) for step in steps]


@pytest.mark.parametrize("text", READINGS)
def test_a_reading_is_that_of_the_normaliser(text):
    assert explain_english(text)[0] == normalise_english(text)


@given(st.text(alphabet=st.sampled_from("aAbIXVm.,:;!? \n\t0159$€%#@&<>/[]()'\"-–—*_|é½α²\u0301\r™😀"), max_size=60))
def test_any_text_is_explained_as_it_is_normalised(text):
    assert explain_english(text)[0] == normalise_english(text)


def test_an_entry_of_the_lexicon_is_named_with_its_line():
    lexicon = Lexicon([LexiconEntry("Nguyen", "noo-yen", source="words.tsv, line 3")])
    assert respelled("Nguyen paid", lexicon) == [ReadingStep("Nguyen", "noo-yen", "lexicon: words.tsv, line 3")]
