"""Test log-mel spectrograms, and sound from a mel. tests/parity/test_audio_parity.py compares mels with upstream's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ane.audio.mel import (
    MEL_MAX,
    MEL_MIN,
    conditioning_mel,
    denormalise_mel,
    diffusion_mel,
    griffin_lim,
    mel_filters,
    normalise_mel,
)


@given(samples=st.integers(513, 30000))
def test_a_mel_has_one_frame_per_256_samples_plus_one_and_silence_has_the_lowest_value(samples):
    audio = np.zeros(samples, np.float32)
    for mel, bands in ((conditioning_mel(audio, np.ones(80, np.float32)), 80), (diffusion_mel(audio), 100)):
        assert (mel.shape, mel.dtype) == ((bands, 1 + samples // 256), np.float32)
        assert np.all(mel == np.float32(MEL_MIN))


def test_the_diffusion_mel_clips_its_audio():
    loud = np.random.default_rng(0).uniform(-3, 3, 4096).astype(np.float32)
    np.testing.assert_array_equal(diffusion_mel(loud), diffusion_mel(np.clip(loud, -1, 1)))


@given(npst.arrays(np.float32, (100, 3), elements=st.floats(-1, 1, width=32)))
def test_normalising_undoes_denormalising_which_spans_the_range_of_the_logarithms(mel):
    back = normalise_mel(denormalise_mel(mel))
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, mel, atol=2e-6)
    np.testing.assert_allclose(denormalise_mel(np.array([-1.0, 1.0])), [MEL_MIN, MEL_MAX])


RATE, HIGH = 22050, 8000.0


def mel_of(audio: np.ndarray) -> np.ndarray:
    """The mel of FastSpeech's training: (80, L) for 256·L samples."""
    padded = np.pad(audio.astype(np.float64), 384)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 1024)[::256] * np.hanning(1025)[:-1]
    return np.log(np.maximum(mel_filters(RATE, 80, HIGH, "slaney") @ np.abs(np.fft.rfft(windows)).T, 1e-5))


def tones(samples: int = 256 * 60) -> np.ndarray:
    time = np.arange(samples) / RATE
    return 0.3 * np.sin(2 * np.pi * 440 * time) + 0.1 * np.sin(2 * np.pi * 1320 * time)


def test_a_tone_keeps_its_pitch_and_loudness_and_its_mel():
    mel = mel_of(tones())
    audio = griffin_lim(mel.astype(np.float32), RATE, HIGH)
    assert (audio.shape, audio.dtype) == ((256 * mel.shape[1],), np.float32)
    middle = audio[4096:-4096]
    peak = np.abs(np.fft.rfft(middle * np.hanning(len(middle)))).argmax() * RATE / len(middle)
    assert peak == pytest.approx(440, abs=15)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(np.sqrt(np.mean(tones() ** 2)), rel=0.25)
    loud = mel > mel.max() - 4
    assert np.abs(mel_of(audio) - mel)[loud].mean() < 0.5


def test_more_iterations_come_nearer():
    mel = mel_of(np.random.default_rng(0).standard_normal(256 * 40) * 0.1)
    errors = [
        np.abs(np.exp(mel_of(griffin_lim(mel, RATE, HIGH, iterations))) - np.exp(mel)).mean() for iterations in (0, 32)
    ]
    assert errors[1] < 0.8 * errors[0]


def test_very_short_mels_give_sound_and_loud_ones_stay_within_one():
    for frames in (0, 1, 2):
        assert griffin_lim(np.zeros((80, frames), np.float32), RATE, HIGH).shape == (256 * frames,)
    assert np.abs(griffin_lim(np.full((80, 20), 3.0, np.float32), RATE, HIGH)).max() == pytest.approx(1)
