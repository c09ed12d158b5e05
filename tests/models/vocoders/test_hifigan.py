"""Test HiFi-GAN, the use of a vocoder on frames in windows, and sound made of harmonics and noise."""

import dataclasses
import json
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ane.backends.base import RowLimit
from ane.backends.windows import FIRST_LENGTHS, LEAST, WHOLE, StreamingWindow, Windowed, call_lengths
from ane.models.fastspeech.networks import NETWORKS
from ane.models.vocoders.checkpoints import HifiganCheckpoint
from ane.models.vocoders.harmonic_noise import BINS, HOP, SAMPLE_RATE, SPECTRA, WINDOW, HarmonicNoise, pulses
from ane.models.vocoders.hifigan import MelHifigan, MelHifiganConfig
from tests.fastspeech_files import V1, V3, hifigan_entries, write_hifigan
from tests.refusals import assert_refused


def plain_hifigan(config: MelHifiganConfig, entries: dict[str, Tensor], mel: Tensor) -> Tensor:
    """jik876's generator with weight norm as it is trained: (B, M, L) → (B, 1, hop·L)."""

    def weights(key: str) -> tuple[Tensor, Tensor]:
        g, v = entries[f"{key}.weight_g"], entries[f"{key}.weight_v"]
        return torch._weight_norm(v, g, 0), entries[f"{key}.bias"]

    def conv(key: str, x: Tensor, dilation: int = 1) -> Tensor:
        weight, bias = weights(key)
        return F.conv1d(x, weight, bias, padding=(weight.shape[2] - 1) * dilation // 2, dilation=dilation)

    def block(key: str, x: Tensor, dilations: tuple[int, ...]) -> Tensor:
        for index, dilation in enumerate(dilations):
            if config.resblock == "1":
                y = conv(f"{key}.convs1.{index}", F.leaky_relu(x, 0.1), dilation)
                x = x + conv(f"{key}.convs2.{index}", F.leaky_relu(y, 0.1))
            else:
                x = x + conv(f"{key}.convs.{index}", F.leaky_relu(x, 0.1), dilation)
        return x

    x, number = conv("conv_pre", mel), 0
    for level, (rate, size) in enumerate(zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True)):
        x = F.conv_transpose1d(F.leaky_relu(x, 0.1), *weights(f"ups.{level}"), stride=rate, padding=(size - rate) // 2)
        total = torch.zeros(())
        for dilations in config.resblock_dilation_sizes:
            total = total + block(f"resblocks.{number}", x, dilations)
            number += 1
        x = total / len(config.resblock_dilation_sizes)
    return torch.tanh(conv("conv_post", F.leaky_relu(x)))


@pytest.mark.parametrize("config", [V1, V3], ids=["V1", "V3"])
def test_it_equals_the_formula(config, tmp_path):
    checkpoint = HifiganCheckpoint(write_hifigan(tmp_path / "g.pth", config), NETWORKS["vocoder"])
    assert checkpoint.config == config, "read from the tensors"
    network = MelHifigan(config).eval().requires_grad_(False)
    network.load_state_dict(checkpoint.tensors())
    mel = torch.randn(2, 80, 11, generator=torch.Generator().manual_seed(1))
    audio = network(mel)
    assert audio.shape == (2, 1, 11 * 256)
    torch.testing.assert_close(audio, plain_hifigan(config, hifigan_entries(config), mel), atol=1e-5, rtol=0)


@pytest.mark.parametrize("config", [V1, V3], ids=["V1", "V3"])
def test_a_window_with_its_margin_sounds_like_the_whole(config):
    torch.manual_seed(0)
    network = MelHifigan(config).eval().requires_grad_(False)
    mel = torch.randn(1, 80, 3 * config.margin + 8)
    window = network(mel[..., config.margin :])
    torch.testing.assert_close(
        window[..., config.margin * 256 :], network(mel)[..., 2 * config.margin * 256 :], atol=1e-5, rtol=0
    )


def nested(key: str) -> str:
    """NVIDIA's name: resblocks.LEVEL.BLOCK in place of resblocks.NUMBER."""
    parts = key.split(".")
    return ".".join([parts[0], *map(str, divmod(int(parts[1]), 3)), *parts[2:]]) if parts[0] == "resblocks" else key


def test_nvidias_names_and_kernels(tmp_path):
    entries = {
        f"module.{nested(key)}": value[..., None] if value.ndim == 3 and key.endswith("_v") else value
        for key, value in hifigan_entries().items()
    }
    torch.save({"generator": entries, "epoch": 3, "optim_g": {}}, tmp_path / "nvidia.pth")
    write_hifigan(tmp_path / "plain.pth")
    found, plain = (HifiganCheckpoint(tmp_path / name, NETWORKS["vocoder"]) for name in ("nvidia.pth", "plain.pth"))
    assert found.config == V1
    assert (found.unused, list(found.beside)) == ([], ["epoch", "optim_g"])
    for key, tensor in plain.tensors().items():
        assert torch.equal(found.tensors()[key], tensor)


def test_sizes_that_config_json_states(tmp_path):
    config = MelHifiganConfig(
        upsample_rates=(4, 8, 8),
        upsample_kernel_sizes=(8, 16, 16),
        upsample_initial_channel=16,
        resblock_kernel_sizes=(5,),
        resblock_dilation_sizes=((1, 2),),
    )
    path = write_hifigan(tmp_path / "g.pth", config)
    assert_refused("no official version has blocks", lambda: HifiganCheckpoint(path, NETWORKS["vocoder"]))
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(config) | {"sampling_rate": 22050}))
    assert HifiganCheckpoint(path, NETWORKS["vocoder"]).config == config


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sampling_rate": 44100}, "sampling_rate is 44100, but FastSpeech's mels need 22050"),
        ({"hop_size": 512}, "hop_size is 512"),
        ({"upsample_rates": [8, 8, 2, 4]}, "makes 512 samples per frame"),
        ({"upsample_rates": "8,8"}, "upsample_rates must be like"),
        ({"resblock": "3"}, "resblock must be 1 or 2"),
        ({"upsample_rates": [8, 8]}, "do not fit together"),
        ({"resblock_kernel_sizes": [3]}, "differ in length"),
        ({"upsample_rates": [8, 8, 1, 4]}, "must be upsample_rates plus an even"),
        ({"upsample_initial_channel": 64}, "the network has"),
        ({"resblock_dilation_sizes": [[0], [1], [1]]}, "must be like"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(tmp_path, change, fault):
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(V1) | change))
    assert_refused(fault, lambda: HifiganCheckpoint(write_hifigan(tmp_path / "g.pth"), NETWORKS["vocoder"]))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ([1], "contains a list"),
        ({}, "it has no conv_pre.weight"),
        ({"generator": 3}, "it has no conv_pre.weight"),
        ({"mpd": {}, "msd": {}}, "it has no conv_pre.weight"),
        ({"conv_pre.weight": torch.zeros(4, 80, 7)}, "makes 1 samples per frame|do not fit together"),
        (
            {"generator": {key: value for key, value in hifigan_entries().items() if key != "conv_post.bias"}},
            r"key conv_post\.bias is missing",
        ),
    ],
)
def test_something_else_is_refused(tmp_path, content, fault):
    torch.save(content, tmp_path / "g.pth")
    assert_refused(fault, lambda: HifiganCheckpoint(tmp_path / "g.pth", NETWORKS["vocoder"]))


