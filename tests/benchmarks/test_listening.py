"""What the quality benchmark measures of sound is right; and the embedded voice can be understood."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ane
from ane.models.tortoise.settings import SAMPLE_RATE
from benchmarks.listening import Wave, edits, words
from tests.recogniser import Recogniser

TEXT = st.lists(st.sampled_from("abcd"), max_size=8)


def buzz(pitch: float, seconds: float = 0.6, rate: int = SAMPLE_RATE) -> np.ndarray:
    """Harmonics that fall off as those of a voice."""
    time = np.arange(int(seconds * rate)) / rate
    return sum(0.2 / k * np.sin(2 * np.pi * k * pitch * time) for k in range(1, 12)).astype(np.float32)


@given(TEXT, TEXT, TEXT)
def test_edits_are_a_distance(a, b, c):
    assert edits(a, b) == edits(b, a)
    assert (edits(a, b) == 0) == (a == b)
    assert edits(a, c) <= edits(a, b) + edits(b, c)
    assert abs(len(a) - len(b)) <= edits(a, b) <= max(len(a), len(b))


@pytest.mark.parametrize("pitch", [85, 105, 172, 240])
def test_pitch_of_a_buzz_is_its_lowest_harmonic(pitch):
    wave = Wave.of(buzz(pitch), SAMPLE_RATE)
    assert wave.f0 == pytest.approx(pitch, rel=0.02)
    assert wave.f0_spread < 0.5
    assert np.isnan(Wave.of(np.zeros(SAMPLE_RATE, np.float32), SAMPLE_RATE).f0)


def test_defects_of_a_wave_are_counted():
    good = buzz(110)
    wave = Wave.of(np.concatenate((good, np.zeros(SAMPLE_RATE // 2, np.float32))), SAMPLE_RATE)
    assert wave.silent_end == pytest.approx(0.5, abs=0.02)
    assert (wave.clicks, wave.finite) == (0, True)
    broken = 0.3 * good
    broken[5000], broken[9000] = 0.99, np.nan
    assert Wave.of(broken, SAMPLE_RATE).clicks >= 1
    assert not Wave.of(broken, SAMPLE_RATE).finite
    quiet = good * np.linspace(0, 0.05, len(good), dtype=np.float32)        # a click in quiet speech counts too
    quiet[6000] = 0.9
    assert (Wave.of(3 * good, SAMPLE_RATE).clicks, Wave.of(quiet, SAMPLE_RATE).clicks >= 1) == (0, True)
    louder, usual = (Wave.of(gain * good, SAMPLE_RATE).loudness for gain in (2, 1))
    assert louder - usual == pytest.approx(6.02, abs=0.01)


SENTENCES = ("She opened the window to let in some fresh air.", "The dog was sleeping in front of the fire.",
             "We need to find out who is behind all of this.", "The water in the lake is clear and very cold.",
             "He has worked as a doctor in this town for many years.", "I heard the news on the radio this morning.")


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser(SENTENCES)


@pytest.mark.parametrize("preset", ["fastest", "1x10", "ultra_fast"])
def test_the_embedded_voice_is_understood(recogniser, preset):
    synthesizer = ane.load("demo", threads=1)
    errors = count = chosen = 0
    for seed, sentence in enumerate(SENTENCES):
        speech = synthesizer.speak(sentence, preset=preset, seed=seed)
        assert not speech.notes
        transcript = recogniser.transcribe(speech.audio, SAMPLE_RATE)
        errors, count = errors + edits(words(sentence), words(transcript)), count + len(words(sentence))
        chosen += recogniser.chosen(speech.audio, SAMPLE_RATE) == " ".join(words(sentence))
    assert chosen == len(SENTENCES)
    assert errors / count < 0.4
