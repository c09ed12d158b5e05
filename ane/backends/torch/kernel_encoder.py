"""Run a block of a transformer's encoder as one call of the kernels (``ane.backends.torch.kernels``).

Like a denoiser's blocks (``ane.backends.torch.kernel_frames``), it needs a CPU with AVX-512 bf16 and VNNI, and its
attention is in bfloat16. The residual stream is float32.
"""

import ctypes

import torch
from torch import Tensor, nn

from ane.backends.torch.kernels import KernelLinear, check, library
from ane.backends.torch.linear import bias_of


class EncoderBlockArguments(ctypes.Structure):
    """``EncoderBlock`` in kernels.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("qkv", "projection", "expansion", "contraction")),
        ("heads", ctypes.c_long),
    ]


class KernelEncoderBlock(nn.Module):
    """Replace a pre-norm block: attention among all columns of a row, then two layers with GELU between them.

    Args:
        block: A module with ``heads``. Its ``encoder_parts`` has the names of a norm, the layers for queries, keys and
            values and the projection, a norm, a layer, GELU and a layer.
        kind: The precision of the weights, "int8" or "bf16". The layer after GELU is in bfloat16 with either.
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
        ]  # outputs: q, k and v of a head, then those of the next one
        qkv = KernelLinear(*by_head, kind)
        qkv.join(norm, None)
        # numbers after GELU have few large values: int8 there takes Whisper base from 28 to 21 dB, and saves a tenth
        kinds = {projection: kind, expansion: kind, contraction: "bf16"}
        others = [KernelLinear(layer.weight, layer.bias, precision) for layer, precision in kinds.items()]
        others[1].join(second_norm, gelu)
        self.layers = nn.ModuleList((qkv, *others))  # kept because the library reads their weights
        self.arguments = EncoderBlockArguments(*(layer._address for layer in self.layers), block.heads)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block: (B, T, D) → (B, T, D) float32.

        Raises:
            ValueError: ``x`` has another width or is empty. The library would read beyond it.
        """
        if x.ndim != 3 or x.shape[2] != self.channels or not x.numel():
            raise ValueError(f"x must have columns of {self.channels} channels, got {tuple(x.shape)}")
        out = x.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        call = library().ane_encoder_block
        check(call(ctypes.addressof(self.arguments), *out.shape[:2], out.data_ptr(), torch.get_num_threads()))
        return out
