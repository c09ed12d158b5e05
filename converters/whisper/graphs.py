"""Build Core ML graphs of Whisper's networks.

References: ``ane.models.whisper.networks``. The encoder's window has one length, so there is no padding and no mask.
The decoder's function ``memory`` computes the keys and values of the cross-attention once per window. All others take
them as the inputs memory_keys and memory_values (layers, heads, width, N). So all columns of a call belong to one
window. The vocabulary is longer than an axis may be on the Neural Engine. The logits are therefore several consecutive
outputs: logits_0, logits_1, … (1, part of V, 1, columns).
"""

from functools import partial

import numpy as np
import torch
from torch import nn

from ane.models.whisper import networks
from ane.models.whisper.networks import WhisperAttention, WhisperDecoder, WhisperEncoder
from converters import blocks
from converters.blocks import LayerPool
from converters.coreml.graph import CoreMLGraph, Style, Var, array, mb
from converters.decoder_graphs import DecoderGraphBuilder, Pools, measured_scale
from converters.neural_engine import MAX_AXIS

QUERIES = 256  # computed at once. All 1500 would take 4.5 MB of scores per head (argmaxinc/whisperkittools: 256)


def encoder_scale(network: WhisperEncoder) -> float:
    """Return the power of two that multiplies the residual stream (``scale_for``), measured on a random spectrogram."""
    mel = torch.randn(
        1, network.config.n_mels, 2 * network.config.n_audio_ctx, generator=torch.Generator().manual_seed(0)
    )
    return measured_scale(network.blocks, lambda: network.float()(mel))


def encoder(network: WhisperEncoder, scale: float = 1.0) -> CoreMLGraph:
    """Return the graph mel (1, M, 1, 2N) → states (1, D, 1, N)."""

    def body(s: Style, mel: Var) -> dict[str, Var]:
        x = mb.gelu(x=blocks.same_conv(s, mel, network.conv1, "conv1"), mode="EXACT")
        x = mb.gelu(x=blocks.same_conv(s, x, network.conv2, "conv2"), mode="EXACT")
        positions = network.positional_embedding.float().T[None, :, None] * scale
        x = mb.add(x=blocks.scaled(s, x, scale), y=s.const(positions))
        for index, block in enumerate(network.blocks):
            x = _encoder_block(s, x, block, scale, f"blocks.{index}")
        return {"states": blocks.layer_norm(s, x, network.ln_post, "ln_post", scale)}

    config = network.config
    return CoreMLGraph(
        "encoder", {"states": config.n_audio_ctx}, {"mel": (1, config.n_mels, 1, 2 * config.n_audio_ctx)}, body
    )


def _encoder_block(s: Style, x: Var, block: networks.WhisperEncoderBlock, scale: float, name: str) -> Var:
    """Apply one pre-norm block: x (1, D, 1, N), scaled by ``scale``, → x."""
    q, k, v = projections(s, blocks.layer_norm(s, x, block.attn_ln, f"{name}.attn_ln", scale), block.attn)
    y = attend_to_all(s, q, k, v, block.attn.heads)
    x = mb.add(x=x, y=blocks.linear(s, y, block.attn.out, f"{name}.attn.out", scale))
    y = blocks.layer_norm(s, x, block.mlp_ln, f"{name}.mlp_ln", scale)
    return mb.add(x=x, y=feed_forward(s, y, block.mlp, scale, f"{name}.mlp"), name=blocks.value_name(name))


def attend_to_all(s: Style, q: Var, k: Var, v: Var, heads: int) -> Var:
    """Let all positions attend to all, in blocks of queries: (1, D, 1, N) each.

    The mean of the values bypasses the attention, which changes nothing while its weights add up to 1. Many weights of
    trained networks are subnormal in fp16, and an M1 replaces them by 0. Together they are near a mean.
    """
    N, mean = q.shape[3], mb.reduce_mean(x=v, axes=[3], keep_dims=True)
    v = mb.sub(x=v, y=mean)
    sizes = [min(QUERIES, N - start) for start in range(0, N, QUERIES)]
    parts = [q] if len(sizes) == 1 else mb.split(x=q, split_sizes=sizes, axis=3)
    attended = [blocks.attention(s, part, k, v, heads, None) for part in parts]
    return mb.add(x=blocks.joined(attended, 3), y=mean)


# Layers of encoder and decoder; reference: ``ane.models.whisper.networks``


