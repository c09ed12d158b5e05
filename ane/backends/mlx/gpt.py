"""Define Tortoise's decoder for MLX: GPT-2 with a final norm and an output layer for mel codes.

The PyTorch network is in ane/models/tortoise/networks/autoregressive.py.
"""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from ane.backends.decoding import DecoderShape
from ane.backends.mlx.layers import HEAD_BITS, MlxLinear, MlxNorm, MlxPrecision, Parameters, gelu

# (index of the layer, q, k, v) → attention output; all four arrays are (n, heads, T, head_width)
Attend = Callable[[int, mx.array, mx.array, mx.array], mx.array]


class MlxBlock:
    """A pre-norm transformer block, (n, T, D) → (n, T, D). Its residual stream is float32."""

    def __init__(self, tensors: Parameters, layer: int, heads: int, precision: MlxPrecision):
        self.layer, self.heads, self.dtype = layer, heads, precision.dtype

        def norm(name: str) -> MlxNorm:
            return MlxNorm(tensors[f"gpt.h.{layer}.{name}.weight"], tensors[f"gpt.h.{layer}.{name}.bias"])

        def linear(name: str) -> MlxLinear:  # GPT-2 stores weights as (in, out)
            weight, bias = (tensors[f"gpt.h.{layer}.{name}.{part}"] for part in ("weight", "bias"))
            return MlxLinear(np.ascontiguousarray(weight.T), bias, precision.dtype, precision.bits)

        self.ln_1, self.ln_2 = norm("ln_1"), norm("ln_2")
        self.c_attn, self.c_proj = linear("attn.c_attn"), linear("attn.c_proj")
        self.mlp_in, self.mlp_out = linear("mlp.c_fc"), linear("mlp.c_proj")

    def __call__(self, x: mx.array, attend: Attend) -> mx.array:
        n, T, D = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).reshape(n, T, 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        x = x + self.c_proj(attend(self.layer, q, k, v).transpose(0, 2, 1, 3).reshape(n, T, D))
        return x + self.mlp_out(gelu(self.mlp_in(self.ln_2(x))))


class MlxGPT:
    """Tortoise's decoder on MLX. A call computes hidden states (n, T, D) from columns (n, T, D), both float32.

    ``logits`` computes the logits (n, T, V) float32 of hidden states.

    Args:
        tensors: State dict of the PyTorch network, as NumPy arrays.
        shape: Sizes of the network.
        precision: Number formats of the weights.
    """

    def __init__(self, tensors: Parameters, shape: DecoderShape, precision: MlxPrecision):
        self.shape, self.dtype = shape, precision.dtype
        self.blocks = [MlxBlock(tensors, layer, shape.heads, precision) for layer in range(shape.layers)]
        self.ln_f, self.final_norm = (
            MlxNorm(tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in ("gpt.ln_f", "final_norm")
        )
        self.mel_head = MlxLinear(
            tensors["mel_head.weight"], tensors["mel_head.bias"], precision.dtype, HEAD_BITS if precision.bits else 0
        )

    def __call__(self, x: mx.array, attend: Attend) -> mx.array:
        for block in self.blocks:
            x = block(x, attend)
        return self.final_norm(self.ln_f(x))

    def logits(self, hidden: mx.array) -> mx.array:
        return self.mel_head(hidden).astype(mx.float32)
