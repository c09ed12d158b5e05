"""Log-mel spectrograms, and sound from a mel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ane.audio.mel import (
    CONDITIONING_RATE,
    DIFFUSION_RATE,
    MEL_MAX,
    MEL_MIN,
    conditioning_mel,
    denormalise_mel,
    diffusion_mel,
    griffin_lim,
    htk_hertz,
    htk_mel,
    mel_filters,
    normalise_mel,
    slaney_hertz,
    slaney_mel,
)

ONES = np.ones(80, np.float32)
SCALES = {"htk": (htk_mel, htk_hertz), "slaney": (slaney_mel, slaney_hertz)}
FILTERS = [(CONDITIONING_RATE, 80, 8000.0, "htk"), (DIFFUSION_RATE, 100, 12000.0, "slaney")]


@given(samples=st.integers(513, 30000))
def test_a_mel_has_one_frame_per_256_samples_plus_one(samples):
    audio = np.zeros(samples, np.float32)
    assert conditioning_mel(audio, ONES).shape == (80, 1 + samples // 256)
    assert diffusion_mel(audio).shape == (100, 1 + samples // 256)


def test_the_models_input_lengths_give_float32_mels_of_517_and_401_frames():
    conditioning, diffusion = conditioning_mel(np.zeros(132300, np.float32), ONES), diffusion_mel(np.zeros(102400))
    assert (conditioning.shape, conditioning.dtype) == ((80, 517), np.float32)
    assert (diffusion.shape, diffusion.dtype) == ((100, 401), np.float32)


def test_silence_has_the_lowest_value():
    assert np.all(diffusion_mel(np.zeros(4096, np.float32)) == np.float32(MEL_MIN))
    assert np.all(conditioning_mel(np.zeros(4096, np.float32), ONES) == np.float32(MEL_MIN))


def test_each_band_of_the_conditioning_mel_is_divided_by_its_norm():
    audio = np.random.default_rng(0).uniform(-0.5, 0.5, 8192).astype(np.float32)
    norms = np.linspace(-9.0, -1.0, 80).astype(np.float32)
    expected = conditioning_mel(audio, ONES) / norms[:, None]
    np.testing.assert_allclose(conditioning_mel(audio, norms), expected, rtol=1e-6)


def test_the_conditioning_mel_is_of_power_and_the_diffusion_mel_of_magnitude():
    audio = np.random.default_rng(0).uniform(-0.1, 0.1, 8192).astype(np.float32)
    gain = np.log(2.0)
    np.testing.assert_allclose(diffusion_mel(2 * audio) - diffusion_mel(audio), gain, atol=1e-5)
    np.testing.assert_allclose(conditioning_mel(2 * audio, ONES) - conditioning_mel(audio, ONES), 2 * gain, atol=1e-5)


def test_the_diffusion_mel_clips_its_audio():
    loud = np.random.default_rng(0).uniform(-3, 3, 4096).astype(np.float32)
    np.testing.assert_array_equal(diffusion_mel(loud), diffusion_mel(np.clip(loud, -1, 1)))


@pytest.mark.parametrize("hertz", [300.0, 1000.0, 3100.0, 7000.0])
@pytest.mark.parametrize("scale", ["htk", "slaney"])
def test_a_tone_is_loudest_in_the_band_whose_centre_is_nearest(hertz, scale):
    rate, bands, high, _ = FILTERS[scale == "slaney"]
    audio = np.sin(2 * np.pi * hertz * np.arange(rate) / rate).astype(np.float32)
    mel = conditioning_mel(audio, ONES) if scale == "htk" else diffusion_mel(audio)
    to_mel, to_hertz = SCALES[scale]
    centres = to_hertz(np.linspace(0.0, to_mel(np.float64(high)), bands + 2))[1:-1]
    assert abs(int(mel[:, 40].argmax()) - int(np.abs(centres - hertz).argmin())) <= 1


@pytest.mark.parametrize("filters", FILTERS, ids=["htk", "slaney"])
def test_wide_filters_have_unit_area(filters):
    bank = mel_filters(*filters)
    area = bank.sum(axis=1) * filters[0] / 1024
    np.testing.assert_allclose(area[-30:], 1.0, rtol=0.01)      # narrow ones are sampled by a bin or two only
    assert bank.min() == 0.0


@pytest.mark.parametrize("filters", FILTERS, ids=["htk", "slaney"])
def test_filters_end_at_their_upper_corner(filters):
    rate, _, high, _ = filters
    passed = np.flatnonzero(mel_filters(*filters).sum(axis=0)) * rate / 1024
    assert 0 < passed[0] <= rate / 1024
    assert high - rate / 1024 <= passed[-1] < high


@pytest.mark.parametrize(("scale", "hertz", "mel"), [
    ("htk", 700.0, 2595 * np.log10(2)), ("htk", 1000.0, 999.9855), ("slaney", 0.0, 0.0), ("slaney", 500.0, 7.5),
    ("slaney", 1000.0, 15.0), ("slaney", 6400.0, 42.0)])
def test_known_points_of_the_scales(scale, hertz, mel):
    assert SCALES[scale][0](np.float64(hertz)) == pytest.approx(mel, abs=1e-3)


@given(scale=st.sampled_from(["htk", "slaney"]), hertz=st.floats(0, 24000))
def test_the_scales_have_inverses(scale, hertz):
    to_mel, to_hertz = SCALES[scale]
    assert to_hertz(to_mel(np.float64(hertz))) == pytest.approx(hertz, rel=1e-9, abs=1e-9)


@given(npst.arrays(np.float32, (100, 3), elements=st.floats(-1, 1, width=32)))
def test_normalising_undoes_denormalising(mel):
    back = normalise_mel(denormalise_mel(mel))
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, mel, atol=2e-6)


def test_the_normalised_range_spans_the_log_range():
    np.testing.assert_allclose(denormalise_mel(np.array([-1.0, 0.0, 1.0])),
                               [MEL_MIN, (MEL_MIN + MEL_MAX) / 2, MEL_MAX])


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
