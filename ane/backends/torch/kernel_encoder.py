"""Compute a block of a transformer encoder in one call of our compiled kernels (``ane.backends.torch.kernels``).

The kernels need a CPU with AVX-512 bf16 and VNNI. Attention is in bfloat16, and the residual stream is float32.
"""

import ctypes

import torch
from torch import Tensor, nn

from ane.backends.torch.kernels import KernelLinear, check, library
from ane.backends.torch.linear import bias_of


class EncoderBlockArguments(ctypes.Structure):
    """The struct ``EncoderBlock`` of kernels.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("qkv", "projection", "expansion", "contraction")),
        ("heads", ctypes.c_long),
    ]


class KernelEncoderBlock(nn.Module):
    """A pre-norm encoder block: self-attention within each row, then two linear layers with GELU between them.

    Args:
        block: Module to replace, with the attribute ``heads``. Its attribute ``encoder_parts`` names nine submodules in
            this order: a norm, the linear layers for queries, keys, values and the projection, a norm, a linear layer,
            GELU and a linear layer.
        kind: Precision of the weights, "int8" or "bf16". The layer after GELU always has bf16.
    """

    def __init__(self, block: nn.Module, kind: str):
        super().__init__()
        norm, *attention, projection, second_norm, expansion, gelu, contraction = map(
            block.get_submodule, block.encoder_parts
        )
        self.channels = len(projection.weight)
        by_head = [
            torch.stack([part.unflatten(0, (block.heads, -1)) for part in parts], 1).flatten(0, 2)
            for parts in zip(*((layer.weight, bias_of(layer, layer.weight)) for layer in attention), strict=True)
        ]  # outputs are q, k and v of the first head, then q, k and v of the second head, and so on
        qkv = KernelLinear(*by_head, kind)
        qkv.join(norm, None)
        # GELU's outputs have a few large values. In int8, this layer would save a tenth of the time, but Whisper base
        # would have an SNR of 21 dB instead of 28 dB
        kinds = {projection: kind, expansion: kind, contraction: "bf16"}
        others = [KernelLinear(layer.weight, layer.bias, precision) for layer, precision in kinds.items()]
        others[1].join(second_norm, gelu)
        self.layers = nn.ModuleList((qkv, *others))  # keeps the weights alive, because the library reads their memory
        self.arguments = EncoderBlockArguments(*(layer._address for layer in self.layers), block.heads)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block on x (B, T, D) → (B, T, D) float32.

        Raises:
            ValueError: ``x`` is empty or D is wrong, so the library would read beyond ``x``.
        """
        if x.ndim != 3 or x.shape[2] != self.channels or not x.numel():
            raise ValueError(f"x must have columns of {self.channels} channels, got {tuple(x.shape)}")
        out = x.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        call = library().ane_encoder_block
        check(call(ctypes.addressof(self.arguments), *out.shape[:2], out.data_ptr(), torch.get_num_threads()))
        return out
