"""Test on the CPU that a lane's bits do not depend on other lanes or threads, in every precision."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.decoding import DecoderShape
from ane.backends.torch import linear
from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.kernels import KernelLinear, has_kernel
from tests.arrays import assert_equal, noise
from tests.backends.decoder_steps import CPU, columns
from tests.random_model import random_model

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only promised on x86-64")

CPUS = Path("/proc/cpuinfo")
INTEL = CPUS.exists() and "GenuineIntel" in CPUS.read_text()
PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8")
CAPACITY, LONGEST = 70, 50

LANES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, CAPACITY - 1)), min_size=1, max_size=9)  # prefix, length


@pytest.fixture(scope="module", params=[*PRECISIONS, *(f"torch's {each}" for each in PRECISIONS)])
def backend(request) -> TorchBackend:
    """In each precision, by the package's own kernels where they are compiled, and by torch's."""
    backend = TorchBackend(random_model(), "cpu", request.param.removeprefix("torch's "), keep=True)
    if request.param.startswith("torch's"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(linear, "kernel_packing", lambda weights: None)
            patch.setattr(linear, "library", lambda: None)
            layers = list(backend.network("autoregressive").modules())
        assert not any(isinstance(layer, KernelLinear) for layer in layers)
        backend._uses_kernels = lambda *_: False
    return backend


def stepped(backend: TorchBackend, lanes: list[tuple[int, int]], first_lane: int = 0, new: int = 1) -> list[np.ndarray]:
    """Hidden states and logits of every lane; those of a prefix and a length are always fed the same columns."""
    decoder, (indices, lengths) = (
        backend.decoder(first_lane + len(lanes), CAPACITY + new, 4, LONGEST),
        np.array(lanes).T,
    )
    for index in {*indices}:
        decoder.prefill(columns(index, (LONGEST, 3, 17, 32)[index]), index)
    for lane, (index, length) in enumerate(lanes):
        if length:
            decoder.step(columns(index, length)[None], np.zeros(1, np.int64), first_lane + lane, np.array([index]))
    hidden, logits = decoder.step(
        np.stack([columns(100 + length, new) for length in lengths]), lengths, first_lane, indices
    )
    return [array for pair in zip(hidden, logits, strict=True) for array in pair]


@settings(max_examples=12, deadline=None)
@given(lanes=LANES, first_lane=st.integers(0, 2), new=st.sampled_from((1, 1, 3)))
def test_a_lane_does_not_depend_on_its_neighbours(backend, lanes, first_lane, new):
    alone = [array for lane in lanes for array in stepped(backend, [lane], 0, new)]
    assert_equal(alone, stepped(backend, lanes, first_lane, new))


def test_a_lane_does_not_depend_on_the_number_of_threads(backend):
    outputs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        outputs.append(stepped(backend, [(0, 40), (0, 3), (2, 60), (1, 0), (0, 17)]))
    assert_equal(*outputs)


class OnlyAttention:
    """A decoder of one layer that is only its attention: its columns (n, T, width) are queries, keys and values."""

    def __init__(self, heads: int, head_width: int):
        self.config = SimpleNamespace(decoder_shape=DecoderShape(1, heads, head_width, heads * head_width, 1))

    def __call__(self, columns: torch.Tensor, attend: Sequence[Callable[..., torch.Tensor]]) -> torch.Tensor:
        q = columns.unflatten(2, (self.config.decoder_shape.heads, -1)).transpose(1, 2)
        return attend[0](q, q, q).transpose(1, 2).flatten(2)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def assert_independent(stepped: Callable[[list[int], int], np.ndarray], neighbours: list[list[int]]) -> None:
    """``stepped(lanes, columns)`` returns for each of four lanes what it returns for the lane alone."""
    for count in (1, 3):
        alone = [stepped([index], count)[0] for index in range(4)]
        for chosen in neighbours:
            assert_equal([alone[index] for index in chosen], stepped(chosen, count))


@pytest.mark.parametrize("head_width", [16, 24, 32, 48, 64, 80, 96, 128])
def test_attention_does_not_depend_on_neighbours_at_any_width_of_heads(head_width):
    """Libraries choose a kernel by the ratio of a product's width to its rows, and split long sums."""
    rng, lengths = np.random.default_rng(0), (5, 70, 150, 260)
    prefixes = [rng.standard_normal((length, 4 * head_width), dtype=np.float32) for length in lengths]

    def stepped(chosen: list[int], columns: int) -> np.ndarray:
        column, lanes = noise(1, columns, 4 * head_width, seed=1), len(chosen)
        decoder = TorchDecoder(OnlyAttention(4, head_width), lanes, 9, CPU, torch.float32, 4, max(lengths))
        for index in set(chosen):
            decoder.prefill(prefixes[index], index)
        for length in (0, columns):
            hidden, _ = decoder.step(column.repeat(lanes, 0), np.full(lanes, length), 0, np.array(chosen))
        return hidden

    several = [0, 3, 1, 3], [2] * 40, [0, *[1] * 20, *[2] * 30]
    assert_independent(stepped, [[0, 1], [2, 3], [0, 1, 2], [0, 0], *several, [3, 2, 1, 0]])


