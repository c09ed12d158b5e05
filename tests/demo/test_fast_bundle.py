"""The fast embedded bundle: size, contents, and the sound of its voice."""

import numpy as np
import pytest

import ane
from ane.bundles import demo_bundle
from ane.models.fastspeech.stages import HOP, SAMPLE_RATE
from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer
from benchmarks.listening import Wave
from training.fast_recipe import FAST_CONFIGS

TEXT = "The children were playing in the park with their friends, and the sun was shining."


@pytest.fixture(scope="module")
def synthesizer() -> FastSpeechSynthesizer:
    return ane.load("demo-fast", "torch")


def test_the_bundle_has_at_most_8_megabytes_with_card_and_pictures():
    files = [path for path in demo_bundle("demo-fast").rglob("*") if path.is_file()]
    assert {"MODEL.md", "curves.jpg"} <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) <= 8_000_000


def test_its_networks_are_those_of_the_recipe(synthesizer):
    model = synthesizer.model
    assert model.networks == set(FAST_CONFIGS)
    assert all(model.config(name) == config for name, config in FAST_CONFIGS.items())
    assert (model.trained, model.precision, model.voices) == (True, "fp16", None)


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_it_speaks_at_every_speed_without_clicks_or_long_silence(synthesizer, speed):
    """The teacher's median pitch is 103 Hz; this voice is lower, as its card says."""
    speech = synthesizer.speak(TEXT, speed=speed)
    wave = Wave.of(speech.audio, SAMPLE_RATE)
    assert not speech.notes
    assert 80 < wave.f0 < 118
    assert wave.finite
    assert wave.clicks == 0
    assert np.abs(speech.audio[:200]).max() < 0.03      # no click at the start
    assert wave.silent_end <= 0.3
    assert wave.loudness == pytest.approx(-24, abs=3)


def test_the_speed_changes_the_length_as_asked(synthesizer):
    slow, usual, fast = (len(synthesizer.speak(TEXT, speed=speed).audio) for speed in (0.5, 1.0, 2.0))
    assert 4 < usual / SAMPLE_RATE < 7
    assert slow == pytest.approx(2 * usual, rel=0.02)
    assert fast == pytest.approx(usual / 2, rel=0.06), "whole frames"


def test_silent_letters_take_no_time_and_marks_pause(synthesizer):
    spoken = synthesizer.speak("the knight, though, writes.").durations[0]
    frames = dict(enumerate(spoken.tolist()))
    assert frames[4] <= 1, "the k of knight"
    assert frames[10] > 5, "the first comma"


def test_letters_and_phonemes_of_a_word_take_about_as_long(synthesizer):
    letters, phonemes = (synthesizer.speak(f"it is a {word} of the time.").durations[0].sum()
                         for word in ("matter", "{M AE1 T ER0}"))
    assert letters == pytest.approx(phonemes, rel=0.1)


def test_a_long_text_without_marks_is_spoken_in_passes_no_longer_than_it_was_trained_on(synthesizer):
    speech = synthesizer.speak("one and two and three and " * 30, speed=0.5)
    assert max(mel.shape[1] for mel in speech.mels) <= synthesizer.most_frames
    assert len(speech.audio) > 60 * SAMPLE_RATE


def test_a_stream_begins_with_a_short_piece(synthesizer):
    with_stream = synthesizer.stream(TEXT)
    assert len(next(with_stream)) < 0.5 * SAMPLE_RATE
    with_stream.close()
    assert synthesizer.speak(TEXT).audio.size % HOP == 0
