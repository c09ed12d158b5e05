"""Test that the small Tortoise speaks a single word without seconds of senseless sound after it."""

from dataclasses import replace

import pytest

import ane
from ane.models.tortoise.chunks import split_into_chunks, spoken_words
from ane.models.tortoise.pipeline import TOO_LONG
from ane.models.tortoise.settings import TortoiseSettings
from ane.speech.request import SpeechContext
from ane.text import Tokenizer

LETTERS = ["A", "E", "F", "I", "K", "Q", "T", "W", "Y", "Z"]
WORDS = ["The", "FBI", "Yes", "Why", "Elephant", "IV", "Good morning", "Oh no"]
LONGEST = 1.2  # maximum seconds for a word


@pytest.fixture(scope="module")
def speaker():
    return ane.load("demo", backend="torch:cpu")


@pytest.mark.parametrize("seed", [0, 4])
def test_a_word_alone_takes_no_longer_than_a_word_does(speaker, seed):
    texts = LETTERS + WORDS
    for text, speech in zip(texts, speaker.speak_all(texts, seed=seed), strict=True):
        assert 0.2 < len(speech.audio) / speech.sample_rate <= LONGEST * len(text.split()), text


def test_a_text_that_met_the_bound_has_a_note_and_a_longer_one_none(speaker):
    request = speaker.request("Elephant", seed=0)
    request = replace(request, settings=replace(request.settings, codes_per_word=2))
    assert speaker.speech_of(request, SpeechContext()).notes == [TOO_LONG.format(chunks=1)]
    assert speaker.speak("Good morning to all of you.", seed=0).notes == []


def test_a_text_without_an_end_mark_gets_a_full_stop_and_others_stay(speaker):
    tokenizer = Tokenizer(speaker.model.tokenizer)
    own = speaker.model.settings
    for settings, text, spoken in (
        (own, "The FBI", "the f b i."),
        ({}, "The FBI", "the f b i"),
        (own, "Why?", "why?"),
        (own, "Oh, no,", "oh, no,"),
    ):
        [chunk] = split_into_chunks(text, speaker.model, TortoiseSettings.of(model=settings))
        assert tokenizer.decode(chunk.tokens) == spoken


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.", 1),
        ("f b i.", 1),
        ("h t m l s.", 5 / 3),
        ("good morning.", 2),
        ("it's five o'clock.", 3),
        ("incomprehensible", 2),
        ("", 1),
        ("!", 1),
    ],
)
def test_the_length_of_a_text_is_counted_in_usual_words(text, words):
    assert spoken_words(text) == pytest.approx(words)
