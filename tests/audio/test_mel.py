"""Properties of the mel spectrograms. tests/parity compares their values with upstream's."""

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
