"""Letters and marks with the times of the phonemes that they stand for."""

import numpy as np
import pytest

from ane.models.fastspeech.text import SYMBOLS, text_to_ids
from tests.training.timed_teacher import ToneTeacher
from training.symbols import NO_SOUND, TeacherLexicon, timed_symbols, with_phonemes
from training.timed_speech import PHONES, TimedClip, timed_clip

WORDS = ["one", "two", "three", "four", "five", "the", "that", "this", "then", "when", "house", "hat", "shoe", "fish",
         "whole", "night", "day", "time", "way", "year"]


@pytest.fixture
def lexicon(monkeypatch) -> TeacherLexicon:
    monkeypatch.setattr("training.symbols.flite_voice", ToneTeacher)
    monkeypatch.setattr("training.symbols.spoken_words", lambda: (WORDS, list(range(1, len(WORDS) + 1))))
    return TeacherLexicon("rms", None)


def clip_of(text: str) -> TimedClip:
    clip = timed_clip(ToneTeacher("rms"), text, 1.0)
    assert clip is not None
    return clip


@pytest.mark.parametrize("text", ["that day, the house; was whole.", "when", "isn't it?", "a well-made hat"])
def test_symbols_are_those_of_the_text_and_fill_the_mel(lexicon, text):
    clip = clip_of(text)
    symbols = timed_symbols(clip, lexicon)
    assert [symbol.id for symbol in symbols] == text_to_ids(text), "as the text is read when it is spoken"
    assert sum(symbol.frames for symbol in symbols) == len(clip.mel)


def test_silent_letters_have_no_frames_and_marks_have_the_pauses(lexicon):
    symbols = timed_symbols(clip_of("the hat, this."), lexicon)
    frames = "".join(f"{SYMBOLS[symbol.id]}{min(symbol.frames, 1)}" for symbol in symbols)
    assert frames == "t1h0e1 0h0a1t1,1 0t1h0i1s1.1"


def test_sounds_name_the_phonemes_of_letters(lexicon):
    symbols = timed_symbols(clip_of("the day"), lexicon)
    names = {number: "+".join(PHONES[phone] for phone in part) for part, number in lexicon.sounds.items()}
    assert [names[symbol.sound] for symbol in symbols if symbol.sound != NO_SOUND] == ["T", "", "EH1", "D", "AE1", "Y"]


def test_words_can_be_given_as_phonemes(lexicon):
    clip = clip_of("that day")
    symbols = timed_symbols(clip, lexicon)
    spelled = with_phonemes(symbols, clip, np.random.default_rng(0), share=1.0)
    names = [SYMBOLS[symbol.id].rstrip("012") for symbol in spelled]
    assert names == ["@T", "@AE", "@T", " ", "@D", "@AE", "@Y"]
    assert sum(symbol.frames for symbol in spelled) == len(clip.mel)
    assert with_phonemes(symbols, clip, np.random.default_rng(0), share=0.0) == symbols
