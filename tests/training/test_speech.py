"""The level and the silent ends of the teachers' speech."""

import numpy as np
import pytest

from training.speech import RATE, trim_and_level


def test_speech_is_equally_loud_with_short_silent_ends():
    time = np.arange(RATE) / RATE
    tone = 0.1 * np.sin(2 * np.pi * 200 * time).astype(np.float32)
    quiet = np.concatenate((np.zeros(RATE, np.float32), tone, np.zeros(2 * RATE, np.float32)))
    ours = trim_and_level(quiet)
    assert len(ours) / RATE == pytest.approx(1.18, abs=0.02)
    assert np.sqrt((ours ** 2).mean()) == pytest.approx(np.sqrt((trim_and_level(quiet * 3) ** 2).mean()), rel=0.01)
    assert len(trim_and_level(np.zeros(RATE, np.float32))) == 0
