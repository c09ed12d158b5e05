"""Compare the kernels for CPUs with AVX-512 with layers and attention of torch, and with Whisper blocks."""

import importlib.util
import shutil
import subprocess
import sys
import types
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ane.backends.torch import kernels
from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.kernel_decoder import KernelDecoder
from ane.backends.torch.kernel_encoder import KernelEncoderBlock
from ane.backends.torch.kernel_frames import has_frame_kernels
from ane.backends.torch.kernels import KINDS, KernelLinear, has_kernel, join_layers, library
from ane.backends.torch.linear import prepack
from ane.commands import doctor
from ane.models.whisper.networks import WhisperDecoder, WhisperDecoderConfig, WhisperEncoderBlock
from ane.system.decibels import snr_db
from tests.arrays import assert_equal
from tests.backends.torch.test_exactness import OnlyAttention
from tests.random_model import random_model

BY_INSTRUCTIONS = pytest.mark.usefixtures("instructions")
NEEDS_KERNELS = pytest.mark.skipif(
    library() is None, reason="on Linux, x86-64 with AVX-512 and a C++ compiler: pip install -e . compiles the kernels"
)
CPU = torch.device("cpu")
AVAILABLE = [kind for kind in KINDS if has_kernel(kind)]  # kinds that this CPU has instructions for
OUTPUTS = 72


def random_linear(kind: str, inputs: int = 192, outputs: int = OUTPUTS) -> tuple[nn.Linear, KernelLinear]:
    torch.manual_seed(0)
    plain = nn.Linear(inputs, outputs).requires_grad_(False)
    return plain, KernelLinear(plain.weight, plain.bias, kind)


def unaligned(rows: np.ndarray, offset: int) -> torch.Tensor:
    """The rows in memory that begins ``offset`` floats after a multiple of 64 bytes."""
    memory = torch.empty(rows.size + 32)
    start = (-memory.data_ptr() // 4) % 16 + offset
    return memory[start : start + rows.size].view(rows.shape).copy_(torch.from_numpy(rows))


@BY_INSTRUCTIONS
@NEEDS_KERNELS
@pytest.mark.parametrize("kind", AVAILABLE)
def test_a_norm_and_gelu_joined_to_a_layer_compute_what_they_compute_apart(kind):
    class JoinedBlock(nn.Module):
        joins = (("norm", "linear", "act"),)

        def __init__(self):
            super().__init__()
            self.norm, self.act = nn.LayerNorm(192), nn.GELU("tanh")
            self.plain, self.linear = random_linear(kind)

    block, x = JoinedBlock().requires_grad_(False), 3 * torch.randn(5, 2, 192) + 1
    nn.init.uniform_(block.norm.weight, 0.5, 2)
    nn.init.normal_(block.norm.bias)
    expected = block.act(block.plain(block.norm(x)))
    join_layers(block)
    assert isinstance(block.norm, nn.Identity)
    assert isinstance(block.act, nn.Identity)
    threshold = {"int8": 35, "bf16": 45, "fp16": 70, "fp32": 110}[kind]
    assert snr_db(expected, block.act(block.linear(block.norm(x)))) > threshold


@BY_INSTRUCTIONS
@NEEDS_KERNELS
@pytest.mark.parametrize("kind", AVAILABLE)
def test_a_layer_does_not_depend_on_how_memory_is_aligned(kind):
    _, layer = random_linear(kind)
    rows = np.random.default_rng(0).standard_normal((33, 192), dtype=np.float32)
    expected = layer(torch.from_numpy(rows))
    for offset in range(16):
        for count in (1, 2, 9, 33):
            assert torch.equal(layer(unaligned(rows[:count], offset)), expected[:count])


@BY_INSTRUCTIONS
@NEEDS_KERNELS
@pytest.mark.parametrize("kind", AVAILABLE)
def test_more_rows_than_a_cache_holds_are_those_of_their_parts(kind):
    plain, layer = random_linear(kind, outputs=400)
    rows = torch.randn(1100, 192, generator=torch.Generator().manual_seed(0))
    together = layer(rows)
    assert snr_db(plain(rows), together) > 35
    assert torch.equal(together, torch.cat([layer(part) for part in rows.split((500, 13, 587))]))


@BY_INSTRUCTIONS
@NEEDS_KERNELS
@pytest.mark.parametrize("kind", AVAILABLE)
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_a_number_reaches_all_outputs_of_its_row_and_no_other(kind, wrong):
    _, layer = random_linear(kind)
    x = torch.randn(4, 192)
    expected, x[2, 5] = layer(x), wrong
    found = layer(x)
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 1, 3]], expected[[0, 1, 3]])


