"""The encoder as a Core ML graph; reference: ``ane.models.whisper.networks.audio_encoder``.

A window has one length, so there is no padding and no mask.
"""

from functools import partial

import torch
from torch import nn

from ane.models.whisper.networks.audio_encoder import WhisperEncoder, WhisperEncoderBlock
from ane.models.whisper.networks.layers import WhisperAttention
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, mb
from converters.decoder_graphs import measured_scale

QUERIES = 256       # computed at once; scores of all 1500 would take 4.5 MB a head (argmaxinc/whisperkittools: 256)


def encoder_scale(network: WhisperEncoder) -> float:
    """Power of two by which the residual stream is multiplied (``scale_for``). Measured on a random spectrogram."""
    mel = torch.randn(1, network.config.n_mels, 2 * network.config.n_audio_ctx,
                      generator=torch.Generator().manual_seed(0))
    return measured_scale(network.blocks, lambda: network.float()(mel))


def encoder(network: WhisperEncoder, scale: float = 1.0) -> CoreMLGraph:
    """mel (1, M, 1, 2N) → states (1, D, 1, N)."""
    config = network.config
    return CoreMLGraph("encoder", {"states": config.n_audio_ctx},
                       {"mel": (1, config.n_mels, 1, 2 * config.n_audio_ctx)},
                       partial(_encoder, network=network, scale=scale))


def _encoder(s: Style, mel: Var, *, network: WhisperEncoder, scale: float) -> dict[str, Var]:
    x = mb.gelu(x=blocks.same_conv(s, mel, network.conv1, "conv1"), mode="EXACT")
    x = mb.gelu(x=blocks.same_conv(s, x, network.conv2, "conv2"), mode="EXACT")
    positions = network.positional_embedding.float().T[None, :, None] * scale
    x = mb.add(x=blocks.scaled(s, x, scale), y=s.const(positions))
    for index, block in enumerate(network.blocks):
        x = _block(s, x, block, scale, f"blocks.{index}")
    return {"states": blocks.layer_norm(s, x, network.ln_post, "ln_post", scale)}


def _block(s: Style, x: Var, block: WhisperEncoderBlock, scale: float, name: str) -> Var:
    """One pre-norm block: x (1, D, 1, N), scaled by ``scale``, → the same."""
    q, k, v = projections(s, blocks.layer_norm(s, x, block.attn_ln, f"{name}.attn_ln", scale), block.attn)
    y = _attention(s, q, k, v, block.attn.heads)
    x = mb.add(x=x, y=blocks.linear(s, y, block.attn.out, f"{name}.attn.out", scale))
    y = blocks.layer_norm(s, x, block.mlp_ln, f"{name}.mlp_ln", scale)
    return mb.add(x=x, y=feed_forward(s, y, block.mlp, scale, f"{name}.mlp"), name=blocks.value_name(name))


def _attention(s: Style, q: Var, k: Var, v: Var, heads: int) -> Var:
    """Attention of all positions to all, in blocks of queries: (1, D, 1, N) each."""
    N = q.shape[3]
    if N <= QUERIES:
        return blocks.attention(s, q, k, v, heads, None)
    sizes = [min(QUERIES, N - start) for start in range(0, N, QUERIES)]
    parts = mb.split(x=q, split_sizes=sizes, axis=3)
    return mb.concat(values=[blocks.attention(s, part, k, v, heads, None) for part in parts], axis=3)


# Layers of encoder and decoder; reference: ``ane.models.whisper.networks.layers``

def queries(s: Style, x: Var, attention: WhisperAttention) -> Var:
    """(1, D, 1, S), divided by √width."""
    return blocks.linear(s, x, attention.query, scale=(attention.query.out_features // attention.heads) ** -0.5)


def projections(s: Style, x: Var, attention: WhisperAttention) -> tuple[Var, Var, Var]:
    """Queries, keys and values (1, D, 1, S); the queries are divided by √width."""
    return queries(s, x, attention), blocks.linear(s, x, attention.key), blocks.linear(s, x, attention.value)


def feed_forward(s: Style, x: Var, layers: nn.Sequential, scale: float, name: str) -> Var:
    """Two linear layers with the exact GELU between them; the output is multiplied by ``scale``."""
    first, _, last = layers
    y = mb.gelu(x=blocks.linear(s, x, first, f"{name}.0"), mode="EXACT")
    return blocks.linear(s, y, last, f"{name}.2", scale)
