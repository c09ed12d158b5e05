"""Test the detection of a text's language, which uses the commonest words."""

from pathlib import Path

import pytest

import ane
from ane.text import Lexicon
from ane.text.other_languages import foreign_language
from tests.tables import rows


@pytest.mark.parametrize(("language", "text"), rows(__file__, "languages.tsv", "sentences"))
def test_sentences_of_other_languages_are_named(language, text):
    assert foreign_language(text) == language


@pytest.mark.parametrize(
    ("unreadable", "read"),
    [
        ("nearest", "Ёлка, π and Ωmega: 中文! Straße x²"),
        ("skip", ", π and Ωmega: ! Straße x²"),
        ("spell", "io el ka a, π and Ωmega: Zhong Wen! Straße x²"),
    ],
)
def test_words_of_other_scripts_are_spelt_or_left_out_as_chosen(unreadable, read):
    assert Lexicon(unreadable=unreadable)("Ёлка, π and Ωmega: 中文! Straße x²") == read
    assert (Lexicon(unreadable="spell")("हिन्दी, مرحبا"), Lexicon(unreadable="skip")("हिन्दी,")) == (
        "ha i na da ii, meem reh hah beh alef",
        ",",
    )
    assert Lexicon(unreadable="skip")("Я и ты, α") == "  , α"


def test_english_is_none_of_them():
    texts = (Path(__file__).parent / "dialogues.txt").read_text(encoding="utf-8").splitlines()
    english = [*texts, "A café, a façade, and déjà vu.", "Die hard.", "Las Vegas, Los Angeles and La Paz."]
    assert [text for text in english if foreign_language(text)] == []


def test_it_is_noted_with_the_speech_once():
    speech = ane.load().speak("Guten Tag, ich bin müde und möchte nicht gehen.")
    assert speech.notes[0] == "the text looks like German, and is read as English"
