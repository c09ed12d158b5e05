"""The teachers' speech: level and silent ends, pitch, and batches of clips."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.audio.loudness import LoudnessMeter
from ane.system.errors import UserError
from training.pitch import RATE, pitch_of
from training.speech import LOUDNESS, Batches, teacher_of, trim_and_level

TIME = np.arange(RATE) / RATE
TONE = 0.1 * np.sin(2 * np.pi * 200 * TIME).astype(np.float32)


def test_speech_is_equally_loud_with_short_silent_ends():
    quiet = np.concatenate((np.zeros(RATE, np.float32), TONE, np.zeros(2 * RATE, np.float32)))
    ours = trim_and_level(quiet)
    assert len(ours) / RATE == pytest.approx(1.18, abs=0.02)
    np.testing.assert_allclose(ours, trim_and_level(quiet * 3), atol=1e-5)
    meter = LoudnessMeter(RATE)
    meter.feed(ours)
    assert meter.loudness == pytest.approx(LOUDNESS, abs=1.2)      # of a clip this short
    assert len(trim_and_level(np.zeros(RATE, np.float32))) == 0


@pytest.mark.parametrize("hertz", [80.0, 120.0, 210.0, 350.0])
def test_the_pitch_of_a_buzz_is_found_and_noise_and_silence_have_none(hertz):
    buzz = sum(np.sin(2 * np.pi * hertz * n * TIME) / n for n in range(1, 12)).astype(np.float32)
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    found = pitch_of(np.concatenate((0.1 * buzz, 0 * buzz, 0.1 * noise)), 258)
    np.testing.assert_allclose(found[4:80], hertz, rtol=0.02)
    assert (found[92:168] == 0).all()
    assert (found[176:] > 0).mean() < 0.1


def test_an_unknown_teacher_is_refused():
    with pytest.raises(UserError, match="teacher 'nobody'"):
        teacher_of("nobody")


@settings(max_examples=30)
@given(st.lists(st.integers(10, 200), min_size=1, max_size=300), st.integers(0, 5))
def test_an_epoch_contains_every_clip_once(lengths, epoch):
    batches = Batches(lengths, 600, seed=1)
    seen = np.concatenate(batches.epoch(epoch))
    assert sorted(seen) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in batch) < 600 + 200 + max(lengths) for batch in batches.epoch(epoch))
