"""Compare the kernels for Whisper's blocks with the plain blocks: encoder blocks, and decoder blocks with a memory."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.kernel_decoder import KernelDecoder
from ane.backends.torch.kernel_encoder import KernelEncoderBlock
from ane.backends.torch.kernel_frames import has_frame_kernels
from ane.backends.torch.kernels import KernelLinear
from ane.backends.torch.linear import prepack
from ane.models.whisper.networks import WhisperDecoder, WhisperDecoderConfig, WhisperEncoderBlock
from ane.system.decibels import snr_db
from tests.backends.torch.test_kernel_frames import threads
from tests.backends.torch.test_kernels import AVAILABLE, BY_INSTRUCTIONS, CPU, NEEDS_KERNELS, unaligned

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
        with threads(count):
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
    least = {"int8": 27, "bf16": 38, "fp16": 65, "fp32": 110}[kind]
    assert min(map(snr_db, expected, actual)) > least
    for lane, count in enumerate((1, 2, 3)):
        with threads(count):
            for alone, among in zip(heard(made(), lane)[4:], actual[4:], strict=True):
                np.testing.assert_array_equal(alone, among[lane : lane + 1])
