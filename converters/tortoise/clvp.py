"""Build Core ML graphs of CLVP's two encoders, which encode text and codes.

The PyTorch network is in ``ane.models.tortoise.networks.clvp``. The host, which is the program that calls the package,
looks up embeddings. It also normalises the latents and applies the temperature, both in float32.
"""

from functools import partial

import numpy as np
import torch
from torch import nn

from ane.models.tortoise.networks.clvp import CLVP
from ane.models.tortoise.networks.layers import GatedFeedForward, RMSNorm, RotaryAttention, RotaryEncoder
from converters import blocks
from converters.blocks import PaddingMask
from converters.coreml.graph import CoreMLGraph, Style, Var, array, mb
from converters.decoder_graphs import measured_scale

MEASURED = 64  # number of random tokens, and of random codes, on which a residual stream is measured
MODULES = {"clvp_text": "text", "clvp_speech": "speech"}  # function → word in the names of the encoder's modules


def stream_scale(network: CLVP) -> float:
    """Choose the power of two by which both residual streams are multiplied (``scale_for``).

    The largest value of the streams is measured on random ids.
    """
    generator, network = torch.Generator().manual_seed(0), network.float()
    tokens, codes = (
        torch.randint(len(table.weight), (1, MEASURED), generator=generator)
        for table in (network.text_emb, network.speech_emb)
    )
    norms = [module for module in network.modules() if isinstance(module, RMSNorm | nn.LayerNorm)]
    return measured_scale(norms, lambda: (network.text(tokens), network.speech(codes)))


def encoder(kind: str, network: CLVP, positions: int, scale: float = 1.0) -> CoreMLGraph:
    """Describe the graph that encodes embeddings x (1, width, 1, T) to a latent (1, E, 1, 1).

    x is 0 in the padding. The other two inputs are inside and mean_weight, both (1, 1, 1, T), which
    ``blocks.PaddingMask`` explains. The latent is not normalised.
    """
    path, projection = f"{MODULES[kind]}_transformer.transformer", getattr(network, f"to_{MODULES[kind]}_latent")
    transformer = network.get_submodule(path)

    def body(s: Style, x: Var, inside: Var, mean_weight: Var) -> dict[str, Var]:
        padding = PaddingMask.of(s, inside, mean_weight)
        rotation = _rotation(s, transformer, x.shape[3])
        x = blocks.scaled(s, x, scale)
        for index, ((norm,), block) in enumerate(transformer.attn_layers.layers):
            block, name = getattr(block, "wrap", block), f"{path}.attn_layers.layers.{index}.1"
            y = unit_norm(s, x)
            y = (
                _attention(s, y, block, norm, padding.mask, rotation, scale, name)
                if isinstance(block, RotaryAttention)
                else _feed_forward(s, y, block, norm, scale, name)
            )
            x = mb.add(x=x, y=y)
        x = blocks.layer_norm(s, x, transformer.norm, f"{path}.norm", scale)
        mean = mb.reduce_sum(x=mb.mul(x=x, y=padding.mean_weight), axes=[3], keep_dims=True)
        return {"latent": blocks.linear(s, mean, projection)}

    row = (1, 1, 1, positions)
    return CoreMLGraph(
        kind,
        {"positions": positions},
        {"x": (1, projection.in_features, 1, positions), "inside": row, "mean_weight": row},
        body,
    )


clvp_text, clvp_speech = partial(encoder, "clvp_text"), partial(encoder, "clvp_speech")


def unit_norm(s: Style, x: Var) -> Var:
    """Divide each column by its L2 norm: (1, C, 1, T) → (1, C, 1, T).

    This function replaces RMSNorm, which also multiplies by √C · g. ``_after_norm`` instead multiplies the next layer's
    weights by √C · g. RMSNorm's eps is not needed.

    A column is first divided by its largest value. The sum of its squares is then between 1 and C, and cannot overflow
    or underflow fp16, whatever the scale of the residual stream. The smallest normal number is added to each divisor,
    because a column of zeros, such as padding, would divide by zero. This number does not change other columns, because
    the second division cancels the first division.

    coremltools' ``mb.l2_norm`` cannot be used, because it normalises over the last three axes.
    """
    tiny = np.finfo(s.dtype).tiny
    most = mb.reduce_max(x=mb.abs(x=x), axes=[1], keep_dims=True)
    x = mb.real_div(x=x, y=mb.add(x=most, y=tiny))
    squares = mb.reduce_sum(x=mb.square(x=x), axes=[1], keep_dims=True)
    return mb.mul(x=x, y=mb.rsqrt(x=squares, epsilon=tiny))


def _after_norm(norm: RMSNorm, *linears: nn.Linear) -> np.ndarray:
    """Stack the weights of the layers after a norm, multiplied by the norm's gains: (O, C, 1, 1).

    The layers then take the output of ``unit_norm`` instead of the norm's output.
    """
    weight = np.concatenate([blocks.kernel(linear)[0] for linear in linears])
    return weight * (array(norm.g) * np.float32(len(norm.g) ** 0.5))[:, None, None]


def _rotation(s: Style, encoder: RotaryEncoder, length: int) -> tuple[Var, Var]:
    """Return cosine and sine of the rotary angles, (1, 1, 16, T) each.

    The angles are computed in float32, as in the PyTorch network.
    """
    frequency = array(encoder.attn_layers.rotary_pos_emb.inv_freq)
    angle = frequency[None, None, :, None] * np.arange(length, dtype=np.float32)
    return tuple(mb.const(val=s.const(values)) for values in (np.cos(angle), np.sin(angle)))


def _attention(
    s: Style,
    x: Var,
    layer: RotaryAttention,
    norm: RMSNorm,
    mask: Var,
    rotation: tuple[Var, Var],
    scale: float,
    name: str,
) -> Var:
    weight = _after_norm(norm, layer.to_q, layer.to_k, layer.to_v)
    weight[: len(weight) // 3] *= layer.head_width**-0.5
    joined = blocks.split_heads(blocks.conv(s, x, weight, None), 3 * layer.heads)  # (1, 3·heads, 64, T)
    q, k, v = mb.split(x=blocks.join_heads(_rotated(joined, layer.rotated // 2, rotation)), num_splits=3, axis=1)
    return blocks.linear(s, blocks.attention(s, q, k, v, layer.heads, mask), layer.to_out, name, scale)


def _rotated(x: Var, half: int, rotation: tuple[Var, Var]) -> Var:
    """Rotate the first 2·``half`` channels of each head in x (1, heads, width, T), in pairs (c, c + half)."""
    cos, sin = rotation
    first, second, rest = mb.split(x=x, split_sizes=[half, half, x.shape[2] - 2 * half], axis=2)
    return mb.concat(
        values=[
            mb.sub(x=mb.mul(x=first, y=cos), y=mb.mul(x=second, y=sin)),
            mb.add(x=mb.mul(x=second, y=cos), y=mb.mul(x=first, y=sin)),
            rest,
        ],
        axis=2,
    )


def _feed_forward(s: Style, x: Var, layer: GatedFeedForward, norm: RMSNorm, scale: float, name: str) -> Var:
    gated = layer.net["0"].proj
    x, gate = mb.split(x=blocks.conv(s, x, _after_norm(norm, gated), array(gated.bias)), num_splits=2, axis=1)
    return blocks.linear(s, mb.mul(x=x, y=mb.gelu(x=gate, mode="EXACT")), layer.net["3"], name, scale)
