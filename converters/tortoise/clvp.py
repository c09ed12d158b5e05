"""The encoders of CLVP, channels first; twins of ``ane.models.tortoise.networks.clvp``, one graph for each side.

Look-up tables stay on the host, and so do the normalisation of the latent and the temperature: both are float32 there.
"""

from functools import partial

import numpy as np
from torch import nn

from ane.models.tortoise.networks.clvp import CLVP
from ane.models.tortoise.networks.layers import GatedFeedForward, RMSNorm, RotaryAttention, RotaryEncoder
from converters import blocks as layers
from converters.blocks import Frames
from converters.coreml.graph import Graph, Style, Var, array, mb

SCALE = 1 / 64          # of the residual stream (layers, principle 7)


def clvp_text(twin: CLVP, places: int) -> Graph:
    """x (1, width, 1, T), inside and share (1, 1, 1, T) → latent (1, E, 1, 1), not normalised.

    x is the embeddings, 0 in the padding; inside and share as in ``layers.Frames``.
    """
    return _graph("clvp_text", twin, "text_transformer.transformer", twin.to_text_latent, places)


def clvp_speech(twin: CLVP, places: int) -> Graph:
    """As ``clvp_text``, of codes."""
    return _graph("clvp_speech", twin, "speech_transformer.transformer", twin.to_speech_latent, places)


def _graph(kind: str, twin: CLVP, encoder: str, projection: nn.Linear, places: int) -> Graph:
    """``encoder`` is the path of its module."""
    row = (1, 1, 1, places)
    return Graph(kind, {"places": places}, {"x": (1, projection.in_features, 1, places), "inside": row, "share": row},
                 partial(_latent, encoder=twin.get_submodule(encoder), projection=projection, path=encoder))


def _latent(s: Style, x: Var, inside: Var, share: Var, *, encoder: RotaryEncoder,
            projection: nn.Linear,
            path: str) -> dict[str, Var]:
    frames = Frames.of(s, inside, share)
    turn = _rotation(s, encoder, x.shape[3])
    x = mb.mul(x=x, y=s.dtype(SCALE))
    for index, ((norm,), block) in enumerate(encoder.attn_layers.layers):
        block, name = getattr(block, "wrap", block), f"{path}.attn_layers.layers.{index}.1"
        y = unit(s, x)
        y = (_attention(s, y, block, norm, frames.mask, turn, name) if isinstance(block, RotaryAttention)
             else _feed_forward(s, y, block, norm, name))
        x = mb.add(x=x, y=y)
    x = layers.layer_norm(s, x, encoder.norm, f"{path}.norm", SCALE)
    mean = mb.reduce_sum(x=mb.mul(x=x, y=frames.share), axes=[3], keep_dims=True)
    return {"latent": layers.linear(s, mean, projection)}


def unit(s: Style, x: Var) -> Var:
    """Each column divided by its length: (1, C, 1, T). RMSNorm is that times √C · g, which the next weights carry.

    First by its largest value, which leaves a sum of squares between 1 and C: no stream is too large for fp16 then, and
    none so small that its squares vanish; the scale of the stream does not matter, and there is no eps to be scaled
    with it. ``mb.l2_norm`` is no help: it takes the three last axes together, columns and all.

    The smallest normal number is added where a column of zeros, the padding at first, would divide by zero. Elsewhere
    it changes nothing: the first division is made good by the second.
    """
    def divided(x: Var, dtype: type) -> Var:
        tiny = np.finfo(dtype).tiny
        most = mb.reduce_max(x=mb.abs(x=x), axes=[1], keep_dims=True)
        x = mb.real_div(x=x, y=mb.add(x=most, y=tiny))
        squares = mb.reduce_sum(x=mb.square(x=x), axes=[1], keep_dims=True)
        return mb.mul(x=x, y=mb.rsqrt(x=squares, epsilon=tiny))

    return s.widened("norm", divided, x)


def _after_norm(norm: RMSNorm, *twins: nn.Linear) -> np.ndarray:
    """Weights of layers that read a norm, one above the other, for the ``unit`` in its place: (O, C, 1, 1)."""
    weight = np.concatenate([layers.kernel(twin)[0] for twin in twins])
    return weight * (array(norm.g) * np.float32(len(norm.g) ** 0.5))[:, None, None]


def _rotation(s: Style, encoder: RotaryEncoder, places: int) -> tuple[Var, Var]:
    """Cosine and sine of the angles, (1, 1, 16, T) each; the angles in float32, as the twin has them."""
    frequency = array(encoder.attn_layers.rotary_pos_emb.inv_freq)
    angle = frequency[None, None, :, None] * np.arange(places, dtype=np.float32)
    return tuple(mb.const(val=s.const(values)) for values in (np.cos(angle), np.sin(angle)))


def _attention(s: Style, x: Var, twin: RotaryAttention, norm: RMSNorm, mask: Var, turn: tuple[Var, Var],
               name: str) -> Var:
    weight = _after_norm(norm, twin.to_q, twin.to_k, twin.to_v)
    weight[:len(weight) // 3] *= twin.head_width ** -0.5
    joined = layers.in_heads(layers.conv(s, x, weight, None), 3 * twin.heads)            # (1, 3·heads, 64, T)
    q, k, v = mb.split(x=layers.together(_rotated(joined, twin.rotated // 2, turn)), num_splits=3, axis=1)
    return layers.linear(s, layers.attention(s, q, k, v, twin.heads, mask), twin.to_out, name, SCALE)


def _rotated(x: Var, half: int, turn: tuple[Var, Var]) -> Var:
    """The first 2·``half`` channels of each head turned in pairs (c, c + half): (1, heads, width, T)."""
    cos, sin = turn
    first, second, rest = mb.split(x=x, split_sizes=[half, half, x.shape[2] - 2 * half], axis=2)
    return mb.concat(values=[mb.sub(x=mb.mul(x=first, y=cos), y=mb.mul(x=second, y=sin)),
                             mb.add(x=mb.mul(x=second, y=cos), y=mb.mul(x=first, y=sin)), rest], axis=2)


def _feed_forward(s: Style, x: Var, twin: GatedFeedForward, norm: RMSNorm, name: str) -> Var:
    gated = twin.net["0"].proj
    x, gate = mb.split(x=layers.conv(s, x, _after_norm(norm, gated), array(gated.bias)), num_splits=2, axis=1)
    return layers.linear(s, mb.mul(x=x, y=mb.gelu(x=gate, mode="EXACT")), twin.net["3"], name, SCALE)
