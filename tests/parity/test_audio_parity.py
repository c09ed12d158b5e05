"""Reading, resampling and mels against upstream's.

Mels are equal to rounding. Resampled waveforms differ by design: soxr here, a windowed sinc with a wide transition band
there. What soxr must share with it is the band that the mels hear and upstream passes; the bounds below are measured.
"""

import math

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load_file

from ane.audio import read_audio, resample
from ane.backends import load_backend
from ane.mel import conditioning_mel, diffusion_mel
from ane.model import open_model
from ane.voices.encoding import (
    CONDITIONING_SAMPLES,
    DIFFUSION_SAMPLES,
    conditioning_window,
    diffusion_window,
    encode_clips,
)


class Start:
    """A generator whose one draw is the golden crop's start."""

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
def mel_norms(pytestconfig):
    return load_file(pytestconfig.rootpath / "ane" / "data" / "mel_norms.safetensors")["mel_norms"]


@pytest.mark.parametrize("clip", [1, 2])
def test_the_conditioning_mel_is_upstreams(audio, mel_norms, tolerance, clip):
    window = conditioning_window(clip_at_22050(audio, clip), Start(int(audio["crop_start"][clip - 1])))
    assert window.shape == (CONDITIONING_SAMPLES,)
    mel = conditioning_mel(window, mel_norms)
    expected = audio[f"ar_mel_clip{clip}"][0]
    assert mel.shape == expected.shape
    assert np.abs(mel - expected).max() <= tolerance("audio", f"ar_mel_clip{clip}")


def test_the_reference_resampler_of_this_file_is_upstreams(audio):
    head = windowed_sinc(clip_at_22050(audio, 2), 22050, 24000)[:8000]
    assert np.abs(head - audio["clip2_24000_head"][0]).max() < 1e-6


def test_the_diffusion_mel_of_stored_samples_is_upstreams(audio, tolerance):
    mel = diffusion_mel(audio["clip2_24000_head"][0])
    frames = (8000 - 512) // 256 + 1        # those that do not reach beyond the stored samples
    error = np.abs(mel[:, :frames] - audio["diffusion_mel_clip2"][0][:, :frames])
    assert error.max() <= tolerance("audio", "diffusion_mel_clip2")


@pytest.mark.parametrize("clip", [1, 2])
def test_the_diffusion_mel_is_upstreams(audio, tolerance, clip):
    samples = windowed_sinc(clip_at_22050(audio, clip), 22050, 24000)[:DIFFUSION_SAMPLES]
    mel = diffusion_mel(np.pad(samples, (0, DIFFUSION_SAMPLES - len(samples))))
    expected = audio[f"diffusion_mel_clip{clip}"][0]
    assert mel.shape == expected.shape
    assert np.abs(mel - expected).max() <= tolerance("audio", f"diffusion_mel_clip{clip}")


def test_halving_the_rate_agrees_with_upstream_below_8_khz(audio):
    ours, upstream = resample(clip1_at_44100(audio), 44100, 22050), audio["clip1_22050"][0]
    assert ours.shape == upstream.shape
    assert snr(below(upstream, 22050, 8000), below(ours, 22050, 8000)) > 58     # measured 62.7
    assert snr(upstream, ours) > 27                                             # measured 28.0


def test_the_chain_to_24_khz_agrees_with_upstream_below_8_khz(audio):
    ours = diffusion_window(resample(clip1_at_44100(audio), 44100, 22050))[:76800]
    upstream = windowed_sinc(audio["clip1_22050"][0], 22050, 24000)
    assert ours.shape == upstream.shape
    assert snr(below(upstream, 24000, 8000), below(ours, 24000, 8000)) > 56     # measured 57.8
    assert snr(upstream, ours) > 26                                             # measured 27.4


def test_resampled_clips_give_upstreams_conditioning_mel_nearly(audio, mel_norms):
    samples = resample(clip1_at_44100(audio), 44100, 22050)
    mel = conditioning_mel(conditioning_window(samples, Start(0)), mel_norms)
    assert np.abs(mel - audio["ar_mel_clip1"][0]).mean() < 2e-4      # measured 7.7e-5 (largest 3.3e-3)


def test_a_file_at_the_models_rate_is_read_exactly_as_upstream_does(golden, audio, tmp_path):
    stereo, rate = soundfile.read(golden / "audio" / "stereo16_22050.wav", dtype="int16")
    soundfile.write(tmp_path / "left.wav", stereo[:, 0], rate)      # upstream keeps the first channel, we average
    left, _ = read_audio(tmp_path / "left.wav")
    np.testing.assert_array_equal(resample(left, rate, 22050), audio["load_stereo16_22050"][0])
    both, _ = read_audio(golden / "audio" / "stereo16_22050.wav")
    np.testing.assert_allclose(both, stereo.mean(axis=1) / 2**15, atol=1e-7)


