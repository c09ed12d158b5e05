"""What the recogniser finds in speech that says what it should, and in speech that does not."""

import numpy as np
import pytest

import ane
from ane.audio.trimming import trimmed
from ane.books.checking.judging import misfits
from ane.books.checking.recognisers import TextAligner

TEXT = "She asked her brother to help with the dishes after dinner."
RATE = 24000


@pytest.fixture(scope="module")
def recogniser() -> TextAligner:
    pytest.importorskip("pocketsphinx")
    return TextAligner()


@pytest.fixture(scope="module")
def synthesizer():
    return ane.load("demo", keep=True)


def judged(recogniser, synthesizer, text: str, spoken: str) -> list[str]:
    sound = trimmed(synthesizer.speak(spoken, preset="fastest", seed=1).audio, (0.05, 0.05))
    return [problem.what for problem in misfits(recogniser.fit(text, sound, RATE), sound, RATE, -20.0)]


def test_speech_of_the_text_fits(recogniser, synthesizer):
    assert judged(recogniser, synthesizer, TEXT, TEXT) == []


@pytest.mark.parametrize("spoken", [
    "She asked her brother to help with the after dinner.",
    "She asked her brother asked her brother to help with the dishes after dinner.",
    "She asked her brother to help with the dishes after dinner bakedo nutiga vo.",
    "They have lived in the same house for more than twenty years."])
def test_words_that_are_dropped_added_or_others_are_found(recogniser, synthesizer, spoken):
    assert judged(recogniser, synthesizer, TEXT, spoken)


def test_a_word_that_is_in_no_dictionary_does_not_make_a_chunk_suspect(recogniser, synthesizer):
    text = "She asked Brzezwicz to help with the dishes after dinner."
    assert judged(recogniser, synthesizer, text, text) == []


def test_a_result_depends_on_no_other_sound(recogniser, synthesizer):
    sound = synthesizer.speak(TEXT, preset="fastest", seed=1).audio
    before = recogniser.fit(TEXT, sound, RATE)
    recogniser.fit("Something else.", np.random.default_rng(0).standard_normal(RATE).astype(np.float32), RATE)
    assert recogniser.fit(TEXT, sound, RATE) == before


@pytest.mark.parametrize(("spoken", "left_out"), [(TEXT, []), (TEXT.replace("her ", ""), ["her"])])
def test_a_short_word_that_is_missing_is_named(recogniser, synthesizer, spoken, left_out):
    sound = trimmed(synthesizer.speak(spoken, preset="fastest", seed=1).audio, (0.05, 0.05))
    assert recogniser.left_out(TEXT, sound, RATE) == left_out
    assert "brzezwicz" not in recogniser.left_out(f"Brzezwicz, {TEXT}", sound, RATE)