WAVE_HOP = 4


@pytest.mark.parametrize(
    ("length", "first", "expected"),
    [
        (178, (), [128, 96]),
        (178, FIRST_LENGTHS, [60, 160]),
        (190, FIRST_LENGTHS, [80, 160]),
        (256, (), [256]),
        (50, (), [50]),
        (50, FIRST_LENGTHS, [50]),
        (600, (), [256, 224, 224]),
        (600, FIRST_LENGTHS, [60, 224, 224, 224]),
    ],
)
def test_calls_take_few_frames_beyond_those_of_the_sound(length, first, expected):
    assert call_lengths(length, 20, first) == expected
    assert call_lengths(400, 128) == [400], "no call holds the margin"


@given(length=st.integers(1, 3000), margin=st.integers(1, 40), first=st.sampled_from([(), FIRST_LENGTHS]))
def test_calls_have_few_lengths_and_cover_the_sound(length, margin, first):
    lengths = call_lengths(length, margin, first)
    assert sum(lengths) >= length + 2 * margin * (len(lengths) - 1)
    if length >= max(WHOLE[0] + LEAST, 2 * margin + LEAST + 32):
        assert set(lengths) <= {*WHOLE, *first}
        assert lengths[0] in (first or WHOLE)
    assert max(lengths) <= min(length, WHOLE[-1])


def network_of(margin: int, called: list[int]) -> Callable[[np.ndarray], np.ndarray]:
    """A network that reads ``margin`` frames on either side, and zeros beyond the ends."""

    def run(columns: np.ndarray) -> np.ndarray:
        called.append(columns.shape[1])
        return np.repeat(np.convolve(columns[0], np.ones(2 * margin + 1))[margin:-margin], WAVE_HOP)

    return run


def windowed(
    run: Callable[[np.ndarray], np.ndarray], margin: int, limit: RowLimit, window: StreamingWindow | None = None
) -> Windowed:
    return Windowed(SimpleNamespace(row_limit=lambda stage: limit), "vocoder", margin, run, window)


@given(length=st.integers(1, 700), margin=st.integers(1, 40), first=st.sampled_from([(), FIRST_LENGTHS]))
def test_the_pieces_are_those_of_one_call_with_all_frames(length, margin, first):
    called: list[int] = []
    run = network_of(margin, called)
    columns = np.random.default_rng(length).integers(-9, 9, (1, length)).astype(np.float64)
    whole = run(columns)
    called.clear()
    pieces = list(windowed(run, margin, RowLimit()).whole(columns, first))
    assert all(map(len, pieces))
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    if first and length > 100 and margin <= 20:
        assert len(pieces[0]) <= (FIRST_LENGTHS[-1] - margin) * WAVE_HOP
    assert sum(called) <= length + 2 * margin * (len(called) - 1) + max(FIRST_LENGTHS[-1], 32 * len(called))


