"""Define the layers that both networks on MLX use. Their inputs are (rows, positions, channels)."""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ane.backends.mlx.owner import device_name

GROUP = 64  # in a quantised weight, 64 neighbouring inputs share a scale
HEAD_BITS = 8  # bits of the output layer's weight if the decoder is quantised: fewer bits lose too much
# name of a precision → its ``MlxPrecision.bits`` and ``MlxPrecision.worst``; the first precision is the default
PRECISIONS = {"fp16": (0, 40), "fp32": (0, 80), "8bit": (8, 25), "4bit": (4, 3)}

Parameters = Mapping[str, np.ndarray]  # key of the state dict → parameter, float32 or float16


@dataclass(frozen=True)
class MlxPrecision:
    """The number formats in which MLX computes.

    Attributes:
        name: Name of the precision.
        dtype: Dtype of weights that are not quantised, of the inputs of their layers, and of the kv-caches.
        bits: Bits per number in the decoder's quantised weights. 0 means that the decoder is not quantised.
        worst: Lowest signal-to-noise ratio, in dB, that the decoder's outputs may have to the outputs of torch in
            float32. This limit separates rounding errors from a faulty kernel. It is not a measure of quality.
    """

    name: str
    dtype: mx.Dtype
    bits: int
    worst: float


def mlx_precision(name: str) -> MlxPrecision:
    """Return the precision with this name, which is a key of ``PRECISIONS``.

    On the CPU, the precision lets layers with quantised weights take float32 inputs, because MLX's products with
    float16 inputs are tens of times slower there.
    """
    bits, worst = PRECISIONS[name]
    wide = name == "fp32" or (bits and device_name() == "cpu")
    return MlxPrecision(name, mx.float32 if wide else mx.float16, bits, worst)


class MlxLinear:
    """A linear layer, (…, inputs) → (…, outputs).

    Args:
        weight: Weight (outputs, inputs).
        bias: Bias (outputs,).
        dtype: Dtype of the weight if it is not quantised.
        bits: Bits per number to which to quantise the weight. 0 means that the weight is not quantised. The layer also
            does not quantise a weight if its number of inputs is not a multiple of ``GROUP``.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, dtype: mx.Dtype, bits: int = 0):
        self.bits = 0 if weight.shape[1] % GROUP else bits
        self.bias, stored = mx.array(bias).astype(dtype), mx.array(weight).astype(dtype)
        self.weight = mx.quantize(stored, group_size=GROUP, bits=bits) if self.bits else [stored]
        mx.eval(self.weight, self.bias)

    def __call__(self, x: mx.array) -> mx.array:
        x = x.astype(self.bias.dtype)
        if not self.bits:
            return mx.addmm(self.bias, x, self.weight[0].T)
        return mx.quantized_matmul(x, *self.weight, transpose=True, group_size=GROUP, bits=self.bits) + self.bias


class MlxNorm:
    """Layer normalisation over channels in float32, with the epsilon of GPT-2 (1e-5)."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray):
        self.weight, self.bias = mx.array(weight).astype(mx.float32), mx.array(bias).astype(mx.float32)

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.layer_norm(x.astype(mx.float32), self.weight, self.bias, 1e-5)


class MlxGroupNorm:
    """Group normalisation of (rows, positions, channels) in float32. It averages over positions and a group's channels.

    The number of groups is the same as in the official code (models/arch_util.py, ``normalization``).
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray):
        channels = len(weight)
        self.groups = 8 if channels <= 16 else 16 if channels <= 64 else 32
        while channels % self.groups:
            self.groups //= 2
        self.weight, self.bias = mx.array(weight).astype(mx.float32), mx.array(bias).astype(mx.float32)

    def __call__(self, x: mx.array) -> mx.array:
        rows, positions, channels = x.shape
        grouped = x.astype(mx.float32).reshape(rows, positions, self.groups, -1).transpose(0, 2, 1, 3)
        shape = grouped.shape
        grouped = mx.fast.layer_norm(grouped.reshape(rows, self.groups, -1), None, None, 1e-5).reshape(shape)
        return grouped.transpose(0, 2, 1, 3).reshape(rows, positions, channels) * self.weight + self.bias


class MlxConv:
    """A convolution over three neighbouring positions, zero-padded, (rows, L, inputs) → (rows, L, outputs).

    Args:
        weight: Kernel (outputs, inputs, 3), as torch stores it.
        bias: Bias (outputs,).
        dtype: Dtype of the weight.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, dtype: mx.Dtype):
        self.weight, self.bias = mx.array(weight.transpose(0, 2, 1)).astype(dtype), mx.array(bias).astype(dtype)
        mx.eval(self.weight, self.bias)

    def __call__(self, x: mx.array) -> mx.array:
        return mx.conv1d(x.astype(self.weight.dtype), self.weight, padding=1) + self.bias


def gelu(x: mx.array) -> mx.array:
    """Compute GELU in the tanh form of GPT-2.

    On the GPU, MLX fuses the operations of GELU into one kernel. On the CPU it does not, because MLX would need a C++
    compiler.
    """
    if device_name() == "gpu":
        return nn.gelu_approx(x)
    return 0.5 * x * (1 + mx.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def silu(x: mx.array) -> mx.array:
    """Compute x · sigmoid(x)."""
    return x * mx.sigmoid(x)