@NEEDS_KERNELS
@pytest.mark.parametrize("kind", AVAILABLE)
def test_no_rows_give_no_rows(kind):
    assert random_linear(kind)[1](torch.empty(0, 192)).shape == (0, OUTPUTS)


def attended(kind: type[TorchDecoder], head_width: int, dtype: torch.dtype, offset: int = 0) -> list[np.ndarray]:
    """Outputs of a schedule of lanes with several prefixes and lengths."""
    rng, width = np.random.default_rng(0), 4 * head_width
    decoder = kind(OnlyAttention(4, head_width), 5, 90, CPU, dtype, 2, 40)
    decoder._to_device = lambda array: unaligned(array, offset)
    for index, length in enumerate((40, 3)):
        decoder.prefill(rng.standard_normal((length, width), dtype=np.float32), index)
    outputs, held = [], np.zeros(5, np.int64)
    for columns, lanes in ((3, slice(1, 4)), (1, slice(0, 5)), (70, slice(2, 3)), (1, slice(0, 5)), (1, slice(3, 5))):
        count = lanes.stop - lanes.start
        x = rng.standard_normal((count, columns, width), dtype=np.float32)
        outputs.append(decoder.step(x, held[lanes], lanes.start, np.arange(count) % 2)[0])
        held[lanes] += columns
    return outputs


@NEEDS_KERNELS
@pytest.mark.parametrize("head_width", [5, 16, 24, 32, 48, 64, 80, 96, 112, 128])
@pytest.mark.parametrize(("dtype", "decibels"), [(torch.float32, 110), (torch.float16, 60)])
def test_attention_is_torchs_at_every_width_of_heads(head_width, dtype, decibels):
    found = attended(KernelDecoder, head_width, dtype)
    assert min(map(snr_db, attended(TorchDecoder, head_width, torch.float32), found)) > decibels
    assert_equal(found, attended(KernelDecoder, head_width, dtype, offset=5))


@NEEDS_KERNELS
def test_a_cache_in_fp16_has_no_infinity_and_keeps_what_is_not_a_number():
    decoder = KernelDecoder(OnlyAttention(4, 16), 1, 2, CPU, torch.float16, 1, 1)
    decoder.prefill(np.zeros((1, 64), np.float32))
    assert (decoder.step(np.full((1, 1, 64), 1e6, np.float32), np.zeros(1, np.int64))[0] == 65504).all()
    assert np.isnan(decoder.step(np.full((1, 1, 64), np.nan, np.float32), np.zeros(1, np.int64))[0]).all()


@NEEDS_KERNELS
def test_scores_of_a_prefix_are_recorded_as_torch_records_them():
    def recorded(kind: type[TorchDecoder]) -> np.ndarray:
        rng = np.random.default_rng(0)
        decoder = kind(OnlyAttention(4, 16), 3, 9, CPU, torch.float32, 2, 20)
        decoder.record([(0, 1), (0, 3)])
        for index, length in enumerate((20, 7)):
            decoder.prefill(rng.standard_normal((length, 64), dtype=np.float32), index)
        decoder.step(rng.standard_normal((3, 2, 64), dtype=np.float32), np.zeros(3, np.int64), 0, np.array([1, 0, 1]))
        return decoder.recorded

    expected, found = recorded(TorchDecoder), recorded(KernelDecoder)
    assert np.isneginf(found[0, :, 7:20]).all()
    np.testing.assert_allclose(found, expected[:, :, : found.shape[2]], rtol=1e-4, atol=1e-5)


