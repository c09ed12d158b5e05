"""Silence at the ends is removed however the sound is divided into pieces; the sound itself does not change."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ane
from ane.audio.trimming import FADE, FRAME, QUIET, RATE, Trimmer, trimmed
from ane.models.tortoise.settings import Settings
from benchmarks.listening import Wave

# runs of (samples, loudness): silent, barely silent, barely loud, loud
RUNS = st.lists(st.tuples(st.integers(1, 3000), st.sampled_from((0.0, 0.9 * QUIET, 1.2 * QUIET, 0.3))), max_size=8)
ENDS = st.tuples(st.floats(0.001, 0.1), st.floats(0.001, 0.1))
CUTS = st.lists(st.floats(0, 1), max_size=6)


def sound(runs: list[tuple[int, float]]) -> np.ndarray:
    """Concatenate runs of a loudness; each sample has a value of its own."""
    loudness = np.concatenate([np.full(count, level) for count, level in runs] or [np.empty(0)])
    values = np.random.default_rng(0).uniform(0.99, 1.01, len(loudness)) * np.where(np.arange(len(loudness)) % 2, 1, -1)
    return (loudness * values).astype(np.float32)


def loud_frames(audio: np.ndarray) -> np.ndarray:
    return np.array([(audio[at:at + FRAME] ** 2).mean() > QUIET ** 2 for at in range(0, len(audio), FRAME)], bool)


@given(RUNS, ENDS, CUTS)
def test_the_output_does_not_depend_on_the_pieces(runs, ends, cuts):
    audio = sound(runs)
    trimmer = Trimmer(*ends)
    pieces = [trimmer.feed(piece) for piece in np.split(audio, sorted(int(cut * len(audio)) for cut in cuts))]
    np.testing.assert_array_equal(np.concatenate((*pieces, trimmer.finish())), trimmed(audio, ends))


@given(RUNS, ENDS)
def test_sound_is_kept_with_the_given_silence_around_it(runs, ends):
    audio, (lead, tail) = sound(runs), (round(seconds * RATE) for seconds in ends)
    original = audio.copy()
    kept, loud = trimmed(audio, ends), np.flatnonzero(loud_frames(audio))
    np.testing.assert_array_equal(audio, original)
    if not len(loud):
        assert len(kept) == min(len(audio), lead)
        return
    first, last = loud[0] * FRAME, min((loud[-1] + 1) * FRAME, len(audio))
    start, end = max(0, first - lead), min(last + tail, len(audio))
    assert len(kept) == end - start
    np.testing.assert_array_equal(kept[first - start:last - start], audio[first:last])
    assert (np.abs(kept) <= np.abs(audio[start:end])).all()
    if start == 0 and end == len(audio):
        np.testing.assert_array_equal(kept, audio)


@given(RUNS, st.integers(60, 5000))
def test_sound_is_returned_at_once_and_only_silence_is_held_back(runs, size):
    audio, trimmer, passed, fed = sound(runs), Trimmer(0.05, 0.05), 0, 0
    loud = loud_frames(audio)
    for piece in np.split(audio, range(size, len(audio), size)):
        fed += len(piece)
        passed += len(trimmer.feed(piece))
        loud_so_far = np.flatnonzero(loud[:fed // FRAME])
        dropped = max(0, np.flatnonzero(loud)[0] * FRAME - round(0.05 * RATE)) if len(loud_so_far) else 0
        assert passed == (((loud_so_far[-1] + 1) * FRAME - dropped) if len(loud_so_far) else 0)


def test_a_cut_fades():
    hum = np.full(4800, 0.9 * QUIET, np.float32)
    kept = trimmed(np.concatenate((hum, np.full(2400, 0.3, np.float32), hum)), (0.05, 0.05))
    assert len(kept) == 2 * 1200 + 2400
    for edge in (kept[:FADE], kept[::-1][:FADE]):
        assert edge[0] < 0.01 * QUIET
        assert (np.diff(edge) > 0).all()


def test_silence_of_exactly_the_lead_is_kept_without_a_fade():
    hum, trimmer = np.full(2400, 0.9 * QUIET, np.float32), Trimmer(0.1, 0.1)
    pieces = trimmer.feed(hum), trimmer.feed(np.full(2400, 0.3, np.float32)), trimmer.finish()
    np.testing.assert_array_equal(np.concatenate(pieces)[:2400], hum)


def test_ends_are_in_seconds_of_24_kilohertz():
    assert len(trimmed(np.concatenate((np.zeros(60000, np.float32), np.ones(240, np.float32))), (2.0, 0.1))) == 48240


@pytest.mark.parametrize("index", [0, 100, 2400, 4799])
def test_nan_is_not_silence(index):
    audio = np.zeros(4800, np.float32)
    audio[index] = np.nan
    kept = trimmed(audio, (0.01, 0.01))
    assert np.isnan(kept).sum() == 1
    trimmer = Trimmer(0.01, 0.01)
    pieces = [trimmer.feed(piece) for piece in np.split(audio, 7 * np.arange(1, 680))]
    np.testing.assert_array_equal(np.concatenate((*pieces, trimmer.finish())), kept)


@pytest.mark.parametrize(("level", "silent"), [(0.999 * QUIET, True), (1.001 * QUIET, False)])
def test_a_frame_below_minus_45_decibels_is_silent(level, silent):
    audio = np.full(4800, level, np.float32)
    assert len(trimmed(audio, (0.01, 0.01))) == (240 if silent else 4800)


@pytest.mark.parametrize("ends", [(0, 0.1), (0.1, 0), (-1, 0.1)])
def test_at_least_a_sample_of_silence_is_kept(ends):
    with pytest.raises(ValueError, match="must be at least a sample"):
        Trimmer(*ends)


@pytest.mark.parametrize(("voice", "text", "seed"), [
    ("rms", "The company will announce the results next month.", 21),
    ("slt", "The judge asked the woman to tell the truth.", 70)])
def test_the_embedded_voice_ends_within_three_tenths_of_a_second_of_its_last_sound(voice, text, seed, tmp_path,
                                                                                  monkeypatch):
    """Sentences after which its vocoder gives 0.4 s of silence."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    synthesizer = ane.load("demo")
    settings = Settings.of("ultra_fast", synthesizer.model.settings)
    whole = synthesizer.speak(text, voice, seed=seed, settings=replace(settings, silence=None))
    speech = synthesizer.speak(text, voice, seed=seed, settings=settings)
    assert Wave.of(speech.audio, speech.sample_rate).silent_end <= 0.3
    np.testing.assert_array_equal(speech.audio, trimmed(whole.audio, settings.silence))
