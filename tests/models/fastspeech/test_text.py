"""Test how text becomes symbols and chunks, and the settings of a request."""

import pytest

from ane.models.fastspeech.settings import FastSpeechSettings
from ane.models.fastspeech.text import SYMBOLS, halve, split_into_symbols, text_to_ids
from ane.system.errors import UserError
from ane.text import split
from ane.text.passages import Passage


def spelt(text: str) -> str:
    return " ".join(SYMBOLS[index].removeprefix("@") for index in text_to_ids(text))


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("{HH AH0}", "HH AH0"),
        ("a{B}b", "a B b"),
        ("{B} {D}", "B   D"),
        ("{HH}\n{AH0}", "HH   AH0"),
        ("a {B", "a   b"),
        ("{}a", "a"),
        ("{B XX}", "B"),
    ],
)
def test_phonemes_in_braces(text, symbols):
    assert spelt(text) == symbols


@pytest.mark.parametrize(
    ("text", "positions"),
    [*(("This is one sentence of a longer text. " * 12, positions) for positions in (30, 60, 200)), ("1777 " * 20, 60)],
)  # numbers become longer when they are written in words
def test_no_chunk_exceeds_the_positions_and_no_word_is_lost(text, positions):
    chunks = split_into_symbols(text, (150, 250), positions)
    assert max(len(chunk.ids) for chunk in chunks) <= positions
    assert " ".join(chunk.text for chunk in chunks).split() == text.split()


def test_halves_of_a_chunk_are_complete_and_share_its_delivery():
    [chunk] = split_into_symbols([Passage("one two three four five six", 1.0, speed=1.5)], None, 100)
    parts = halve(chunk, 100, 0.25)
    assert " ".join(part.text for part in parts) == chunk.text
    assert [(part.speed, part.before, part.after, part.final) for part in parts] == [
        (1.5, 0.0, 0.25, False),
        (1.5, 0.0, 1.0, True),
    ]
    [word] = split_into_symbols("word", None, 100)
    assert halve(word, 100) == [word]


def test_braces_stay_together():
    text = "say {HH AH0 L OW1} and {W ER1 L D} again and again"
    for piece in split(text, 8, 12):
        assert piece.count("{") == piece.count("}")
    assert " ".join(split(text, 8, 12)) == text


@pytest.mark.parametrize(
    ("text", "lengths", "fault"),
    [
        ("", (150, 250), "nothing to say"),
        ("   ", None, "nothing to say"),
        ("!?", None, "nothing to say"),
        ("a" * 50, (150, 250), "insert spaces"),
        ("word " * 20, None, "allow it to be split"),
    ],
)
def test_what_cannot_be_spoken(text, lengths, fault):
    with pytest.raises(UserError, match=fault):
        split_into_symbols(text, lengths, 40)


@pytest.mark.parametrize(("name", "value"), [("split", (300, 200)), ("pause", -1.0), ("batch", 0), ("rounding", "up")])
def test_a_value_out_of_range_is_refused(name, value):
    with pytest.raises(UserError, match=f"^{name} must be"):
        FastSpeechSettings(**{name: value})


def test_options():
    settings = FastSpeechSettings.of()
    assert settings.changed({"split": (50, 60)}) == FastSpeechSettings(split=(50, 60))
    assert settings.changed({"no_split": True}).split is None
    with pytest.raises(UserError, match="split has no effect"):
        settings.changed({"no_split": True, "split": (1, 2)})
