"""The mel of the fast voice."""

import numpy as np
import pytest

from ane.models.fastspeech.stages import HOP, SAMPLE_RATE
from training.trained_mel import BANDS, trained_mel


@pytest.mark.parametrize("hertz", [200, 1000, 4000])
def test_a_tone_is_in_its_band_in_every_frame(hertz):
    time = np.arange(40 * HOP) / SAMPLE_RATE
    mel = trained_mel((0.5 * np.sin(2 * np.pi * hertz * time)).astype(np.float32))
    assert mel.shape == (BANDS, 40)
    slaney = hertz * 3 / 200 if hertz < 1000 else 15 + np.log(hertz / 1000) * 27 / np.log(6.4)
    top = 15 + np.log(8) * 27 / np.log(6.4)
    assert mel[:, 2:-2].argmax(axis=0) + 1 == pytest.approx(slaney / top * (BANDS + 1), abs=1)


def test_a_frame_is_centred_on_its_own_samples():
    audio = np.zeros(40 * HOP, np.float32)
    audio[20 * HOP + HOP // 2] = 1
    loudness = trained_mel(audio).mean(axis=0)
    assert loudness.argmax() == 20
    assert loudness[19] == pytest.approx(loudness[21], abs=1e-3)


def test_silence_is_the_logarithm_of_the_floor():
    assert trained_mel(np.zeros(8 * HOP, np.float32)) == pytest.approx(np.log(1e-5))