@pytest.mark.parametrize("window", [None, StreamingWindow(largest=254, growth=2)])
@pytest.mark.parametrize("limit", [RowLimit(), RowLimit(64), RowLimit(62, divides=True)])
@given(length=st.integers(1, 700), margin=st.integers(1, 20), size=st.integers(1, 90))
def test_calls_keep_the_limit_of_an_engine(limit, window, length, margin, size):
    """An engine that divides long calls itself gets one call for frames that are all there."""
    called: list[int] = []
    columns = np.random.default_rng(length).integers(-9, 9, (1, length)).astype(np.float64)
    vocoder = windowed(network_of(margin, called), margin, limit, window)
    pieces = [piece for start in range(0, length, size) for piece in vocoder.feed(columns[:, start : start + size])]
    np.testing.assert_array_equal(np.concatenate([*pieces, *vocoder.finish()]), network_of(margin, [])(columns))
    if limit.divides and window is None:
        assert called == [length]
    else:
        assert max(called) <= (limit.most or 256)


FRAMES = 60
SILENT = -30.0  # logarithm of an inaudible magnitude


def spectra(harmonic: float = SILENT, noise: float = SILENT, frames: int = FRAMES) -> np.ndarray:
    """Frames (L, 5 · 601) with constant magnitudes and no phase; the free part is silent."""
    parts = np.zeros((frames, SPECTRA, BINS), np.float32)
    parts[:, 0], parts[:, 2], parts[:, 3] = harmonic, noise, SILENT
    return parts.reshape(frames, -1)


def sound(f0: np.ndarray, frames: np.ndarray, ends: tuple[int, ...] = (), seed: int = 0) -> np.ndarray:
    vocoder = HarmonicNoise(f0, seed)
    return np.concatenate([vocoder.feed(part) for part in np.split(frames, ends)])


@pytest.mark.parametrize("frames", [1, 2, 3, FRAMES])
def test_a_sound_has_300_samples_a_frame(frames):
    assert len(sound(np.full(frames, 100, np.float32), spectra(-1, -3, frames))) == frames * HOP


@pytest.mark.parametrize("ends", [(1,), (2, 3), (1, 2, 3, 4, 30), tuple(range(1, FRAMES))])
def test_pieces_join_to_the_sound_of_the_whole(ends):
    frames = np.random.default_rng(0).standard_normal((FRAMES, SPECTRA * BINS), dtype=np.float32)
    f0 = np.linspace(20, 300, FRAMES, dtype=np.float32)
    np.testing.assert_array_equal(sound(f0, frames, ends), sound(f0, frames))


def test_the_harmonics_are_multiples_of_the_pitch_below_11_khz():
    made = sound(np.full(FRAMES, 200, np.float32), spectra(harmonic=0))[3000:15000]
    magnitudes = np.abs(np.fft.rfft(made * np.hanning(len(made))))
    frequencies = np.fft.rfftfreq(len(made), 1 / SAMPLE_RATE)
    peaks = frequencies[magnitudes > magnitudes.max() / 10]
    assert np.abs(peaks - 200 * np.round(peaks / 200)).max() <= 2 * frequencies[1]
    assert (peaks.min(), peaks.max()) == (pytest.approx(200, abs=4), pytest.approx(11000, abs=4))


def test_without_voice_there_are_no_pulses_and_noise_depends_on_the_seed():
    unvoiced = np.full(FRAMES, 30, np.float32)
    assert not pulses(unvoiced, 0, FRAMES, 0.0)[0].any()
    first, again, other = (sound(unvoiced, spectra(harmonic=0, noise=-2), seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert np.abs(np.corrcoef(first, other)[0, 1]) < 0.1


def test_the_phase_goes_on_where_the_pulses_are_made_in_parts():
    f0 = np.linspace(90, 250, FRAMES, dtype=np.float32)
    first, pitches = pulses(f0, 0, 7, 0.0)
    rest, _ = pulses(f0, 7, FRAMES - 7, pitches)
    np.testing.assert_array_equal(np.concatenate((first, rest)), pulses(f0, 0, FRAMES, 0.0)[0])


def test_the_noise_is_white_normal_and_as_loud_as_its_magnitude():
    log_magnitude, silence = -2.0, np.full(3000, 30, np.float32)
    made = sound(silence, spectra(noise=log_magnitude, frames=3000))[HOP:-HOP].astype(np.float64)
    power = np.mean(made**2)
    # four overlapping squared Hann windows add up to 1.5
    assert power == pytest.approx(2 * np.exp(2 * log_magnitude) / WINDOW / 1.5, rel=0.02)
    assert np.mean(made**4) / power**2 == pytest.approx(3, abs=0.05)
    spectrum = np.abs(np.fft.rfft(made[: 4096 * (len(made) // 4096)].reshape(-1, 4096) * np.hanning(4096))) ** 2
    bands = spectrum.mean(axis=0)[19:-20].reshape(-1, 15).mean(axis=1)
    assert np.ptp(10 * np.log10(bands)) < 1
