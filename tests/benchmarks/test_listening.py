"""What the quality benchmark measures of sound is right; and the embedded voice can be understood."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ane
from ane.models.tortoise.settings import SAMPLE_RATE
from benchmarks.listening import Recogniser, Wave, edits, median_pitch, mel_distance, words
from benchmarks.similarity import SpeakerEncoder, similarity_problem
from training.text import held_out_sentences

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
    assert median_pitch(buzz(pitch), SAMPLE_RATE) == pytest.approx(pitch, rel=0.02)
    assert np.isnan(median_pitch(np.zeros(SAMPLE_RATE, np.float32), SAMPLE_RATE))


def test_mels_of_slower_speech_are_near_and_of_another_sound_far():
    rng = np.random.default_rng(0)
    noise = (0.1 * rng.standard_normal(SAMPLE_RATE // 2)).astype(np.float32)
    first = np.concatenate((buzz(110, 0.4), noise))
    slower = np.concatenate((buzz(110, 0.8), noise))
    assert mel_distance(first, first) == 0
    assert mel_distance(first, slower) < 0.5 * mel_distance(first, np.concatenate((noise, buzz(110, 0.4))))


def test_defects_of_a_wave_are_counted():
    good = buzz(110)
    wave = Wave.of(np.concatenate((good, np.zeros(SAMPLE_RATE // 2, np.float32))), SAMPLE_RATE)
    assert wave.silent_end == pytest.approx(0.5, abs=0.02)
    assert (wave.clicks, wave.finite) == (0, True)
    broken = 0.3 * good
    broken[5000], broken[9000] = 0.99, np.nan
    assert Wave.of(broken, SAMPLE_RATE).clicks >= 1
    assert not Wave.of(broken, SAMPLE_RATE).finite
    louder, usual = (Wave.of(gain * good, SAMPLE_RATE).loudness for gain in (2, 1))
    assert louder - usual == pytest.approx(6.02, abs=0.01)


SENTENCES = ("She opened the window to let in some fresh air.", "The dog was sleeping in front of the fire.",
             "We need to find out who is behind all of this.", "The water in the lake is clear and very cold.",
             "He has worked as a doctor in this town for many years.", "I heard the news on the radio this morning.")


@pytest.mark.parametrize("preset", ["fastest", "1x10", "ultra_fast"])
def test_the_embedded_voice_is_understood(preset):
    synthesizer, recogniser = ane.load("demo"), Recogniser(SENTENCES)
    errors = count = chosen = 0
    for seed, sentence in enumerate(SENTENCES):
        speech = synthesizer.speak(sentence, preset=preset, seed=seed)
        assert not speech.notes
        transcript = recogniser.transcribe(speech.audio, SAMPLE_RATE)
        errors, count = errors + edits(words(sentence), words(transcript)), count + len(words(sentence))
        chosen += recogniser.chosen(speech.audio, SAMPLE_RATE) == " ".join(words(sentence))
    assert chosen == len(SENTENCES)
    assert errors / count < 0.4


@pytest.mark.skipif(similarity_problem() is not None, reason=similarity_problem() or "")
def test_a_voice_is_more_like_itself_than_like_another():
    encoder, synthesizer = SpeakerEncoder(), ane.load("demo")
    one, other = ([encoder.embedding(synthesizer.speak(text, voice, "fastest").audio, SAMPLE_RATE)
                   for text in held_out_sentences()[:2]] for voice in ("rms", "slt"))
    assert one[0] @ one[1] > 0.8 > 0.75 > one[0] @ other[0]
