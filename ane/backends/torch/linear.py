"""Make linear layers for the CPU with weights that are packed when the network is loaded.

A decoder step multiplies all weights by a few rows of activations, so its speed depends on how fast the weights can be
read. Smaller weights are faster, if there is a fast kernel for them. The decoder's layers take and return float32. The
attention, norms and GELU between them are faster and more exact in float32. With AVX-512 bf16, attention in bfloat16
takes 1.2 to 2.2 times as long.
"""

import platform
import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.backends.torch.kernels import join_layers, kernel_packing, library, quantise

# makes a layer, (…, in) → (…, out) in float32, from a weight (out, in) and a bias (out,) of any floating type
Prepacking = Callable[[Tensor, Tensor], nn.Module]

FBGEMM_PRODUCT = "linear_with_input_q_dq_qweight_dq_output_fp32"
RADIX = 128  # of the two digits, with 7 bits each
LEAST_SPAN = 1e-18  # of the numbers of a row, so that a constant row can be divided by it
UNSPLIT_CHANNELS = 1024  # channels that oneDNN adds in one order for any number of rows
FEWEST_FRAMES = 8  # a convolution over fewer frames adds in another order if it has few channels (seen with up to 4)
USUAL_LENGTH = 400  # length for which oneDNN chooses a convolution kernel's layout; other lengths can use it


def prepacking(weights: str) -> Prepacking | None:
    """Choose the fastest layer on this CPU for weights in a precision.

    If the CPU lacks the instructions for bf16, those weights become fp16. For other precisions, a slower kernel is
    used.

    Args:
        weights: "fp32", "bf16", "fp16" or "int8".

    Returns:
        A function that makes the layer. ``None`` means that the network keeps its own layers.
    """
    kernel = kernel_packing(weights)
    if kernel is not None:
        return kernel
    if weights == "int8":
        vnni = torch.cpu._is_vnni_supported()
        if has_fbgemm_int8():
            return Int8FewRowsLinear if vnni else Int8TwoDigitLinear
        return Int8Linear if vnni and has_one_dnn() else Int8WeightLinear
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[weights]
    if has_one_dnn() and weights == "fp32":
        return partial(PackedLinear, dtype=dtype)
    if has_one_dnn() and weights == "bf16" and torch.cpu._is_avx512_bf16_supported():
        return bf16_packing()
    if weights != "fp32" and has_fbgemm():
        return HalfWeightLinear
    return None if weights == "fp32" else partial(HalfPrecisionLinear, dtype=dtype)


def bf16_packing() -> Callable[..., nn.Module]:
    """Return the layer with bfloat16 weights for a CPU with these instructions. It takes ``output``, a dtype."""
    return partial(ConvolutionLinear if torch.cpu._is_amx_tile_supported() else PackedLinear, dtype=torch.bfloat16)


def has_fbgemm() -> bool:
    """Return whether torch has FBGEMM, and this CPU the instructions for it (x86-64 with AVX2)."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def has_fbgemm_int8() -> bool:
    """Return whether FBGEMM has its product of float32 activations with int8 weights."""
    return has_fbgemm() and hasattr(torch.ops.quantized, FBGEMM_PRODUCT)


def has_one_dnn() -> bool:
    """Return whether torch has oneDNN for this CPU, with its kernels for packed weights."""
    return torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")


def exact_prepacking(stored: str) -> Prepacking | None:
    """Choose the layer with the smallest weights that computes exactly, for weights stored in this precision."""
    if stored != "fp32" and library() is None and has_fbgemm():
        return HalfWeightLinear
    return prepacking("fp32" if stored == "fp32" or library() is None else "fp16")


def prepack(network: nn.Module, make: Prepacking) -> None:
    """Replace the linear layers of a network by packed ones, one after the other to save memory.

    A linear layer is an ``nn.Linear``, or a module whose ``weight_layout`` is "(in, out)".
    """
    for name in [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear) or transposed(layer)]:
        layer = network.get_submodule(name)
        weight = layer.weight.T if transposed(layer) else layer.weight
        network.set_submodule(name, make(weight, bias_of(layer, weight)))
    join_layers(network)


def bias_of(layer: nn.Module, weight: Tensor) -> Tensor:
    """Return the bias of a linear layer with a weight (out, in), or zeros if it has none."""
    return torch.zeros(len(weight), dtype=weight.dtype) if layer.bias is None else layer.bias


def transposed(layer: nn.Module) -> bool:
    """Return whether a linear layer stores its weight as (in, out), as GPT-2's Conv1D does."""
    return getattr(layer, "weight_layout", None) == "(in, out)"


class HalfPrecisionLinear(nn.Module):
    """``F.linear`` in half precision with a weight (out, in). With (in, out) it would be 1.6 to 50 times slower."""

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype):
        super().__init__()
        self.weight = weight.to(dtype, copy=True).contiguous()
        self.bias = bias.to(dtype, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias).float()


