"""Compare reading, resampling and mels with upstream's.

Mels, latents and the last resampling step are equal up to rounding. Resampling from a clip's own rate to 22050 Hz
differs by design: it uses soxr here, and upstream a windowed sinc with a wide transition band. Both must agree in the
band that the mels use. The limits below were chosen from measurements.
"""

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load_file

from ane.audio import read_audio, resample, resample_windowed_sinc
from ane.audio.mel import conditioning_mel, diffusion_mel
from ane.backends import load_backend
from ane.models.tortoise.checkpoints import packaged_file
from ane.models.tortoise.voices import CONDITIONING_SAMPLES, DIFFUSION_SAMPLES, conditioning_window, encode_clips
from ane.system.decibels import snr_db


class FixedStart:
    """A generator that returns the start of the golden crop."""

    def __init__(self, start: int):
        self.start = start

    def integers(self, low: int, high: int) -> int:
        assert low == 0
        assert 0 <= self.start < high
        return self.start


@pytest.fixture(scope="module")
def audio(golden):
    return load_file(golden / "stages" / "audio.safetensors")


@pytest.fixture(scope="module")
def mel_norms():
    return load_file(packaged_file("mel_norms.safetensors"))["mel_norms"]


@pytest.fixture
def assert_mel(audio, tolerance):
    """``assert_mel(mel, name)``: a mel (M, L) of a clip is the golden one."""

    def check(mel: np.ndarray, name: str) -> None:
        assert mel.shape == audio[name][0].shape
        assert np.abs(mel - audio[name][0]).max() <= tolerance("audio", name)

    return check


@pytest.mark.parametrize("clip", [1, 2])
def test_the_conditioning_mel_is_upstreams(audio, mel_norms, assert_mel, clip):
    window = conditioning_window(clip_at_22050(audio, clip), FixedStart(int(audio["crop_start"][clip - 1])))
    assert window.shape == (CONDITIONING_SAMPLES,)
    assert_mel(conditioning_mel(window, mel_norms), f"ar_mel_clip{clip}")


@pytest.mark.parametrize("clip", [1, 2])
def test_the_resampler_to_24_khz_and_the_diffusion_mel_are_upstreams(audio, assert_mel, clip):
    samples = resample_windowed_sinc(clip_at_22050(audio, clip), 22050, 24000)[:DIFFUSION_SAMPLES]
    if clip == 2:
        assert np.abs(samples[:8000] - audio["clip2_24000_head"][0]).max() < 1e-6
    assert_mel(diffusion_mel(np.pad(samples, (0, DIFFUSION_SAMPLES - len(samples)))), f"diffusion_mel_clip{clip}")


def test_halving_the_rate_agrees_with_upstream_below_8_khz(audio):
    ours, upstream = resample(clip1_at_44100(audio), 44100, 22050), audio["clip1_22050"][0]
    assert ours.shape == upstream.shape
    assert snr_db(below(upstream, 22050, 8000), below(ours, 22050, 8000)) > 45  # measured 62.7
    assert snr_db(upstream, ours) > 15  # measured 28.0


def test_resampled_clips_give_nearly_upstreams_conditioning_mel(audio, mel_norms):
    samples = resample(clip1_at_44100(audio), 44100, 22050)
    mel = conditioning_mel(conditioning_window(samples, FixedStart(0)), mel_norms)
    # the mean was measured as 7.7e-5, the maximum as 3.3e-3
    assert np.abs(mel - audio["ar_mel_clip1"][0]).mean() < 2e-3


def test_a_file_at_the_models_rate_is_read_exactly_as_upstream_does(golden, audio, tmp_path):
    stereo, rate = soundfile.read(golden / "audio" / "stereo16_22050.wav", dtype="int16")
    soundfile.write(tmp_path / "left.wav", stereo[:, 0], rate)  # upstream keeps the first channel, and we average all
    left, _ = read_audio(tmp_path / "left.wav")
    np.testing.assert_array_equal(resample(left, rate, 22050), audio["load_stereo16_22050"][0])
    both, _ = read_audio(golden / "audio" / "stereo16_22050.wav")
    np.testing.assert_allclose(both, stereo.mean(axis=1) / 2**15, atol=1e-7)


@pytest.mark.parametrize("name", ["mono16_48000", "float32_24000", "mono32_16000", "mono24_44100"])
def test_every_sample_format_is_read_at_upstreams_scale(golden, audio, name):
    samples, rate = read_audio(golden / "audio" / f"{name}.wav")
    assert rate == int(name[-5:])
    upstream = audio[f"load_{name}"][0]
    ours = resample(samples, rate, 22050)
    assert abs(len(ours) - len(upstream)) <= 1  # soxr rounds the length to the nearest, and upstream rounds it up
    length = min(len(ours), len(upstream))
    # measured as 29.1, 23.8, 22.1 and 26.8. The clips are short buzzes, whose edges differ
    assert snr_db(upstream[:length], ours[:length]) > 15
    assert np.abs(ours).max() <= 1.0
    overdriven = np.abs(samples).max() > 1.1
    assert overdriven == (name == "float32_24000")
    if overdriven:  # clips the sound as upstream does
        assert np.abs(ours).max() == np.abs(upstream).max() == 1.0


@pytest.mark.parametrize("clips", [(1,), (1, 2)])
def test_latents_of_clips_at_22050_hz_are_upstreams(audio, encode, golden_stage, tolerance, clips):
    voice = encode([(clip_at_22050(audio, clip), 22050) for clip in clips])
    for latent, name in ((voice.ar, "ar_latent"), (voice.diffusion, "diffusion_latent")):
        name = "_".join((name, *(f"clip{clip}" for clip in clips)))
        assert np.abs(latent - golden_stage("conditioning")[name]).max() <= tolerance("conditioning", name)


def test_the_latents_of_a_clip_at_another_rate_are_close_to_upstreams(audio, encode, golden_stage):
    """44.1 kHz to 22.05 kHz by soxr here, by a windowed sinc upstream."""
    voice, stage = encode([(clip1_at_44100(audio), 44100)]), golden_stage("conditioning")
    assert snr_db(stage["ar_latent_clip1"], voice.ar) > 40  # measured 69.0
    assert snr_db(stage["diffusion_latent_clip1"], voice.diffusion) > 25  # measured 35.0


@pytest.fixture
def encode(golden_model, audio):
    """``encode(clips)``: the voice of these clips, the second one cropped where the golden set crops it."""
    start = FixedStart(int(audio["crop_start"][1]))  # clip 1 is too short to draw a start from
    return lambda clips: encode_clips(clips, load_backend("torch:cpu", golden_model), golden_model.mel_norms, start)


def clip1_at_44100(audio: dict[str, np.ndarray]) -> np.ndarray:
    return audio["clip1_44100_int16"].astype(np.float32) / 2**15


def clip_at_22050(audio: dict[str, np.ndarray], clip: int) -> np.ndarray:
    return audio["clip1_22050"][0] if clip == 1 else audio["clip2_22050_int16"].astype(np.float32) / 2**15


def below(audio: np.ndarray, rate: int, hertz: float) -> np.ndarray:
    """The part of audio (S,) below a frequency, by an ideal low-pass filter."""
    spectrum = np.fft.rfft(audio.astype(np.float64))
    spectrum[np.fft.rfftfreq(len(audio), 1 / rate) > hertz] = 0
    return np.fft.irfft(spectrum, len(audio))