@NEEDS_KERNELS
def test_a_head_that_is_too_wide_is_an_error():
    with pytest.raises(ValueError, match="at most 128 channels"):
        attended(KernelDecoder, 129, torch.float32)


@NEEDS_KERNELS
def test_memory_that_runs_out_is_one_error(monkeypatch):
    _, layer = random_linear("fp32")
    monkeypatch.setattr(layer, "_linear", lambda *arguments: kernels.NO_MEMORY)
    with pytest.raises(MemoryError, match="no memory for a kernel's rows"):
        layer(torch.ones(1, 192))


@NEEDS_KERNELS
@pytest.mark.parametrize("precision", ["auto", "int8", "bf16"])
def test_a_decoder_of_a_cpu_uses_them(precision):
    backend = TorchBackend(random_model(), "cpu", precision, threads=1)
    assert isinstance(backend.decoder(1, 4), KernelDecoder)
    assert not isinstance(TorchBackend(random_model(), "cpu", "fp32", exact=True).decoder(1, 4), KernelDecoder)


def test_the_build_and_the_package_agree_on_what_the_source_is(tmp_path, monkeypatch):
    interface = types.SimpleNamespace(BuildHookInterface=object)  # hatchling is installed only while a wheel is built
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    shutil.copytree(kernels.SOURCES, tmp_path / "cpp")
    (tmp_path / "cpp" / ".frames.h.swp").write_text("of an editor")
    (tmp_path / "cpp" / "cache").mkdir()
    spec = importlib.util.spec_from_file_location("hatch_build", Path(__file__).parents[3] / "hatch_build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    assert kernels.checksum() == build.checksum(tmp_path / "cpp")


@pytest.mark.parametrize(
    "reason", ["not compiled", "of another source", "of another program", "another CPU", "switched off"]
)
def test_without_the_library_torch_computes(monkeypatch, tmp_path, reason):
    if reason == "another CPU":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    elif reason == "switched off":
        monkeypatch.setenv("ANE_KERNELS", "0")
    elif reason == "of another source":
        monkeypatch.setattr(kernels, "SOURCES", tmp_path)
        (tmp_path / "kernels.cpp").write_text("// edited since it was compiled\n")
    else:
        monkeypatch.setattr(kernels, "LIBRARY", tmp_path / "libkernels.so")
        if reason == "of another program":
            kernels.LIBRARY.write_text("not a library")
    library.cache_clear()
    try:
        assert library() is None
        backend = TorchBackend(random_model(), "cpu", "int8", threads=1)
        assert type(backend.decoder(1, 4)) is TorchDecoder
        assert not any(isinstance(layer, KernelLinear) for layer in backend.network("autoregressive").modules())
    finally:
        monkeypatch.undo()
        library.cache_clear()


@NEEDS_KERNELS
def test_doctor_says_whether_they_are_compiled(monkeypatch):
    assert [finding.state for finding in doctor.check_kernels()] == ["ok"]
    monkeypatch.setattr(kernels, "library", lambda: None)
    assert "install g++" in doctor.check_kernels()[0].fix
    assert "not compiled from the present source" in doctor.check_kernels()[0].detail
    monkeypatch.setattr(kernels, "LIBRARY", Path("nowhere"))
    assert doctor.check_kernels()[0].detail == "not compiled"
    monkeypatch.setenv("ANE_KERNELS", "0")
    assert doctor.check_kernels()[0].fix == "unset ANE_KERNELS"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert doctor.check_kernels() == []


PEAK_OF_PACKING = """
import sys, torch
from pathlib import Path
from ane.backends.torch.kernels import KernelLinear

def peak():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))

weight, bias = torch.randn(4096, 4096).half(), torch.zeros(4096)
KernelLinear(weight[:64], bias[:64], sys.argv[1])
Path("/proc/self/clear_refs").write_text("5")
before = peak()
layers = [KernelLinear(weight, bias, sys.argv[1]) for _ in range(4)]
print((peak() - before) / 1e3, sum(layer.weights.nbytes for layer in layers) / 1e6)
"""


@NEEDS_KERNELS
@pytest.mark.parametrize("kind", sorted({"int8", "bf16"} & set(AVAILABLE)))
def test_packing_a_layer_takes_little_memory_beside_its_weights(python, kind):
    taken, packed = map(float, subprocess.check_output([python, "-c", PEAK_OF_PACKING, kind]).split())
    assert taken < packed + 30


FRAME_KINDS = [kind for kind in ("bf16", "int8") if has_frame_kernels(kind)]


def randomised(network: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    return network.requires_grad_(False).eval()


@BY_INSTRUCTIONS
@NEEDS_KERNELS
@pytest.mark.parametrize("kind", FRAME_KINDS)
@pytest.mark.parametrize(("channels", "heads", "length"), [(64, 1, 33), (96, 4, 600), (40, 8, 1), (160, 1, 70)])
def test_a_block_of_an_encoder_computes_what_the_plain_one_computes_in_the_same_bits_on_any_threads(
    kind, channels, heads, length
):
    torch.manual_seed(1)
    plain = randomised(WhisperEncoderBlock(channels, heads))
    block, x = KernelEncoderBlock(plain, kind), 2 * torch.randn(3, length, channels) + 1
    before = x.clone()
    actual = block(x)
    assert torch.equal(x, before)
    assert snr_db(plain(x) - x, actual - x) > {"bf16": 43, "int8": 36}[kind]
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert torch.equal(block(unaligned(x[1:2].numpy(), 4 * count + 1)), actual[1:2])
    for wrong in (x[0], x[:, :0], x[:, :, 1:]):
        with pytest.raises(ValueError, match=f"columns of {channels} channels"):
            block(wrong)


def heard(decoder: TorchDecoder, only: int | None = None) -> list[np.ndarray]:
    """Return hidden states and logits of two prefixes with memories, and of steps of three lanes or of one."""
    rng, shape, results = np.random.default_rng(0), decoder.shape, []
    for index, length in enumerate((4, 21)):
        decoder.set_memory(rng.standard_normal((shape.memory_length, shape.width), dtype=np.float32), index)
        results += decoder.prefill(rng.standard_normal((length, shape.width), dtype=np.float32), index)
    lanes = slice(None) if only is None else slice(only, only + 1)
    for columns, held in ((3, (0, 0, 0)), (1, (3, 3, 3)), (1, (4, 2, 4))):
        x, lengths = rng.standard_normal((3, columns, shape.width), dtype=np.float32), np.array(held)
        results += decoder.step(x[lanes], lengths[lanes], only or 0, np.array([0, 1, 1])[lanes])
    return results


@BY_INSTRUCTIONS
@NEEDS_KERNELS
@pytest.mark.parametrize("kind", AVAILABLE)
def test_a_decoder_with_a_memory_computes_what_torch_computes_and_a_lane_has_the_same_bits_alone(kind):
    plain = WhisperDecoder(WhisperDecoderConfig(300, 70, 40, 96, 4, 3))
    nn.init.normal_(plain.positional_embedding)
    plain, kernels = randomised(plain), deepcopy(plain)
    prepack(kernels, partial(KernelLinear, kind=kind))
    dtype = torch.float16 if kind in ("int8", "bf16") else torch.float32

    def made(lanes: int = 3) -> KernelDecoder:
        return KernelDecoder(kernels, lanes, 12, CPU, dtype, 2, 21)

    expected, actual = heard(TorchDecoder(plain, 3, 12, CPU, torch.float32, 2, 21)), heard(made())
    assert min(map(snr_db, expected, actual)) > {"int8": 27, "bf16": 38, "fp16": 65, "fp32": 110}[kind]
    for lane, count in enumerate((1, 2, 3)):
        torch.set_num_threads(count)
        assert_equal(heard(made(), lane)[4:], [among[lane : lane + 1] for among in actual[4:]])
