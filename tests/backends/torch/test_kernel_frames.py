"""The package's kernels for a denoiser's blocks, against the plain blocks."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ane.backends.torch.kernel_frames import (
    KernelFrameAttention,
    KernelFrameConv,
    KernelResidual,
    has_frame_kernels,
)
from ane.models.tortoise.networks.diffusion_decoder import TimestepResBlock
from ane.models.tortoise.networks.frames import FrameAttention, FrameConv, Packing
from ane.system.decibels import snr_db
from tests.backends.torch.test_kernels import unaligned

KINDS = [kind for kind in ("bf16", "int8") if has_frame_kernels(kind)]
pytestmark = [pytest.mark.skipif(not KINDS, reason="on Linux, a CPU with AMX and a C++ compiler: "
                                                   "pip install -e . compiles the kernels"),
              pytest.mark.parametrize("kind", KINDS)]

CHANNELS, HEADS = 96, 4
LEAST_DB = {"bf16": 43.0, "int8": 36.0}      # of a block of random weights
PACKING = Packing(2, (70, 1, 33))           # several tiles of frames, one frame, a tile and a frame
TIME = torch.nn.functional.silu(torch.randn(1, CHANNELS, generator=torch.Generator().manual_seed(3)))


def random_block(make: type[nn.Module], *arguments: int) -> nn.Module:
    torch.manual_seed(0)
    block = make(*arguments).requires_grad_(False)
    for module in block.modules():
        if isinstance(module, nn.GroupNorm):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    return block


def frames_of(packing: Packing, channels: int = CHANNELS) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 2 * torch.randn(packing.rows * sum(packing.lengths), channels, generator=generator) + 1


def both(kind: str) -> list[tuple[nn.Module, nn.Module, tuple]]:
    """A plain block, the kernel, and what both take besides frames and packing."""
    residual = random_block(TimestepResBlock, CHANNELS)
    attention = random_block(FrameAttention, CHANNELS, HEADS)
    return [(residual, KernelResidual(residual, kind), (TIME,)),
            (attention, KernelFrameAttention(attention, kind), ())]


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_blocks_compute_what_the_plain_ones_compute(kind):
    x = frames_of(PACKING)
    for plain, block, arguments in both(kind):
        expected, actual = plain(x, *arguments, PACKING), block(x, *arguments, PACKING)
        assert snr_db(expected - x, actual - x) > LEAST_DB[kind]


@pytest.mark.parametrize(("channels", "heads"), [(40, 8), (60, 3), (64, 1), (96, 2), (256, 2)])
def test_heads_of_any_width_attend(kind, channels, heads):
    plain = random_block(FrameAttention, channels, heads)
    x, packing = frames_of(PACKING, channels), PACKING
    assert snr_db(plain(x, packing) - x, KernelFrameAttention(plain, kind)(x, packing) - x) > LEAST_DB[kind]


@pytest.mark.parametrize(("inputs", "outputs"), [(100, 64), (96, 200), (17, 33)])
@pytest.mark.parametrize("frames", [1, 2, 40])
def test_a_convolution_computes_what_the_plain_one_computes(kind, inputs, outputs, frames):
    plain = random_block(FrameConv, inputs, outputs, 3, 1, 1)
    x = frames_of(Packing(3, (frames,)), inputs).view(3, frames, inputs)
    x = x * torch.logspace(-1, 1, frames)[:, None]         # some frames louder than others
    assert snr_db(plain(x), KernelFrameConv(plain.weight, plain.bias, kind)(x)) > LEAST_DB[kind]


def test_each_timestep_scales_its_row(kind):
    plain, block, _ = both(kind)[0]
    x, packing = frames_of(Packing(2, (20,))), Packing(2, (20,))
    times = torch.cat((TIME, -TIME))
    assert snr_db(plain(x, times, packing) - x, block(x, times, packing) - x) > LEAST_DB[kind]


def test_a_row_has_the_same_bits_beside_others_on_any_threads_wherever_memory_begins(kind):
    x = frames_of(PACKING)
    for _, block, arguments in both(kind):
        expected = block(x, *arguments, PACKING)
        for offset in range(1, 16, 2):
            assert torch.equal(block(unaligned(x.numpy(), offset), *arguments, PACKING), expected)
        with threads(1):
            assert torch.equal(block(x, *arguments, PACKING), expected)
        start = 0
        for length in PACKING.lengths:
            for row in range(PACKING.rows):
                alone = slice(start + row * length, start + (row + 1) * length)
                assert torch.equal(block(x[alone], *arguments, Packing(1, (length,))), expected[alone])
            start += PACKING.rows * length


def test_more_frames_than_a_cache_holds_are_as_exact(kind):
    packing = Packing(1, (1200,))
    x = frames_of(packing)
    for plain, block, arguments in both(kind):
        expected, actual = plain(x, *arguments, packing), block(x, *arguments, packing)
        assert snr_db(expected - x, actual - x) > LEAST_DB[kind]
        with threads(1):
            assert torch.equal(block(x, *arguments, packing), actual)


def test_channels_that_hardly_vary_keep_their_digits(kind):
    plain, block, arguments = both(kind)[0]
    packing = Packing(1, (64,))
    x = 100 + 1e-3 * frames_of(packing)
    for module in plain.modules():
        if hasattr(module, "two_pass"):
            module.two_pass = True
    change = snr_db(plain(x, *arguments, packing) - x, block(x, *arguments, packing) - x)
    assert change > LEAST_DB[kind] - 6      # x itself has 2^-24 · 100 of rounding beside 1e-3


def test_what_is_not_a_number_stays_in_its_row(kind):
    x = frames_of(PACKING)
    for _, block, arguments in both(kind):
        expected = block(x, *arguments, PACKING)
        wrong = x.clone()
        wrong[75, 3] = np.nan       # of the second row
        actual = block(wrong, *arguments, PACKING)
        assert actual[70:140].isnan().any(dim=1).all()
        assert torch.equal(actual[:70], expected[:70])
        assert torch.equal(actual[140:], expected[140:])


def test_frames_that_are_not_as_packed_are_refused(kind):
    x = frames_of(PACKING)
    (_, residual, _), (_, attention, _) = both(kind)
    with pytest.raises(ValueError, match=r"rows of \[70, 70, 1, 1, 33, 33\] frames and 96 channels got \(207, 96\)"):
        attention(x[1:], PACKING)
    with pytest.raises(ValueError, match="96 channels"):
        residual(x[:, 1:], TIME, PACKING)
    with pytest.raises(ValueError, match=r"2 rows of 96 channels got timesteps \(3, 96\)"):
        residual(x, TIME.expand(3, -1), PACKING)
    with pytest.raises(ValueError, match="frames"):
        attention(x[:0], Packing(1, (0,)))
    with pytest.raises(ValueError, match="more than 128 numbers"):
        KernelFrameAttention(random_block(FrameAttention, 160, 1), kind)
