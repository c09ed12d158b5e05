"""Make linear layers for the CPU, whose weights are packed (converted to a kernel's layout) when the network loads.

A decoder step multiplies all weights by a few rows of activations, so it is as fast as the CPU can read the weights.
Smaller weights are faster if there is a fast kernel for them. The decoder's layers take and return float32, because the
attention, norms and GELUs between them are faster and more exact in float32. Even with AVX-512 bf16, attention in
bfloat16 takes 1.2 to 2.2 times as long.
"""

import platform
import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.backends.torch.kernels import join_layers, kernel_packing, library, quantise

# function that makes a layer, (…, in) → (…, out) float32, from a weight (out, in) and a bias (out,) of any float dtype
Prepacking = Callable[[Tensor, Tensor], nn.Module]

FBGEMM_PRODUCT = "linear_with_input_q_dq_qweight_dq_output_fp32"
RADIX = 128  # base of the two digits in ``Int8TwoDigitLinear``, which have 7 bits each
LEAST_SPAN = 1e-18  # smallest range of a row, by which a row of equal numbers can be divided
UNSPLIT_CHANNELS = 1024  # up to this many channels, oneDNN adds in the same order for any number of rows
FEWEST_FRAMES = 8  # with few channels, a convolution over fewer frames (seen with up to 4) adds in another order
USUAL_LENGTH = 400  # oneDNN chooses a convolution kernel's layout for this number of frames; it also works for others

# Most rows that torch multiplies by fp16 or int8 weights on CPUs that are not x86-64. It computes a dot product per row
# and output: n rows take max(2 / B, 2 n / R) seconds per fp16 weight, at B bytes/s from memory and R FLOP/s. A weight
# that is converted to float32 first takes about (2 + 4 + 4) / B seconds, because a Mac has matrix units for float32. So
# few rows are faster in fp16 up to n = 5 R / B. With R = 205e9, half the peak of an M1's four fast cores, and B = 68e9,
# n is 15. This is an estimate: on a Mac, `ane bench` measures fp16 and float32.
FEW_ROWS = 16


def prepacking(weights: str) -> Prepacking | None:
    """Choose the class of linear layer that is fastest on this CPU for weights in a precision.

    If the CPU lacks the instructions for bf16, or is not x86-64, weights become fp16. If the CPU lacks the instructions
    for another precision, a slower kernel computes in this precision.

    Args:
        weights: Precision of the weights, "fp32", "bf16", "fp16" or "int8".

    Returns:
        A function that makes the layer. ``None`` means that the network keeps its layers.
    """
    kernel = kernel_packing(weights)
    if kernel is not None:
        return kernel
    if weights == "int8":
        vnni = torch.cpu._is_vnni_supported()
        if has_fbgemm_int8():
            return Int8FewRowsLinear if vnni else Int8TwoDigitLinear
        return Int8Linear if vnni and has_one_dnn() else Int8WeightLinear
    if has_one_dnn() and weights == "fp32":
        return partial(PackedLinear, dtype=torch.float32)
    if has_one_dnn() and weights == "bf16" and torch.cpu._is_avx512_bf16_supported():
        return bf16_packing()
    if weights != "fp32" and has_fbgemm():
        return HalfWeightLinear
    return None if weights == "fp32" else HalfPrecisionLinear


def bf16_packing() -> Callable[..., nn.Module]:
    """Return the class of layers with bfloat16 weights for this CPU, which has AVX-512 bf16.

    The class takes the dtype of the output as ``output``.
    """
    return partial(ConvolutionLinear if torch.cpu._is_amx_tile_supported() else PackedLinear, dtype=torch.bfloat16)


