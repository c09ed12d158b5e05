"""Sound from a mel: its length, its pitch, its mel."""

import numpy as np
import pytest

from ane.audio.mel import griffin_lim, mel_filters

RATE, HIGH = 22050, 8000.0


def mel_of(audio: np.ndarray) -> np.ndarray:
    """The mel of FastSpeech's training: (80, L) for 256·L samples."""
    padded = np.pad(audio.astype(np.float64), 384)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 1024)[::256] * np.hanning(1025)[:-1]
    return np.log(np.maximum(mel_filters(RATE, 80, HIGH, "slaney") @ np.abs(np.fft.rfft(windows)).T, 1e-5))


def tones(samples: int = 256 * 60) -> np.ndarray:
    time = np.arange(samples) / RATE
    return 0.3 * np.sin(2 * np.pi * 440 * time) + 0.1 * np.sin(2 * np.pi * 1320 * time)


def test_a_tone_keeps_its_pitch_and_loudness():
    mel = mel_of(tones())
    audio = griffin_lim(mel.astype(np.float32), RATE, HIGH)
    assert (audio.shape, audio.dtype) == ((256 * mel.shape[1],), np.float32)
    middle = audio[4096:-4096]
    peak = np.abs(np.fft.rfft(middle * np.hanning(len(middle)))).argmax() * RATE / len(middle)
    assert peak == pytest.approx(440, abs=15)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(np.sqrt(np.mean(tones()**2)), rel=0.25)


def test_the_mel_of_the_sound_is_near_the_mel_asked_for():
    mel = mel_of(tones())
    again = mel_of(griffin_lim(mel.astype(np.float32), RATE, HIGH))
    loud = mel > mel.max() - 4
    assert np.abs(again - mel)[loud].mean() < 0.5


def test_more_iterations_come_nearer():
    mel = mel_of(np.random.default_rng(0).standard_normal(256 * 40) * 0.1)
    errors = [np.abs(np.exp(mel_of(griffin_lim(mel, RATE, HIGH, iterations))) - np.exp(mel)).mean()
              for iterations in (0, 32)]
    assert errors[1] < 0.8 * errors[0]


@pytest.mark.parametrize("frames", [0, 1, 2])
def test_very_short_mels(frames):
    assert griffin_lim(np.zeros((80, frames), np.float32), RATE, HIGH).shape == (256 * frames,)


def test_the_sound_stays_within_one():
    audio = griffin_lim(np.full((80, 20), 3.0, np.float32), RATE, HIGH)
    assert np.abs(audio).max() == pytest.approx(1)
