"""Compare the package's kernels for the denoiser's blocks with the plain blocks."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ane.backends.torch.kernel_frames import KernelFrameAttention, KernelFrameConv, KernelResidual, has_frame_kernels
from ane.models.tortoise.networks.diffusion_decoder import TimestepResBlock
from ane.models.tortoise.networks.frames import FrameAttention, FrameConv, Packing
from ane.system.decibels import snr_db
from tests.backends.torch.test_kernels import unaligned

KINDS = [kind for kind in ("bf16", "int8") if has_frame_kernels(kind)]
pytestmark = [
    pytest.mark.skipif(
        not KINDS,
        reason="on Linux, a CPU with AVX-512 bf16 and VNNI and a C++ compiler: pip install -e . compiles the kernels",
    ),
    pytest.mark.usefixtures("instructions"),
    pytest.mark.parametrize("kind", KINDS),
]

CHANNELS, HEADS = 96, 4
LEAST_DB = {"bf16": 43.0, "int8": 36.0}  # dB for a block with random weights
PACKING = Packing(2, (70, 1, 33))  # utterances of several tiles of frames, of one frame, and of one tile and one frame
LONG = Packing(2, (600, 1, 133))  # several threads share these frames, in several chunks
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
    return [(residual, KernelResidual(residual, kind), (TIME,)), (attention, KernelFrameAttention(attention, kind), ())]


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


@pytest.mark.parametrize(("channels", "heads"), [(40, 8), (60, 3), (64, 1), (96, 2), (256, 2), (160, 1)])
def test_heads_of_any_width_attend(kind, channels, heads):
    plain = random_block(FrameAttention, channels, heads)
    x, packing = frames_of(PACKING, channels), PACKING
    assert snr_db(plain(x, packing) - x, KernelFrameAttention(plain, kind)(x, packing) - x) > LEAST_DB[kind]


@pytest.mark.parametrize(("inputs", "outputs"), [(100, 64), (96, 200), (17, 33)])
@pytest.mark.parametrize("frames", [1, 2, 40])
def test_a_convolution_computes_what_the_plain_one_computes(kind, inputs, outputs, frames):
    plain = random_block(FrameConv, inputs, outputs, 3, 1, 1)
    x = frames_of(Packing(3, (frames,)), inputs).view(3, frames, inputs)
    x = x * torch.logspace(-1, 1, frames)[:, None]  # makes some frames louder than others
    assert snr_db(plain(x), KernelFrameConv(plain.weight, plain.bias, kind)(x)) > LEAST_DB[kind]


def test_each_timestep_scales_its_row(kind):
    plain, block, _ = both(kind)[0]
    x, times = frames_of(PACKING), torch.cat((TIME, -TIME))
    assert snr_db(plain(x, times, PACKING) - x, block(x, times, PACKING) - x) > LEAST_DB[kind]


def test_a_row_has_the_same_bits_beside_others_on_any_threads_wherever_memory_begins(kind):
    x = frames_of(LONG)
    for plain, block, arguments in both(kind):
        with threads(2):
            expected = block(x, *arguments, LONG)
            assert snr_db(plain(x, *arguments, LONG) - x, expected - x) > LEAST_DB[kind]
            for offset in range(1, 16, 2):
                assert torch.equal(block(unaligned(x.numpy(), offset), *arguments, LONG), expected)
        for count in (1, 3):
            with threads(count):
                assert torch.equal(block(x, *arguments, LONG), expected)
        start = 0
        for length in LONG.lengths:
            for row in range(LONG.rows):
                alone = slice(start + row * length, start + (row + 1) * length)
                assert torch.equal(block(x[alone], *arguments, Packing(1, (length,))), expected[alone])
            start += LONG.rows * length


def test_a_convolution_has_the_same_bits_on_any_threads(kind):
    plain = random_block(FrameConv, 96, 200, 3, 1, 1)
    layer, x = KernelFrameConv(plain.weight, plain.bias, kind), frames_of(Packing(3, (300,))).view(3, 300, 96)
    outputs = []
    for count in (1, 2, 3):
        with threads(count):
            outputs.append(layer(x))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[0][1:2], layer(x[1:2]))


def test_two_threads_of_python_can_use_one_block(kind):
    for _, block, arguments in both(kind):
        calls = [(frames_of(packing), *arguments, packing) for packing in (LONG, PACKING) * 4]
        expected = [block(*call) for call in calls]
        with ThreadPoolExecutor(2) as pool:
            for alone, together in zip(expected, pool.map(lambda call, block=block: block(*call), calls), strict=True):
                assert torch.equal(alone, together)


@pytest.mark.parametrize(("level", "frame"), [(100.0, None), (0.0, 0), (0.0, 1000)])
def test_channels_that_hardly_vary_keep_their_digits(kind, level, frame):
    """All about one level, or constant but for one frame, as without conditioning."""
    plain, block, arguments = both(kind)[0]
    packing = Packing(1, (2000,))
    x = torch.zeros(2000, CHANNELS) if frame is not None else level + 1e-3 * frames_of(packing)
    if frame is not None:
        x[frame] = 30
    for module in plain.modules():
        if hasattr(module, "two_pass"):
            module.two_pass = True
    assert snr_db(plain(x, *arguments, packing) - x, block(x, *arguments, packing) - x) > LEAST_DB[kind] - 1


def test_what_is_not_a_number_stays_in_its_row(kind):
    x = frames_of(PACKING)
    for _, block, arguments in both(kind):
        expected = block(x, *arguments, PACKING)
        wrong = x.clone()
        wrong[75, 3] = np.nan  # an element of the second row
        actual = block(wrong, *arguments, PACKING)
        assert actual[70:140].isnan().any(dim=1).all()
        assert torch.equal(actual[:70], expected[:70])
        assert torch.equal(actual[140:], expected[140:])


def test_frames_that_are_not_as_packed_are_refused(kind):
    x = frames_of(PACKING)
    (_, residual, _), (_, attention, _) = both(kind)
    with pytest.raises(ValueError, match=r"rows of \[70, 70, 1, 1, 33, 33\] frames, .* 96 channels, got \(207, 96\)"):
        attention(x[1:], PACKING)
    with pytest.raises(ValueError, match="96 channels"):
        residual(x[:, 1:], TIME, PACKING)
    with pytest.raises(ValueError, match=r"time must be \(1, 96\) or \(2, 96\), got \(3, 96\)"):
        residual(x, TIME.expand(3, -1), PACKING)
    with pytest.raises(ValueError, match="frames"):
        attention(x[:0], Packing(1, (0,)))
    with pytest.raises(ValueError, match="with 5 taps"):
        KernelFrameConv(torch.zeros(32, 32, 5), torch.zeros(32), kind)
    with pytest.raises(ValueError, match="no fp16 kernel"):
        KernelFrameConv(torch.zeros(32, 32, 3), torch.zeros(32), "fp16")
