"""Resampling."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ane.audio import resample
from tests.audio.waves import RATE, tone


@given(source=st.sampled_from([8000, 11025, 16000, 22050, 44100, 48000, 96000]),
       target=st.sampled_from([16000, 22050, 24000]), seconds=st.floats(0.5, 1.5))
def test_resampling_keeps_the_duration_and_the_tone(source, target, seconds):
    audio = resample(tone(seconds, source), source, target)
    assert audio.dtype == np.float32
    assert abs(len(audio) - round(seconds * source) * target / source) <= 1
    middle = slice(target // 10, len(audio) - target // 10)
    np.testing.assert_allclose(audio[middle], tone(seconds + 0.1, target)[:len(audio)][middle], atol=2e-4)


def test_resampling_clips_to_full_scale():
    assert np.abs(resample(tone(peak=1.5), RATE, 24000)).max() == 1.0
    np.testing.assert_array_equal(resample(tone(peak=1.5), RATE, RATE), np.clip(tone(peak=1.5), -1, 1))
