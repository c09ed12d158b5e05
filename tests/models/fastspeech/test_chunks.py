"""Chunks: within the limit, complete, in order; braces are not broken."""

import pytest

from ane.models.fastspeech.text import halve, split_into_symbols
from ane.system.errors import UserError
from ane.text import split

LONG = "This is one sentence of a longer text. " * 12


@pytest.mark.parametrize("positions", [30, 60, 200])
def test_no_chunk_exceeds_the_positions_and_no_word_is_lost(positions):
    chunks = split_into_symbols(LONG, (150, 250), positions)
    assert max(len(chunk.ids) for chunk in chunks) <= positions
    assert " ".join(chunk.text for chunk in chunks).split() == LONG.split()


def test_numbers_that_grow_in_words_are_split_again():
    chunks = split_into_symbols("1777 " * 20, (90, 100), 60)
    assert len(" ".join(chunk.text for chunk in chunks).split()) == 20
    assert max(len(chunk.ids) for chunk in chunks) <= 60


def test_halves_are_shorter_and_complete():
    [whole] = split_into_symbols("one two three four five six", None, 100)
    parts = halve(whole, 100)
    assert len(parts) > 1
    assert " ".join(part.text for part in parts) == whole.text


def test_a_single_word_is_not_halved():
    [word] = split_into_symbols("word", None, 100)
    assert halve(word, 100) == [word]


def test_braces_stay_together():
    text = "say {HH AH0 L OW1} and {W ER1 L D} again and again"
    for piece in split(text, 8, 12):
        assert piece.count("{") == piece.count("}")
    assert " ".join(split(text, 8, 12)) == text


@pytest.mark.parametrize(("text", "lengths", "fault"), [
    ("", (150, 250), "nothing to say"), ("   ", None, "nothing to say"), ("!?", None, "nothing to say"),
    ("a" * 50, (150, 250), "insert spaces"), ("word " * 20, None, "allow it to be split")])
def test_what_cannot_be_spoken(text, lengths, fault):
    with pytest.raises(UserError, match=fault):
        split_into_symbols(text, lengths, 40)