@pytest.mark.parametrize("head_width", [16, 64, 96])
def test_attention_does_not_depend_on_how_long_the_neighbours_are(head_width):
    """Sums over hundreds of own positions; those of a longer neighbour are masked."""
    lengths = 30, 150, 260, 470
    spoken = noise(len(lengths), max(lengths), 4 * head_width)

    def stepped(chosen: list[int], columns: int) -> np.ndarray:
        decoder = TorchDecoder(OnlyAttention(4, head_width), len(chosen), 480, CPU, torch.float32)
        decoder.prefill(spoken[0, :70])
        for lane, index in enumerate(chosen):
            decoder.step(spoken[index : index + 1, : lengths[index]], np.zeros(1, np.int64), lane)
        return decoder.step(spoken[chosen, :columns], np.array([lengths[index] for index in chosen]))[0]

    assert_independent(stepped, [[0, 1], [1, 2, 0], [1, 3], [0, 3, 2, 2]])


@pytest.mark.xfail(
    INTEL,
    strict=False,  # of two Intel CPUs, one passes
    reason="MKL's kernels for AVX2 sum in other orders on Intel's CPUs: docs/presets-and-samplers.md",
)
def test_attention_is_exact_with_mkls_kernels_for_avx2():
    """MKL chooses its kernels once, when it is loaded; on AMD's CPUs the variable may have no effect."""
    chosen = "width_of_heads or how_long or (depend_on_its_neighbours and fp32)"
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", __file__, "-k", chosen],
        env={**os.environ, "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-2000:]


@pytest.mark.parametrize("kernels", ["own", "torch's"])
@pytest.mark.parametrize("weights", ["fp32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize(("channels", "outputs"), [(64, 256), (768, 192), (1024, 96), (4096, 256)])
def test_a_row_of_a_packed_layer_does_not_depend_on_the_number_of_rows_or_threads(
    kernels, weights, channels, outputs, monkeypatch
):
    if kernels == "own" and not has_kernel(weights):
        pytest.skip("the kernels are compiled by pip install -e . on Linux, x86-64 with AVX-512 and g++")
    if kernels == "torch's":
        monkeypatch.setattr(linear, "kernel_packing", lambda weights: None)
    make = linear.prepacking(weights)
    if make is None:
        pytest.skip("this CPU has no packed layers")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, channels, generator=generator) / channels**0.5
    # many rows, because differences are rare: where sums differ in the last bit, few round to another bfloat16
    layer, x = make(weight, torch.zeros(outputs)), torch.randn(384, channels, generator=generator)
    assert isinstance(layer, KernelLinear) == (kernels == "own")
    expected = layer(x)
    for rows in (1, 2, 7, 14, 16, 17, 32, 33, 130, 384):
        # fewer calls of few rows on two threads, because a call waits for CPUs that other tests use
        for threads, count in ((1, len(x)), (2, max(64, 16 * rows))):
            torch.set_num_threads(threads)
            assert torch.equal(torch.cat([layer(part) for part in x[:count].split(rows)]), expected[:count]), rows
    assert torch.equal(layer(x[None, :1]), expected[None, :1])
