"""The log-mel spectrogram; its numbers are compared with the reference in tests/parity/test_whisper.py."""

import numpy as np
import pytest

from ane.models.whisper import features
from ane.models.whisper.features import RATE, WINDOW_SECONDS, log_mel, pad_or_cut, whisper_filters


def test_blocks_do_not_change_the_result(noise, monkeypatch):
    whole = log_mel(noise, 80, 1600)
    monkeypatch.setattr(features, "BLOCK", 37)
    np.testing.assert_array_equal(log_mel(noise, 80, 1600), whole)


@pytest.mark.parametrize("samples", [0, 1, 159, 160, 161, 5000])
def test_a_frame_for_each_160_samples(noise, samples):
    assert log_mel(noise[:samples], 80, 1600).shape == (80, (samples + 1600) // 160)


def test_a_recording_is_scaled_by_its_own_loudest_value(noise):
    quiet, padding = noise * np.float32(1e-3), WINDOW_SECONDS * RATE
    np.testing.assert_allclose(log_mel(quiet, 80, padding).max() + 6 / 4, log_mel(noise, 80, padding).max(), atol=1e-4)


def test_values_span_at_most_eight_decades(noise):
    mel = log_mel(noise, 80, 16000)
    assert mel.max() - mel.min() == pytest.approx(2.0)


def test_filters_are_shared_and_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        whisper_filters(80)[0, 0] = 1


def test_padding_appends_zeros():
    np.testing.assert_array_equal(pad_or_cut(np.ones((2, 3)), 5)[:, 2:], [[1, 0, 0]] * 2)
    np.testing.assert_array_equal(pad_or_cut(np.ones((2, 3)), 2), np.ones((2, 2)))