class PackedLinear(nn.Module):
    """A linear layer on oneDNN, with the weight in oneDNN's blocked layout. F.linear would convert it in every call.

    It computes a single row of more than ``UNSPLIT_CHANNELS`` channels twice. For one row, oneDNN splits such a long
    sum, and the result would differ from the result of the same row among others.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype, output: torch.dtype = torch.float32):
        super().__init__()
        self.dtype, self.output = dtype, output
        self.splits = weight.shape[1] > UNSPLIT_CHANNELS
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype).contiguous())
        self.bias = bias.to(dtype, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.splits and x.numel() == x.shape[-1]:
            return self._product(x.reshape(1, -1).repeat(2, 1))[:1].view(*x.shape[:-1], -1)
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        y = torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), self.weight, self.bias, "none", [], "")
        return y.to(self.output)


class PackedConvolution(nn.Module):
    """A zero-padded convolution on oneDNN, (R, L, C) → (R, L, O), with the kernel in oneDNN's layout.

    Args:
        weight: Kernel (O, C, taps).
        bias: Bias (O,).
        dtype: Type of weights, input and output.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype):
        super().__init__()
        self.settings = [0, weight.shape[-1] // 2], [1, 1], [1, 1], 1  # padding, stride, dilation, groups
        kernel = weight.to(dtype)[:, :, None].contiguous()
        self.weight = torch.ops.mkldnn._reorder_convolution_weight(
            kernel, *self.settings, [1, kernel.shape[1], 1, USUAL_LENGTH]
        )
        self.bias = bias.to(dtype, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        image = x.transpose(1, 2)[:, :, None]
        y = torch.ops.mkldnn._convolution_pointwise(image, self.weight, self.bias, *self.settings, "none", [], "")
        return y[:, :, 0].transpose(1, 2)


class ConvolutionLinear(nn.Module):
    """``PackedLinear`` as a convolution of one tap, for bfloat16 with AMX.

    With AMX, oneDNN splits the sum of a product by the numbers of rows and threads. It never splits the sum of a
    convolution over ``FEWEST_FRAMES`` or more, which takes as long.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype, output: torch.dtype = torch.float32):
        super().__init__()
        self.dtype, self.output = dtype, output
        self.convolution = PackedConvolution(weight[..., None], bias, dtype)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.to(self.dtype).reshape(-1, x.shape[-1])
        count = len(rows)
        if count < FEWEST_FRAMES:
            rows = F.pad(rows, (0, 0, 0, FEWEST_FRAMES - count))
        y = self.convolution(rows[None])[0, :count].to(self.output)
        return y.view(*x.shape[:-1], y.shape[-1])


class HalfWeightLinear(nn.Module):
    """A linear layer on FBGEMM, with weights in fp16 and with activations and sums in float32.

    It is exact for weights stored in fp16. Weights stored in bfloat16 are exact from 2^-14 up, because their 8
    significant bits fit. Below that, the error is at most 2^-25.

    Without AVX-512, the kernels of one and of two rows add in another order than the kernels of three to six rows.
    FBGEMM uses only the latter for a multiple of three rows, so the rows are padded to such a multiple.
    """

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), bias.float())
        self.multiple = 1 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 3

    def forward(self, x: Tensor) -> Tensor:
        rows = x.float().reshape(-1, x.shape[-1])
        count = len(rows)
        if count % self.multiple:
            rows = F.pad(rows, (0, 0, 0, -count % self.multiple))
        return torch.ops.quantized.linear_dynamic_fp16(rows, self.packed)[:count].view(*x.shape[:-1], -1)


def row_range(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimum of each row (N, in), and the distance to its maximum, which is never 0, both (N, 1)."""
    low = rows.amin(1, keepdim=True)
    return low, rows.amax(1, keepdim=True).sub_(low).clamp_(min=LEAST_SPAN)


def integers(rows: Tensor, low: Tensor, span: Tensor) -> Tensor:
    """Round rows (…, in) float32 to uint8 from 0 (``low``) to 255 (``low`` + ``span``). Both are (…, 1)."""
    half = torch.full((rows.shape[-1],), 0.5)
    above = rows.sub(low)
    steps = torch.addcmul(half, above, span.reciprocal().mul_(255), out=above)
    # adds a half because the cast truncates; torch casts to uint8 several times faster by way of int32
    return steps.to(torch.int32).to(torch.uint8)


class Int8Linear(nn.Module):
    """A linear layer on oneDNN with VNNI. Weights are int8 with a scale per output channel, activations are uint8.

    Each row of activations is quantised from its minimum to its maximum, so that no lane depends on the others:
    x = low + span * integer / 255, hence x W^T = span * (integer W^T / 255) + low * (sum of each channel's weights).
    The output of GELU is nearly all positive, so a range that is symmetric about zero would waste half of the integers.
    """

    activations = torch.uint8  # type of ``values``

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        values, scale = quantise(weight)
        self.sums = values.sum(1, dtype=torch.int32) * scale
        self.scale = scale / 255
        self.weight = torch.ops.onednn.qlinear_prepack(values, None)
        self.zeros = torch.zeros(len(values), dtype=torch.int64)
        self.bias = bias.to(torch.float32, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.float().reshape(-1, x.shape[-1])
        low, span = row_range(rows)
        return self.scaled_product(self.values(rows, low, span), low, span).view(*x.shape[:-1], -1)

    def values(self, rows: Tensor, low: Tensor, span: Tensor) -> Tensor:
        """Turn rows (…, in) float32 into the input of ``scaled_product``. Minima and ranges are (…, 1)."""
        return integers(rows, low, span)

    def scaled_product(self, integers: Tensor, low: Tensor, span: Tensor) -> Tensor:
        """Multiply integers (N, in) uint8 of rows with these minima and ranges (N, 1) → the layer's output (N, out)."""
        y = torch.ops.onednn.qlinear_pointwise(
            integers, 1.0, 0, self.weight, self.scale, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return torch.addcmul(self.bias, low, self.sums).addcmul_(y, span)


class Int8FewRowsLinear(nn.Module):
    """``Int8Linear`` on FBGEMM, for a decoder. It is faster with few rows, as fast with 32, and slower with hundreds.

    One call rounds, multiplies and scales. The results do not depend on the number of rows or threads.

    Args:
        weight: Weight (out, in).
        bias: Bias (out,).
        levels: Largest integer that an activation is rounded to. Without VNNI, FBGEMM adds two products in a 16-bit
            integer, which overflows unless activations have 7 bits (127).
    """

    activations = torch.float32  # type of ``values``

    def __init__(self, weight: Tensor, bias: Tensor, levels: int = 255):
        super().__init__()
        values, scale = quantise(weight)
        self.levels = levels
        self.sums = values.sum(1, dtype=torch.int32) * scale
        self.bias = bias.to(torch.float32, copy=True)
        with warnings.catch_warnings():  # torch warns that a later release will have no quantised tensors
            warnings.simplefilter("ignore")
            tensor = torch._make_per_channel_quantized_tensor(
                values, scale.double(), torch.zeros(len(scale), dtype=torch.int64), 0
            )
            self.packed = torch.ops.quantized.linear_prepack(tensor, torch.zeros_like(self.bias))
        self.product = getattr(torch.ops.quantized, FBGEMM_PRODUCT)

    forward = Int8Linear.forward

    def values(self, rows: Tensor, low: Tensor, span: Tensor) -> Tensor:
        """Scale rows to numbers from 0 to 1."""
        return rows.sub(low).div_(span)

    def scaled_product(self, values: Tensor, low: Tensor, span: Tensor) -> Tensor:
        return torch.addcmul(self.bias, low, self.sums).addcmul_(self.unit_product(values), span)

    def unit_product(self, unit: Tensor) -> Tensor:
        """Multiply activations from 0 to 1, (N, in), by the weight → (N, out)."""
        return self.product(unit, 1 / self.levels, 0, self.packed)


class Int8TwoDigitLinear(Int8FewRowsLinear):
    """``Int8FewRowsLinear`` for a decoder on CPUs without VNNI. Activations have 14 bits, as two rows of 7 bits.

    The logits of the embedded decoder reach 25 dB with 7 bits, and 31 dB with 14 bits. Twice as many
    rows cost little with one or two lanes, because most of the time goes into reading the weights.
    """

    def unit_product(self, unit: Tensor) -> Tensor:
        steps = unit.mul_(RADIX**2 - 1).round_()
        high = steps.div(RADIX).floor_()
        low = steps.sub_(high, alpha=RADIX)
        high, low = self.product(torch.cat((high, low)), 1.0, 0, self.packed).chunk(2)
        return low.add_(high, alpha=RADIX).div_(RADIX**2 - 1)


class Int8WeightLinear(nn.Module):
    """A linear layer on torch's kernel for any CPU, with int8 weights (a scale per output) and bfloat16 activations."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight, self.scale = quantise(weight)
        self.bias = bias.to(torch.float32, copy=True)
        self.ones = torch.ones(len(weight), dtype=torch.bfloat16)  # instead of the scales, which it would round

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).bfloat16()
        y = torch._weight_int8pack_mm(rows, self.weight, self.ones).float()
        return torch.addcmul(self.bias, y, self.scale).view(*x.shape[:-1], -1)