@pytest.mark.parametrize(("name", "bound"), [("mono16_48000", 28), ("float32_24000", 23), ("mono32_16000", 21),
                                             ("mono24_44100", 26)])
def test_every_sample_format_is_read_at_upstreams_scale(golden, audio, name, bound):
    samples, rate = read_audio(golden / "audio" / f"{name}.wav")
    assert rate == int(name[-5:])
    upstream = audio[f"load_{name}"][0]
    ours = resample(samples, rate, 22050)
    assert abs(len(ours) - len(upstream)) <= 1          # soxr rounds the length, upstream rounds it up
    length = min(len(ours), len(upstream))
    assert snr(upstream[:length], ours[:length]) > bound        # measured 29.1, 23.8, 22.1, 26.8: short buzzes, edges
    assert np.abs(ours).max() <= 1.0


def test_overdriven_floats_are_clipped_as_upstream_clips_them(golden, audio):
    samples, rate = read_audio(golden / "audio" / "float32_24000.wav")
    assert np.abs(samples).max() > 1.1
    ours = resample(samples, rate, 22050)
    assert np.abs(ours).max() == np.abs(audio["load_float32_24000"]).max() == 1.0


@pytest.mark.parametrize("clips", [(1,), (1, 2)])
def test_latents_of_clips_at_22050_hz_are_upstreams(golden, golden_checkpoints, golden_config, audio, tolerance, clips):
    """The autoregressive model's to rounding; the diffusion model's as far as the resampler to 24 kHz lets them."""
    model = open_model(checkpoints=golden_checkpoints, config=golden_config)
    samples = [(clip_at_22050(audio, clip), 22050) for clip in clips]
    start = Start(int(audio["crop_start"][1]))          # clip 1 is too short to draw one
    voice = encode_clips(samples, load_backend("torch:cpu", model), model.mel_norms, start)
    stage = load_file(golden / "stages" / "conditioning.safetensors")
    name = "_".join(f"clip{clip}" for clip in clips)
    error = np.abs(voice.ar - stage[f"ar_latent_{name}"]).max()
    assert error <= tolerance("conditioning", f"ar_latent_{name}")
    assert snr(stage[f"diffusion_latent_{name}"], voice.diffusion) > 20         # measured 25.0 and 21.8


def clip1_at_44100(audio: dict[str, np.ndarray]) -> np.ndarray:
    return audio["clip1_44100_int16"].astype(np.float32) / 2**15


def clip_at_22050(audio: dict[str, np.ndarray], clip: int) -> np.ndarray:
    return audio["clip1_22050"][0] if clip == 1 else audio["clip2_22050_int16"].astype(np.float32) / 2**15


def windowed_sinc(audio: np.ndarray, source: int, target: int) -> np.ndarray:
    """Upstream's resampler (torchaudio.functional.resample: Hann-windowed sinc, 6 zero crossings, roll-off 0.99).

    Output sample i lies at i · source / target; the kernel is float32, as there.
    """
    divisor = math.gcd(source, target)
    source, target = source // divisor, target // divisor
    cutoff = min(source, target) * 0.99
    width = math.ceil(6 * source / cutoff)
    taps = np.arange(-width, width + source, dtype=np.float32) / np.float32(source)
    phases = -np.arange(target, dtype=np.float32)[:, None] / np.float32(target)
    time = np.clip((phases + taps) * np.float32(cutoff), -6, 6)
    window = np.cos(time * np.float32(math.pi) / 6 / 2) ** 2
    kernels = np.sinc(time) * window * np.float32(cutoff / source)              # (target, taps)
    padded = np.pad(audio, (width, width + source))
    frames = np.lib.stride_tricks.sliding_window_view(padded, len(taps))[::source]
    return (frames @ kernels.T).reshape(-1)[:math.ceil(len(audio) * target / source)].astype(np.float32)


def below(audio: np.ndarray, rate: int, hertz: float) -> np.ndarray:
    """The part of audio (S,) below a frequency, cut sharply."""
    spectrum = np.fft.rfft(audio.astype(np.float64))
    spectrum[np.fft.rfftfreq(len(audio), 1 / rate) > hertz] = 0
    return np.fft.irfft(spectrum, len(audio))


def snr(signal: np.ndarray, other: np.ndarray) -> float:
    """Decibels of a signal over its difference from another."""
    signal = signal.astype(np.float64)
    return float(10 * np.log10(np.square(signal).sum() / np.square(signal - other).sum()))
