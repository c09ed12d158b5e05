"""Test that packed layers of the denoiser and of CLVP compute what plain layers do, for each utterance separately."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.torch import frame_layers, linear
from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.frame_layers import frame_packing, pack_channels_last
from ane.backends.torch.kernel_frames import has_frame_kernels
from ane.backends.torch.linear import PackedLinear
from ane.models.tortoise.networks.frames import FrameConv
from ane.models.vocoders.convnext import SourceFilterConfig, SourceFilterNetwork
from ane.system.decibels import snr_db
from tests.arrays import assert_equal
from tests.random_model import CONFIGS, random_model

VNNI, AMX = torch.cpu._is_vnni_supported(), torch.cpu._is_amx_tile_supported()
X86 = platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()
AVAILABLE = [
    weights
    for weights, has in (("bf16", torch.cpu._is_avx512_bf16_supported()), ("int8", VNNI or linear.has_fbgemm_int8()))
    if X86 and has
]
pytestmark = pytest.mark.skipif(not AVAILABLE, reason="this CPU has no packed layers")

# without VNNI instructions, int8 rounds activations to 7 bits
LAYER_DB = {"bf16": 45.0, "int8": 38.0 if VNNI else 34.0}  # dB for one layer with random weights
NETWORK_DB = {"bf16": 33.0, "int8": 33.0 if VNNI else 29.0}  # dB for a call of the whole network, compared with float32
CONFIG = CONFIGS["diffusion"]
VOICE = np.random.default_rng(1).standard_normal((1, 2 * CONFIG.model_channels), dtype=np.float32)


@contextmanager
def amx(supported: bool, kernels: bool = False) -> Iterator[None]:
    """Layers are made as on a CPU with AMX or without, by torch or by the package's kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: supported)
        if not kernels:
            patch.setattr(frame_layers, "has_frame_kernels", lambda kind: False)
        yield


def plain_convolution(channels: int, outputs: int) -> FrameConv:
    layer = FrameConv(channels, outputs, 3, padding=1).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


@pytest.mark.parametrize("weights", AVAILABLE)
@pytest.mark.parametrize("frames", [1, 2, 3, 90])
def test_a_packed_convolution_computes_what_the_plain_one_computes(weights, frames):
    plain = plain_convolution(64, 48)
    # nearly all values are positive, as after SiLU, and some frames are louder than others
    x = torch.nn.functional.silu(torch.randn(2, frames, 64, generator=torch.Generator().manual_seed(1)))
    x = x * torch.logspace(-1, 1, frames)[:, None]
    with amx(False):
        packed = frame_packing(weights).layers.convolution(plain.weight, plain.bias)
    actual = packed(x.bfloat16() if weights == "bf16" else x).float()
    assert actual.shape == (2, frames, 48)
    assert snr_db(plain(x), actual) > LAYER_DB[weights]


def denoised(backend: TorchBackend, seeds: list[int], guided: bool = True) -> list[np.ndarray]:
    """The prediction of an utterance for each seed, all in one call."""
    rngs = [np.random.default_rng(seed) for seed in seeds]
    latents = [
        rng.standard_normal((1, 3 + seed, CONFIG.in_latent_channels), dtype=np.float32)
        for seed, rng in zip(seeds, rngs, strict=True)
    ]
    frames = [4 * rows.shape[1] for rows in latents]
    noisy = [rng.standard_normal((1, 100, length), dtype=np.float32) for rng, length in zip(rngs, frames, strict=True)]
    return backend.denoiser(latents, VOICE, frames)(noisy, 700, guided)


@pytest.fixture(
    scope="module",
    params=[
        *AVAILABLE,
        *["bf16, AMX"] * AMX,
        *(f"{kind}, kernels" for kind in ("bf16", "int8") if has_frame_kernels(kind)),
    ],
)
def backend(request) -> TorchBackend:
    weights, _, made_by = request.param.partition(", ")
    with amx(made_by != "", made_by == "kernels"):
        backend = TorchBackend(random_model(), "cpu", weights, keep=True)
        backend.load("diffusion", "clvp")
    return backend


def test_a_packed_denoiser_reaches_its_threshold(backend):
    exact = TorchBackend(random_model(), "cpu", "fp32", keep=True)
    for expected, actual in zip(*(denoised(one, [5, 20], guided=False) for one in (exact, backend)), strict=True):
        assert snr_db(expected, actual) > NETWORK_DB[backend.chosen.name]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=2, max_size=4), st.booleans())
