"""The explanation of a reading: it equals what the normaliser does, and names the rules that did it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.text import Lexicon, LexiconEntry, normalise_english
from ane.text.explanation import Reading, TracedText, explain_english
from tests.text.test_english import READINGS

SHOWN = [
    ("Dr. Smith paid $5 today.", [
        Reading("Dr.", "doctor", ("Dr. who",)), Reading("Smith", "smith", ("lower case",)),
        Reading("paid", "paid", ()), Reading("$5", "five dollars", ("$5",)), Reading("today.", "today.", ())]),
    ("on 3 May 2024, at 5 km", [
        Reading("on", "on", ()), Reading("3 May 2024,", "the third of may, twenty twenty-four,", ("1 May 2024",)),
        Reading("at", "at", ()), Reading("5 km", "five kilometers", ("5 km",))]),
    ("a <b>bold</b> café", [
        Reading("a", "a", ()), Reading("<b>bold</b>", "bold", ("HTML tag",)), Reading("café", "cafe", ("ASCII",))]),
    ("The FBI", [Reading("The", "the", ("lower case",)), Reading("FBI", "f b i", ("FBI, DVDs",))]),
    ("wow 😀 ok", [Reading("wow", "wow", ()), Reading("😀", "", ("ASCII",)), Reading("ok", "ok", ())]),
]


@pytest.mark.parametrize(("text", "readings"), SHOWN)
def test_each_word_has_its_reading_and_the_rules_that_made_it(text, readings):
    assert explain_english(TracedText.of(text)) == readings


@pytest.mark.parametrize("text", READINGS)
def test_the_readings_join_to_what_the_normaliser_returns(text):
    traced = TracedText.of(text)
    readings = explain_english(traced)
    assert traced.text == normalise_english(text)
    assert "".join("".join(found.spoken for found in readings).split()) == "".join(traced.text.split())


@given(st.text(alphabet=st.sampled_from("aAbIXVm.,:;!? \n\t0159$€%#@&<>/[]()'\"-–—*_|é½α²\u0301\r™😀"), max_size=60))
@settings(max_examples=400, deadline=None)
def test_any_text_is_explained_as_it_is_normalised(text):
    traced = TracedText.of(text)
    readings = explain_english(traced)
    assert traced.text == normalise_english(text)
    assert "".join("".join(found.spoken for found in readings).split()) == "".join(traced.text.split())


def test_an_entry_of_the_lexicon_is_named_with_its_line():
    traced = TracedText.of("Nguyen paid")
    traced.respell(Lexicon([LexiconEntry("Nguyen", "noo-yen", source="words.tsv, line 3")]))
    assert explain_english(traced)[0] == Reading("Nguyen", "noo-yen", ("lexicon: words.tsv, line 3",))


def test_pieces_of_a_text_keep_the_origin_of_their_words():
    traced = TracedText.of("One  fish.\nTwo\tfish | 3 fish.")
    texts = ["One fish.", "Two fish", "3 fish."]
    parts = [explain_english(piece) for piece in traced.pieces(texts)]
    assert [[found.text for found in part] for part in parts] == [["One", "fish."], ["Two", "fish"], ["3", "fish."]]
    assert parts[2][0] == Reading("3", "three", ("1,234.5",))