def has_fbgemm() -> bool:
    """Return whether torch contains FBGEMM, and this CPU has the instructions for it (x86-64 with AVX2)."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def has_fbgemm_int8() -> bool:
    """Return whether FBGEMM can multiply float32 activations by int8 weights here."""
    return has_fbgemm() and hasattr(torch.ops.quantized, FBGEMM_PRODUCT)


def has_one_dnn() -> bool:
    """Return whether torch contains oneDNN with kernels for packed weights on this CPU."""
    return torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")


def exact_prepacking(stored: str) -> Prepacking | None:
    """Choose the class of linear layer that keeps weights of this precision exact and takes the least memory."""
    if stored != "fp32" and library() is None and has_fbgemm():
        return HalfWeightLinear
    return prepacking("fp32" if stored == "fp32" or library() is None else "fp16")


def prepack(network: nn.Module, make: Prepacking) -> None:
    """Replace the linear layers of a network by packed layers, one after another to save memory.

    A linear layer is an ``nn.Linear``, or a module whose attribute ``weight_layout`` is "(in, out)".
    """
    for name in [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear) or transposed(layer)]:
        layer = network.get_submodule(name)
        weight = layer.weight.T if transposed(layer) else layer.weight
        network.set_submodule(name, make(weight, bias_of(layer, weight)))
    join_layers(network)


def bias_of(layer: nn.Module, weight: Tensor) -> Tensor:
    """Return the bias of a linear layer, or zeros (out,) if it has none. ``weight`` is (out, in)."""
    return torch.zeros(len(weight), dtype=weight.dtype) if layer.bias is None else layer.bias


def transposed(layer: nn.Module) -> bool:
    """Return whether a linear layer stores its weight as (in, out), as GPT-2's Conv1D does."""
    return getattr(layer, "weight_layout", None) == "(in, out)"


def is_short(x: Tensor) -> bool:
    """Return whether activations (…, in) are so few rows that a product takes as long as reading the weights."""
    return x.numel() <= FEW_ROWS * x.shape[-1]


