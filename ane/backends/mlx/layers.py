"""Define the layers that the networks on MLX share, with axes (rows, positions, channels)."""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ane.backends.mlx.owner import device_name

GROUP = 64  # inputs that share a scale in quantised weights
HEAD_BITS = 8  # bits of the output layer, which loses too much with fewer
# precision → ``MlxPrecision.bits`` and ``worst``; the first is the default
PRECISIONS = {"fp16": (0, 40), "fp32": (0, 80), "8bit": (8, 25), "4bit": (4, 3)}

Parameters = Mapping[str, np.ndarray]  # key in the state dict → float32 or float16


@dataclass(frozen=True)
class MlxPrecision:
    """The number formats in which MLX computes.

    Attributes:
        name: Name of the precision.
        dtype: Type of weights that are not quantised, of their inputs and of caches.
        bits: Bits of the decoder's quantised weights. 0 means that they are not quantised.
        worst: Lowest signal-to-noise ratio, in dB, that the decoder may have against torch's float32. It separates
            rounding from a kernel that computes other values. It does not measure quality.
    """

    name: str
    dtype: mx.Dtype
    bits: int
    worst: float


def mlx_precision(name: str) -> MlxPrecision:
    """Return the precision of that name, a key of ``PRECISIONS``.

    Quantised weights take float32 inputs on the CPU, where MLX's products with float16 are tens of times slower.
    """
    bits, worst = PRECISIONS[name]
    wide = name == "fp32" or (bits and device_name() == "cpu")
    return MlxPrecision(name, mx.float32 if wide else mx.float16, bits, worst)


class MlxLinear:
    """A linear layer, (…, inputs) → (…, outputs), in the precision of its weight.

    Args:
        weight: Weight (outputs, inputs).
        bias: Bias (outputs,).
        dtype: Type of a weight that is not quantised.
        bits: Bits of a quantised weight. 0 means that the weight is not quantised. Neither is a weight whose number of
            inputs is not a multiple of ``GROUP``.
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
    """Group normalisation of (rows, positions, channels) in float32, over positions and the channels of a group.

    The number of groups is the same as upstream (models/arch_util.py, ``normalization``).
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
        dtype: Type of the weights.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, dtype: mx.Dtype):
        self.weight, self.bias = mx.array(weight.transpose(0, 2, 1)).astype(dtype), mx.array(bias).astype(dtype)
        mx.eval(self.weight, self.bias)

    def __call__(self, x: mx.array) -> mx.array:
        return mx.conv1d(x.astype(self.weight.dtype), self.weight, padding=1) + self.bias


def gelu(x: mx.array) -> mx.array:
    """Return the tanh form of GELU that GPT-2 uses, in one kernel on the GPU.

    On the CPU, MLX would call a C++ compiler to fuse it.
    """
    if device_name() == "gpu":
        return nn.gelu_approx(x)
    return 0.5 * x * (1 + mx.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def silu(x: mx.array) -> mx.array:
    """Return x · sigmoid(x)."""
    return x * mx.sigmoid(x)
