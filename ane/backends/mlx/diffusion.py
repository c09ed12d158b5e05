"""Define Tortoise's diffusion network for MLX.

The PyTorch network is in ane/models/tortoise/networks/diffusion_decoder.py.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from ane.backends.denoising import Denoiser
from ane.backends.mlx.layers import MlxConv, MlxGroupNorm, MlxLinear, Parameters, silu
from ane.backends.mlx.owner import on_owner

# T5's relative position bias (Raffel et al. 2020), per direction: number of buckets, number of buckets with a single
# distance, and distance at which the logarithmic scale of the other buckets ends
BUCKETS, EXACT, FURTHEST = 16, 8, 64


def distance_buckets(length: int) -> np.ndarray:
    """Return, for each pair of positions (query, key), the index of its bias in T5's relative position bias, int64."""
    offset = np.arange(length)[:, None] - np.arange(length)
    distance = np.abs(offset)
    log = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(EXACT)) / np.float32(
        math.log(FURTHEST / EXACT)
    )
    far = np.minimum(EXACT + (log * (BUCKETS - EXACT)).astype(np.int64), BUCKETS - 1)
    return np.where(distance < EXACT, distance, far) + BUCKETS * (offset < 0)


class _Weights:
    """Makes MLX layers from the tensors of a state dict whose keys start with ``prefix``."""

    def __init__(self, tensors: Parameters, dtype: mx.Dtype, prefix: str = ""):
        self.tensors, self.dtype, self.prefix = tensors, dtype, prefix

    def below(self, name: str) -> "_Weights":
        return _Weights(self.tensors, self.dtype, f"{self.prefix}{name}.")

    def get(self, name: str) -> np.ndarray:
        return self.tensors[self.prefix + name]

    def norm(self, name: str) -> MlxGroupNorm:
        return MlxGroupNorm(self.get(f"{name}.weight"), self.get(f"{name}.bias"))

    def conv(self, name: str) -> MlxConv:
        return MlxConv(self.get(f"{name}.weight"), self.get(f"{name}.bias"), self.dtype)

    def linear(self, name: str, dtype: mx.Dtype | None = None) -> MlxLinear:
        """Make a linear layer. The layer's weight may be stored as a convolution with one tap."""
        weight = self.get(f"{name}.weight")
        return MlxLinear(weight.reshape(weight.shape[:2]), self.get(f"{name}.bias"), dtype or self.dtype)


class _Residual:
    """A residual block, (rows, L, C) → (rows, L, C).

    The timestep embedding (1, C) scales and shifts its second norm.
    """

    def __init__(self, weights: _Weights):
        self.norm, self.linear = weights.norm("in_layers.0"), weights.linear("in_layers.2")
        self.time = weights.linear("emb_layers.1")
        self.out_norm, self.conv = weights.norm("out_layers.0"), weights.conv("out_layers.3")

    def __call__(self, x: mx.array, time: mx.array) -> mx.array:
        scale, shift = mx.split(self.time(time)[:, None].astype(mx.float32), 2, axis=-1)
        h = self.out_norm(self.linear(silu(self.norm(x)))) * (1 + scale) + shift
        return x + self.conv(silu(h))


class _Attention:
    """A residual attention block with a relative position bias, (rows, L, C) → (rows, L, C)."""

    def __init__(self, weights: _Weights, heads: int):
        self.heads, self.norm = heads, weights.norm("norm")
        self.qkv, self.proj_out = weights.linear("qkv"), weights.linear("proj_out")
        self.table = mx.array(weights.get("relative_pos_embeddings.relative_attention_bias.weight"))
        self._bias: dict[int, mx.array] = {}

    def bias(self, length: int) -> mx.array:
        """Return the bias to add to the attention scores, (1, heads, L, L). The latest bias stays cached."""
        if length not in self._bias:
            scale = math.sqrt(self.qkv.bias.shape[0] // 3 // self.heads)
            rows = self.table[mx.array(distance_buckets(length))].transpose(2, 0, 1) * scale
            self._bias = {length: rows[None].astype(self.qkv.bias.dtype)}
        return self._bias[length]

    def __call__(self, x: mx.array) -> mx.array:
        R, L, C = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(R, L, self.heads, 3, -1).transpose(3, 0, 2, 1, 4)
        y = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask=self.bias(L))
        return x + self.proj_out(y.transpose(0, 2, 1, 3).reshape(R, L, C))


class _Layer:
    def __init__(self, weights: _Weights, heads: int):
        self.block, self.attention = _Residual(weights.below("resblk")), _Attention(weights.below("attn"), heads)

    def __call__(self, x: mx.array, time: mx.array) -> mx.array:
        return self.attention(self.block(x, time))


