"""The decoder's linear layers as the CPU computes them fastest, packed one by one when the network is loaded.

A step streams all weights past a few rows of activations, so the weights' bytes decide, and whether a kernel keeps up
with them. All layers take and give float32, whatever their weights are: attention, norms and gelu around them are
faster so (in bfloat16 a step's attention takes 1.2 to 2.2 times as long, measured with AVX-512 bf16), and exact.
"""

import platform
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.models.tortoise.networks.autoregressive import Conv1D, UnifiedVoice

# weight (out, in) and bias (out,), of any floating type → a layer: (…, in) → (…, out), float32 on both sides
Prepacking = Callable[[Tensor, Tensor], nn.Module]


def prepacking(weights: str) -> Prepacking | None:
    """How this CPU wants weights of that precision ("fp32", "bf16", "fp16", "int8"); None: as they lie on disk.

    What a CPU lacks instructions for is computed by a kernel that needs none: as right, and slower.
    """
    one_dnn = torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")
    if weights == "int8":       # without VNNI oneDNN's sums of products saturate
        return Int8Linear if one_dnn and torch.cpu._is_vnni_supported() else Int8WeightLinear
    if weights == "fp16" and "fbgemm" in torch.backends.quantized.supported_engines:
        return HalfWeightLinear
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[weights]
    if one_dnn and (weights == "fp32" or (weights == "bf16" and torch.cpu._is_avx512_bf16_supported())):
        return partial(PackedLinear, dtype=dtype)
    return None if weights == "fp32" else partial(RowsLinear, dtype=dtype)


def exact_prepacking(stored: str) -> Prepacking | None:
    """How weights stored in that precision lie smallest where the arithmetic is to be float32."""
    half = stored != "fp32" and "fbgemm" in torch.backends.quantized.supported_engines
    return HalfWeightLinear if half else prepacking("fp32")


def prepack(network: UnifiedVoice, make: Prepacking) -> None:
    """Replace the linear layers of ``network`` by packed ones; each layer's own weight is let go of before the next."""
    for name in [name for name, layer in network.named_modules() if isinstance(layer, Conv1D | nn.Linear)]:
        layer = network.get_submodule(name)
        weight = layer.weight.T if isinstance(layer, Conv1D) else layer.weight
        network.set_submodule(name, make(weight, layer.bias))


class RowsLinear(nn.Module):
    """Plain torch in half precision, whose matrix-vector product reads rows: (in, out) costs 1.6 to 50 times more."""

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype):
        super().__init__()
        self.weight = weight.to(dtype, copy=True).contiguous()
        self.bias = bias.to(dtype, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias).float()


class PackedLinear(nn.Module):
    """oneDNN on a weight in its own blocked layout, which plain F.linear would make anew at every call."""

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype).contiguous())
        self.bias = bias.to(dtype, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), self.weight, self.bias, "none", [], "").float()


class HalfWeightLinear(nn.Module):
    """FBGEMM: weights in fp16, activations and sums in float32. Of weights stored in fp16 nothing is lost.

    Nor of bfloat16 ones to speak of: their 8 digits fit, and below 2^-14 the error is at most 2^-25.
    """

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), bias.float())

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x.float(), self.packed)


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (out, in) as int8, symmetric, and the scale (out,) of each output channel in float32."""
    weight = weight.float().contiguous()
    scale = torch.maximum(weight.amax(1), -weight.amin(1)).div_(127).clamp_(min=torch.finfo(torch.float32).tiny)
    return weight.div(scale[:, None]).round_().to(torch.int8), scale


class Int8Linear(nn.Module):
    """oneDNN with VNNI: int8 weights, a scale an output channel; activations in 8 bits too, a range a row.

    A row's range, from its least to its largest, is its own, so that a lane never hears of its neighbours: x = least +
    step * integer, hence x W^T = step * (integer W^T) + least * (sum of each channel's weights). What gelu gives is
    nearly all positive, so that a range about zero would waste half of the integers.
    """

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        values, self.scale = quantised(weight)
        self.sums = values.sum(1, dtype=torch.int32) * self.scale
        self.weight = torch.ops.onednn.qlinear_prepack(values, None)
        self.zeros = torch.zeros(len(values), dtype=torch.int64)
        self.bias = bias.to(torch.float32, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.float().reshape(-1, x.shape[-1])
        least = rows.amin(1, keepdim=True)
        step = rows.amax(1, keepdim=True).sub_(least).div_(255).clamp_(min=1e-20)
        integers = rows.sub(least).div_(step).add_(0.5).to(torch.uint8)         # the cast cuts off: a rounding
        y = torch.ops.onednn.qlinear_pointwise(integers, 1.0, 0, self.weight, self.scale, self.zeros, None,
                                               1.0, 0, torch.float32, "none", [], "")
        y = y.mul_(step).addcmul_(least, self.sums).add_(self.bias)
        return y.view(*x.shape[:-1], -1)


class Int8WeightLinear(nn.Module):
    """Torch's own kernel, there on any CPU: int8 weights, a scale an output channel; activations in bfloat16."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight, self.scale = quantised(weight)
        self.bias = bias.to(torch.float32, copy=True)
        self.ones = torch.ones(len(weight), dtype=torch.bfloat16)       # the kernel's scales would be rounded to this

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).bfloat16()
        y = torch._weight_int8pack_mm(rows, self.weight, self.ones).float()
        return torch.addcmul(self.bias, y, self.scale).view(*x.shape[:-1], -1)
