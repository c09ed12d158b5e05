"""Compare the package's kernels for the denoiser's blocks with the plain blocks."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ane.backends.torch.kernel_frames import KernelFrameAttention, KernelFrameConv, KernelResidual, has_frame_kernels
from ane.models.tortoise.networks.diffusion_decoder import TimestepResBlock
from ane.models.tortoise.networks.frames import FrameAttention, FrameConv, Packing
from ane.system.decibels import snr_db
from tests.arrays import assert_equal
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


def assert_near_plain(kind: str, plain: nn.Module, block: nn.Module, x: Tensor, *arguments, less: float = 0) -> None:
    """What a kernel adds to its frames is what the plain block adds to them."""
    assert snr_db(plain(x, *arguments) - x, block(x, *arguments) - x) > LEAST_DB[kind] - less


def test_blocks_compute_what_the_plain_ones_compute(kind):
    for plain, block, arguments in both(kind):
        assert_near_plain(kind, plain, block, frames_of(PACKING), *arguments, PACKING)


@pytest.mark.parametrize(("channels", "heads"), [(40, 8), (60, 3), (64, 1), (96, 2), (256, 2), (160, 1)])
def test_heads_of_any_width_attend(kind, channels, heads):
    plain = random_block(FrameAttention, channels, heads)
    assert_near_plain(kind, plain, KernelFrameAttention(plain, kind), frames_of(PACKING, channels), PACKING)


def test_each_timestep_scales_its_row(kind):
    assert_near_plain(kind, *both(kind)[0][:2], frames_of(PACKING), torch.cat((TIME, -TIME)), PACKING)


@pytest.mark.parametrize(("inputs", "outputs"), [(100, 64), (96, 200), (17, 33)])
@pytest.mark.parametrize("frames", [1, 2, 40])
def test_a_convolution_computes_what_the_plain_one_computes(kind, inputs, outputs, frames):
    plain = random_block(FrameConv, inputs, outputs, 3, 1, 1)
    x = frames_of(Packing(3, (frames,)), inputs).view(3, frames, inputs)
    x = x * torch.logspace(-1, 1, frames)[:, None]  # makes some frames louder than others
    assert snr_db(plain(x), KernelFrameConv(plain.weight, plain.bias, kind)(x)) > LEAST_DB[kind]


def test_a_row_has_the_same_bits_beside_others_on_any_threads_wherever_memory_begins(kind):
    x = frames_of(LONG)
    for plain, block, arguments in both(kind):
        torch.set_num_threads(2)
        assert_near_plain(kind, plain, block, x, *arguments, LONG)
        expected, start = block(x, *arguments, LONG), 0
        for offset in range(1, 16, 2):
            assert torch.equal(block(unaligned(x.numpy(), offset), *arguments, LONG), expected)
        for count in (3, 1):
            torch.set_num_threads(count)
            assert torch.equal(block(x, *arguments, LONG), expected)
        for length in [length for length in LONG.lengths for _ in range(LONG.rows)]:
            alone = slice(start, start + length)
            assert torch.equal(block(x[alone], *arguments, Packing(1, (length,))), expected[alone])
            start += length


def test_a_convolution_has_the_same_bits_on_any_threads(kind):
    plain = random_block(FrameConv, 96, 200, 3, 1, 1)
    layer, x = KernelFrameConv(plain.weight, plain.bias, kind), frames_of(Packing(3, (300,))).view(3, 300, 96)
    expected = layer(x)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert torch.equal(layer(x), expected)
    assert torch.equal(layer(x[1:2]), expected[1:2])


def test_two_threads_of_python_can_use_one_block(kind):
    for _, block, arguments in both(kind):
        calls = [(frames_of(packing), *arguments, packing) for packing in (LONG, PACKING) * 4]
        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(lambda call, block=block: block(*call), calls))
        assert_equal([block(*call) for call in calls], together)


@pytest.mark.parametrize(("level", "frame"), [(100.0, None), (0.0, 0), (0.0, 1000)])
def test_channels_that_hardly_vary_keep_their_digits(kind, level, frame):
    """All about one level, or constant but for one frame, as without conditioning."""
    plain, block, arguments = both(kind)[0]
    packing = Packing(1, (2000,))
    x = (
        level + 1e-3 * frames_of(packing)
        if frame is None
        else 30.0 * (torch.arange(2000) == frame)[:, None].expand(-1, CHANNELS).contiguous()
    )
    for module in plain.modules():
        if hasattr(module, "two_pass"):
            module.two_pass = True
    assert_near_plain(kind, plain, block, x, *arguments, packing, less=1)


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
    for message, call in {
        r"rows of \[70, 70, 1, 1, 33, 33\] frames, .* 96 channels, got \(207, 96\)": lambda: attention(x[1:], PACKING),
        "96 channels": lambda: residual(x[:, 1:], TIME, PACKING),
        r"time must be \(1, 96\) or \(2, 96\), got \(3, 96\)": lambda: residual(x, TIME.expand(3, -1), PACKING),
        "frames": lambda: attention(x[:0], Packing(1, (0,))),
        "with 5 taps": lambda: KernelFrameConv(torch.zeros(32, 32, 5), torch.zeros(32), kind),
        "no fp16 kernel": lambda: KernelFrameConv(torch.zeros(32, 32, 3), torch.zeros(32), "fp16"),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