def queries(s: Style, x: Var, attention: WhisperAttention) -> Var:
    """Return queries (1, D, 1, S), divided by √width."""
    return blocks.linear(s, x, attention.query, scale=(attention.query.out_features // attention.heads) ** -0.5)


def projections(s: Style, x: Var, attention: WhisperAttention) -> tuple[Var, Var, Var]:
    """Return queries, keys and values (1, D, 1, S). The queries are divided by √width."""
    return queries(s, x, attention), blocks.linear(s, x, attention.key), blocks.linear(s, x, attention.value)


def feed_forward(s: Style, x: Var, layers: nn.Sequential, scale: float, name: str) -> Var:
    """Apply two linear layers with the exact GELU between them, and multiply the output by ``scale``."""
    first, _, last = layers
    y = mb.gelu(x=blocks.linear(s, x, first, f"{name}.0"), mode="EXACT")
    return blocks.linear(s, y, last, f"{name}.2", scale)


def decoder_scale(network: WhisperDecoder) -> float:
    """Return the power of two that multiplies the residual stream (``scale_for``).

    It is measured on random tokens, and on random states as large as the encoder's last norm makes them.
    """
    config, generator = network.config, torch.Generator().manual_seed(0)
    network = network.float()
    ids = torch.randint(config.n_vocab, (min(64, config.n_text_ctx),), generator=generator)
    x = (network.token_embedding.weight[ids] + network.positional_embedding[: len(ids)])[None]
    states = torch.randn(1, config.n_audio_ctx, config.n_text_state, generator=generator)
    cross = [
        partial(torch.nn.functional.scaled_dot_product_attention, key=k, value=v) for k, v in network.memory(states)
    ]
    return measured_scale(network.blocks, lambda: network(x, None, cross))


def decoder_graphs(network: WhisperDecoder, scale: float = 1.0) -> DecoderGraphBuilder:
    """Build the graphs prefill, step and state: x, mask → hidden (1, D, 1, T), logits, new_keys and new_values."""
    heads = network.config.n_text_head

    def body(s: Style, x: Var, mask: Var, pools: Pools | None, memory_keys: Var, memory_values: Var) -> dict[str, Var]:
        new_keys, new_values, memory = [], [], Pools(memory_keys, memory_values)
        for index, block in enumerate(network.blocks):
            x, k, v = _decoder_block(
                s, x, mask, block, scale, pools and pools.layer(index), memory.layer(index), f"blocks.{index}"
            )
            new_keys.append(k)
            new_values.append(v)
        hidden = blocks.layer_norm(s, x, network.ln, "ln", scale)
        return {
            "hidden": hidden,
            **_logits(s, hidden, array(network.token_embedding.weight)),
            "new_keys": _stacked(new_keys, heads),
            "new_values": _stacked(new_values, heads),
        }

    shape = network.config.decoder_shape
    memory = (shape.layers, shape.heads, shape.head_width, shape.memory_length)
    return DecoderGraphBuilder(shape, body, {"memory_keys": memory, "memory_values": memory})


def memory(network: WhisperDecoder) -> CoreMLGraph:
    """Return the graph of the encoder's states → memory_keys and memory_values (layers, heads, width, N).

    The states are (1, D, 1, N).
    """

    def body(s: Style, states: Var) -> dict[str, Var]:
        outputs = {}
        for kind in ("key", "value"):
            layers = [
                blocks.linear(s, states, getattr(block.cross_attn, kind), f"blocks.{index}.cross_attn.{kind}")
                for index, block in enumerate(network.blocks)
            ]
            outputs[f"memory_{kind}s"] = _stacked(layers, network.config.n_text_head)
        return outputs

    shape = network.config.decoder_shape
    return CoreMLGraph(
        "memory", {"states": shape.memory_length}, {"states": (1, shape.width, 1, shape.memory_length)}, body
    )


def _decoder_block(
    s: Style,
    x: Var,
    mask: Var,
    block: networks.WhisperDecoderBlock,
    scale: float,
    pool: LayerPool | None,
    memory: LayerPool,
    name: str,
) -> tuple[Var, Var, Var]:
    """Apply one pre-norm block: x (1, D, 1, S), scaled by ``scale``, → x, and its keys and values (1, D, 1, S)."""
    q, k, v = projections(s, blocks.layer_norm(s, x, block.attn_ln, f"{name}.attn_ln", scale), block.attn)
    y = blocks.attention(s, q, k, v, block.attn.heads, mask, pool)
    x = mb.add(x=x, y=blocks.linear(s, y, block.attn.out, f"{name}.attn.out", scale))
    q = queries(s, blocks.layer_norm(s, x, block.cross_attn_ln, f"{name}.cross_attn_ln", scale), block.cross_attn)
    y = blocks.cross_attention(s, q, memory, block.cross_attn.heads)
    x = mb.add(x=x, y=blocks.linear(s, y, block.cross_attn.out, f"{name}.cross_attn.out", scale))
    y = blocks.layer_norm(s, x, block.mlp_ln, f"{name}.mlp_ln", scale)
    return mb.add(x=x, y=feed_forward(s, y, block.mlp, scale, f"{name}.mlp"), name=blocks.value_name(name)), k, v


def _logits(s: Style, hidden: Var, weight: np.ndarray) -> dict[str, Var]:
    """Multiply by the token embedding (V, D), in parts of nearly equal size."""
    parts = np.array_split(weight, -(-len(weight) // MAX_AXIS))
    return {f"logits_{index}": blocks.conv(s, hidden, part[:, :, None, None], None) for index, part in enumerate(parts)}


def _stacked(layers: list[Var], heads: int) -> Var:
    """Stack keys or values of each layer (1, D, 1, S) → (layers, heads, width, S)."""
    return mb.concat(values=[blocks.split_heads(layer, heads) for layer in layers], axis=0)