class HalfPrecisionLinear(nn.Module):
    """A linear layer with fp16 weights (out, in), for CPUs that are not x86-64.

    Up to ``FEW_ROWS`` rows are rounded to fp16 and multiplied as they are, with sums in float32. For more rows, the
    layer converts its weight to float32 in each call. This takes 4 · out · in bytes during the call.

    With a weight stored as (in, out), ``F.linear`` would take 1.6 to 50 times as long.
    """

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight = weight.to(torch.float16, copy=True).contiguous()
        self.bias = bias.to(torch.float32, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.float16 if is_short(x) else torch.float32
        return F.linear(x.to(dtype), self.weight.to(dtype)).float().add_(self.bias)


class PackedLinear(nn.Module):
    """A linear layer on oneDNN, with the weight in oneDNN's layout.

    ``F.linear`` would convert the weight in every call.

    If the input is a single row of more than ``UNSPLIT_CHANNELS`` channels, oneDNN splits the sum. The result then has
    other bits than if the same row came together with other rows. The layer therefore computes a single long row twice,
    as two equal rows.
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
        dtype: Dtype of the kernel, the input and the output.
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
    """A linear layer that runs as a convolution with one tap.

    It replaces ``PackedLinear`` for bfloat16 on CPUs with AMX. With AMX, oneDNN splits the sums of a matrix product in
    a way that depends on the numbers of rows and threads. oneDNN does not split the sums of a convolution over
    ``FEWEST_FRAMES`` frames or more. The convolution takes as long as the product.
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
    """A linear layer on FBGEMM, with fp16 weights and with float32 activations and sums.

    Weights that were stored in fp16 stay exact. Weights that were stored in bfloat16 have 8 significant bits. They stay
    exact in fp16 if they are at least 2^-14, and smaller weights have an error of at most 2^-25.

    On a CPU without AVX-512, FBGEMM's kernels for one and two rows add in another order than its kernels for three to
    six rows. The layer pads its rows to a multiple of three, because FBGEMM then uses only the second group of kernels.
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
    """Return the minimum and the range of each row (N, in), both (N, 1). The range is never 0."""
    low = rows.amin(1, keepdim=True)
    return low, rows.amax(1, keepdim=True).sub_(low).clamp_(min=LEAST_SPAN)


def integers(rows: Tensor, low: Tensor, span: Tensor) -> Tensor:
    """Quantise rows (…, in) float32 to uint8. ``low`` (…, 1) becomes 0, and ``low`` + ``span`` (…, 1) becomes 255."""
    half = torch.full((rows.shape[-1],), 0.5)
    above = rows.sub(low)
    steps = torch.addcmul(half, above, span.reciprocal().mul_(255), out=above)
    # add a half, because the cast truncates; cast to int32 first, because torch is then several times faster
    return steps.to(torch.int32).to(torch.uint8)


class Int8Linear(nn.Module):
    """An int8 linear layer on oneDNN, for CPUs with VNNI. Activations are uint8. Weights have one scale per output.

    Each row of activations is quantised from its minimum to its maximum, so that no row depends on other rows. The
    activations are low + span * integer / 255, so the product with W^T is span * (integer W^T / 255) + low * (sum of
    each output's weights). Nearly all outputs of GELU are positive, so a range that is symmetric about zero would waste
    half of the integers.
    """

    activations = torch.uint8  # dtype of the tensor that ``values`` returns

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
        """Quantise rows (…, in) for ``scaled_product``.

        The rows' minima ``low`` and ranges ``span`` are both (…, 1).
        """
        return integers(rows, low, span)

    def scaled_product(self, integers: Tensor, low: Tensor, span: Tensor) -> Tensor:
        """Compute the layer's output (N, out) from quantised rows (N, in) uint8 and their minima and ranges (N, 1)."""
        y = torch.ops.onednn.qlinear_pointwise(
            integers, 1.0, 0, self.weight, self.scale, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return torch.addcmul(self.bias, low, self.sums).addcmul_(y, span)


class Int8FewRowsLinear(nn.Module):
    """An int8 linear layer on FBGEMM, for the few rows of a decoder step.

    It computes the same formula as ``Int8Linear``. It is faster than ``Int8Linear`` for a few rows, as fast for 32
    rows, and slower for hundreds of rows. A single call of FBGEMM rounds, multiplies and scales. The bits of a row do
    not depend on the number of rows or threads.

    Args:
        weight: Weight (out, in).
        bias: Bias (out,).
        levels: Largest integer to which activations are rounded. Without VNNI it must be 127 (7 bits), because FBGEMM
            then adds two products in a 16-bit integer, which would overflow.
    """

    activations = torch.float32  # dtype of the tensor that ``values`` returns

    def __init__(self, weight: Tensor, bias: Tensor, levels: int = 255):
        super().__init__()
        values, scale = quantise(weight)
        self.levels = levels
        self.sums = values.sum(1, dtype=torch.int32) * scale
        self.bias = bias.to(torch.float32, copy=True)
        with warnings.catch_warnings():  # hides torch's warning that a later release will drop quantised tensors
            warnings.simplefilter("ignore")
            tensor = torch._make_per_channel_quantized_tensor(
                values, scale.double(), torch.zeros(len(scale), dtype=torch.int64), 0
            )
            self.packed = torch.ops.quantized.linear_prepack(tensor, torch.zeros_like(self.bias))
        self.product = getattr(torch.ops.quantized, FBGEMM_PRODUCT)

    forward = Int8Linear.forward

    def values(self, rows: Tensor, low: Tensor, span: Tensor) -> Tensor:
        """Scale the numbers of rows, so that ``low`` becomes 0 and ``low`` + ``span`` becomes 1."""
        return rows.sub(low).div_(span)

    def scaled_product(self, values: Tensor, low: Tensor, span: Tensor) -> Tensor:
        return torch.addcmul(self.bias, low, self.sums).addcmul_(self.unit_product(values), span)

    def unit_product(self, unit: Tensor) -> Tensor:
        """Multiply activations (N, in) between 0 and 1 by the weight. Returns (N, out)."""
        return self.product(unit, 1 / self.levels, 0, self.packed)


class Int8TwoDigitLinear(Int8FewRowsLinear):
    """An int8 linear layer for a decoder on CPUs without VNNI, with activations of 14 bits.

    It splits a row into two rows of 7 bits, for ``Int8FewRowsLinear``. Twice as many rows cost little for one or two
    lanes, because reading the weights takes most of the time. The logits of the decoder in the bundle "demo" have 31 dB
    with 14 bits, and 25 dB with 7 bits.
    """

    def unit_product(self, unit: Tensor) -> Tensor:
        steps = unit.mul_(RADIX**2 - 1).round_()
        high = steps.div(RADIX).floor_()
        low = steps.sub_(high, alpha=RADIX)
        high, low = self.product(torch.cat((high, low)), 1.0, 0, self.packed).chunk(2)
        return low.add_(high, alpha=RADIX).div_(RADIX**2 - 1)


class Int8WeightLinear(nn.Module):
    """A linear layer with int8 weights and float32 activations, on torch kernels that run on any CPU.

    Weights have one scale per output. For more than ``FEW_ROWS`` rows, the layer converts its weight to float32 in each
    call.
    """

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight, self.scale = quantise(weight)
        self.bias = bias.to(torch.float32, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        if not is_short(x):
            return F.linear(x, self.weight * self.scale[:, None], self.bias)
        y = torch._weight_int8pack_mm(x.reshape(-1, x.shape[-1]), self.weight, self.scale)
        return y.add_(self.bias).view(*x.shape[:-1], -1)