class MlxDiffusion:
    """Tortoise's diffusion network. Its residual stream is float32.

    Args:
        tensors: State dict of the PyTorch network, as NumPy arrays.
        config: ``DiffusionConfig`` of the network.
        dtype: Dtype of the weights.
    """

    def __init__(self, tensors: Parameters, config: Any, dtype: mx.Dtype):
        self.channels, heads = config.model_channels, config.num_heads
        weights = _Weights(tensors, dtype)
        attention = partial(_Attention, heads=heads)
        self.conditioner = [weights.conv("latent_conditioner.0")] + [
            attention(weights.below(f"latent_conditioner.{index}")) for index in range(1, 5)
        ]
        self.code_norm = weights.norm("code_norm")
        self.unconditioned = mx.array(weights.get("unconditioned_embedding")[:, :, 0][:, None])  # (1, 1, C)
        self.time = [weights.linear(f"time_embed.{index}", mx.float32) for index in (0, 2)]
        self.integrator = [
            _Layer(weights.below(f"conditioning_timestep_integrator.{index}"), heads) for index in range(3)
        ]
        self.inp_block, self.integrating_conv = weights.conv("inp_block"), weights.linear("integrating_conv")
        self.layers = [_Layer(weights.below(f"layers.{index}"), heads) for index in range(config.num_layers)]
        self.layers += [_Residual(weights.below(f"layers.{config.num_layers + index}")) for index in range(3)]
        self.out_norm, self.out = weights.norm("out.0"), weights.conv("out.2")

    def condition(self, latents: mx.array, voice: mx.array, frames: int) -> mx.array:
        """Compute the conditioning that all denoising steps share.

        Args:
            latents: Latents (1, N, D).
            voice: Voice latent (1, 2C).
            frames: Number of mel frames.

        Returns:
            The conditioning (2, frames, C). The first row depends on the voice and the text, and the second row does
            not.
        """
        scale, shift = mx.split(voice[:, None], 2, axis=-1)
        first, *blocks = self.conditioner
        code = first(latents).astype(mx.float32)
        for block in blocks:
            code = block(code)
        code = self.code_norm(code) * (1 + scale) + shift
        nearest = np.floor(np.arange(frames, dtype=np.float32) * np.float32(latents.shape[1] / frames)).astype(np.int64)
        rows = code[:, mx.array(np.minimum(nearest, latents.shape[1] - 1))]
        return mx.concatenate([rows, mx.broadcast_to(self.unconditioned, rows.shape)])

    def __call__(self, x: mx.array, timestep: int, code: mx.array) -> mx.array:
        """Run the network for one denoising step.

        Args:
            x: Noisy mel (1, L, 100).
            timestep: Index into the trained timesteps.
            code: Conditioning (rows, L, C).

        Returns:
            The output (rows, L, 200) float32.
        """
        time = silu(self._time(timestep))
        for layer in self.integrator:
            code = layer(code, time)
        inputs = self.inp_block(x).astype(mx.float32)
        rows = mx.concatenate([mx.broadcast_to(inputs, code.shape), code], axis=-1)
        x = self.integrating_conv(rows).astype(mx.float32)
        for layer in self.layers:
            x = layer(x, time)
        return self.out(silu(self.out_norm(x))).astype(mx.float32)

    def _time(self, timestep: int) -> mx.array:
        """Compute the timestep embedding (1, C): two layers on [cos(t·f), sin(t·f)], where f_i = 10000^(−i / (C/2))."""
        half = self.channels // 2
        frequency = np.exp(np.float32(-math.log(10000)) * np.arange(half, dtype=np.float32) / np.float32(half))
        angle = np.float32(timestep) * frequency
        first, second = self.time
        return second(silu(first(mx.array(np.concatenate([np.cos(angle), np.sin(angle)])[None]))))


class MlxDenoiser(Denoiser):
    """A denoiser that is bound to one utterance.

    Args:
        network: Network that computes the steps.
        latents: Latents (1, N, D) float32.
        conditioning: Voice latent (1, 2C) float32.
        frames: Number of mel frames.
    """

    @on_owner
    def __init__(self, network: MlxDiffusion, latents: np.ndarray, conditioning: np.ndarray, frames: int):
        self.network = network
        self.code = network.condition(mx.array(latents), mx.array(conditioning), frames)
        mx.eval(self.code)

    @on_owner
    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        [mel] = x
        output = self.network(mx.array(mel.transpose(0, 2, 1)), timestep, self.code[: 1 + guided])
        return [np.ascontiguousarray(np.array(output).transpose(0, 2, 1))]