def test_a_packed_denoiser_gives_an_utterance_the_same_bits_beside_others(backend, seeds, guided):
    assert_equal([denoised(backend, [seed], guided)[0] for seed in seeds], denoised(backend, seeds, guided))


def test_a_packed_denoiser_computes_the_same_on_any_number_of_threads(backend):
    outputs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        outputs.append(denoised(backend, [700])[0])  # enough frames that kernels divide an attention
    np.testing.assert_array_equal(*outputs)


def test_a_named_number_of_threads_is_kept_where_bits_depend_on_it(backend, monkeypatch):
    monkeypatch.setattr(backend, "fixed_thread_count", True)
    by_kernels = bool(backend.chosen.frames.layers.blocks)
    for frames, keeps in ((400, not by_kernels), (1024, True)):
        latents = np.zeros((1, frames // 4, CONFIG.in_latent_channels), np.float32)
        assert backend.denoiser([latents], VOICE, [frames]).fixed_thread_count is keeps


def test_a_packed_clvp_reaches_its_threshold_and_ranks_a_candidate_alone_as_beside_others(backend):
    codes = np.random.default_rng(0).integers(0, CONFIGS["clvp"].num_speech_tokens, (8, 60))
    exact = TorchBackend(random_model(), "cpu", "fp32").run("clvp_speech", codes=codes)
    together = backend.run("clvp_speech", codes=codes)
    assert snr_db(exact, together) > NETWORK_DB[backend.chosen.name]
    assert_equal([backend.run("clvp_speech", codes=row[None])[0] for row in codes], together)


@pytest.mark.skipif("int8" not in AVAILABLE, reason="this CPU has no packed layers")
def test_int8_leaves_first_and_last_layers_in_float32():
    with amx(False):
        network = TorchBackend(random_model(), "cpu", "int8").network("diffusion")
    weights = {
        name.partition(".")[0]
        for name, tensor in network.state_dict().items()
        if tensor.ndim > 1 and not tensor.is_meta and "relative" not in name
    }
    assert weights == {*network.ends, "unconditioned_embedding"}
    assert {tensor.dtype for tensor in network.state_dict().values() if not tensor.is_meta} == {torch.float32}


def test_with_amx_torchs_packing_for_int8_is_that_for_bf16(monkeypatch):
    for name in ("_is_vnni_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: True)
    with amx(True):
        assert [frame_packing(weights).dtype for weights in ("bf16", "int8")] == [torch.bfloat16] * 2
    with amx(False):
        assert frame_packing("int8").dtype == torch.float32


def test_a_cpu_without_the_instructions_packs_nothing(monkeypatch):
    monkeypatch.setattr(frame_layers, "has_frame_kernels", lambda kind: False)
    for name in ("_is_amx_tile_supported", "_is_vnni_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    assert frame_packing("bf16") is None
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    assert frame_packing("int8").attention is None
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    monkeypatch.setattr(linear, "has_fbgemm", lambda: False)
    assert frame_packing("int8") is None
    assert denoised(TorchBackend(random_model(), "cpu", "int8"), [3])[0].shape[0] == 2
    monkeypatch.setattr(linear.platform, "machine", lambda: "arm64")
    assert frame_packing("int8") is None
    assert frame_packing("fp32") is None


@pytest.mark.parametrize("product", [linear.prepacking("fp32"), partial(PackedLinear, dtype=torch.float32)])
@torch.inference_mode()
def test_packed_layers_of_the_source_filter_compute_what_plain_ones_do_and_no_window_changes_a_bit(
    product, monkeypatch
):
    torch.manual_seed(0)
    plain = SourceFilterNetwork(SourceFilterConfig(40, width=48, inner=96, layers=3)).eval()
    monkeypatch.setattr(frame_layers, "prepacking", lambda weights: product)
    pack_channels_last(packed := deepcopy(plain))
    frames, margin = torch.randn(1, 200, 40), plain.config.margin
    expected, whole = (network(frames, torch.ones(1, 200)) for network in (plain, packed))
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-5)
    for start, stop in ((0, 33), (21, 83), (50, 144), (117, 200)):
        window = packed(frames[:, start:stop], torch.ones(1, stop - start))
        new = slice(margin if start else 0, stop - start - (margin if stop < 200 else 0))
        assert torch.equal(window[:, new], whole[:, start:stop][:, new])
