"""Build Core ML graphs of Whisper's networks.

The PyTorch networks are in ``ane.models.whisper.networks``. Whisper encodes audio in windows of a fixed length, so the
encoder needs no padding and no mask.

The decoder's function ``memory`` computes the keys and values of the cross-attention once per window. The decoder's
other functions take these keys and values as the inputs memory_keys and memory_values (layers, heads, width, N). So all
columns of a call belong to the same window.

The vocabulary is longer than an axis may be on the Neural Engine. So the logits are divided into several outputs,
logits_0, logits_1 and so on. Each output has the logits of consecutive tokens, (1, tokens, 1, columns).
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

# The encoder attends with this many queries together, as argmaxinc/whisperkittools does. All 1500 queries would need
# scores of 4.5 MB per head
QUERIES = 256


def encoder_scale(network: WhisperEncoder) -> float:
    """Choose the power of two by which the encoder's residual stream is multiplied (``scale_for``).

    The largest value of the stream is measured on a random spectrogram.
    """
    mel = torch.randn(
        1, network.config.n_mels, 2 * network.config.n_audio_ctx, generator=torch.Generator().manual_seed(0)
    )
    return measured_scale(network.blocks, lambda: network.float()(mel))


def encoder(network: WhisperEncoder, scale: float = 1.0) -> CoreMLGraph:
    """Describe the encoder's graph: mel (1, M, 1, 2N) → states (1, D, 1, N)."""

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
    """Apply one pre-norm block to x (1, D, 1, N), which is already multiplied by ``scale``."""
    q, k, v = projections(s, blocks.layer_norm(s, x, block.attn_ln, f"{name}.attn_ln", scale), block.attn)
    y = attend_to_all(s, q, k, v, block.attn.heads)
    x = mb.add(x=x, y=blocks.linear(s, y, block.attn.out, f"{name}.attn.out", scale))
    y = blocks.layer_norm(s, x, block.mlp_ln, f"{name}.mlp_ln", scale)
    return mb.add(x=x, y=feed_forward(s, y, block.mlp, scale, f"{name}.mlp"), name=blocks.value_name(name))


def attend_to_all(s: Style, q: Var, k: Var, v: Var, heads: int) -> Var:
    """Let all positions attend to all positions, in blocks of queries. q, k, v and the output are (1, D, 1, N).

    In trained networks, many attention weights are subnormal in fp16, and an M1 replaces them by 0. All the tiny
    weights together contribute about the mean of the values. So the graph subtracts this mean from the values before
    the attention, and adds the mean to the output of the attention. The output does not change if the weights add up to
    1.
    """
    N, mean = q.shape[3], mb.reduce_mean(x=v, axes=[3], keep_dims=True)
    v = mb.sub(x=v, y=mean)
    sizes = [min(QUERIES, N - start) for start in range(0, N, QUERIES)]
    parts = [q] if len(sizes) == 1 else mb.split(x=q, split_sizes=sizes, axis=3)
    attended = [blocks.attention(s, part, k, v, heads, None) for part in parts]
    return mb.add(x=blocks.joined(attended, 3), y=mean)


# Layers that the encoder and the decoder share


def queries(s: Style, x: Var, attention: WhisperAttention) -> Var:
    """Project x to queries (1, D, 1, S), and divide them by √width, where width is the width of a head."""
    return blocks.linear(s, x, attention.query, scale=(attention.query.out_features // attention.heads) ** -0.5)


def projections(s: Style, x: Var, attention: WhisperAttention) -> tuple[Var, Var, Var]:
    """Project x to queries, keys and values, (1, D, 1, S) each. The queries are divided by √width."""
    return queries(s, x, attention), blocks.linear(s, x, attention.key), blocks.linear(s, x, attention.value)


def feed_forward(s: Style, x: Var, layers: nn.Sequential, scale: float, name: str) -> Var:
    """Apply two linear layers with the exact GELU between them, and multiply the output by ``scale``."""
    first, _, last = layers
    y = mb.gelu(x=blocks.linear(s, x, first, f"{name}.0"), mode="EXACT")
    return blocks.linear(s, y, last, f"{name}.2", scale)


def decoder_scale(network: WhisperDecoder) -> float:
    """Choose the power of two by which the decoder's residual stream is multiplied (``scale_for``).

    The largest value of the stream is measured on random tokens, and on random states with the variance that the
    encoder's last norm gives them.
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
    """Describe the decoder's graphs.

    Inputs: x, mask, memory. Outputs: hidden (1, D, 1, T), logits, new_keys, new_values.
    """
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
    """Describe the graph that computes the cross-attention's keys and values from the encoder's states.

    The input is states (1, D, 1, N). The outputs are memory_keys and memory_values, both (layers, heads, width, N).
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
    """Apply one pre-norm block to x (1, D, 1, S), which is already multiplied by ``scale``.

    Returns the block's output, its keys and its values, (1, D, 1, S) each.
    """
    q, k, v = projections(s, blocks.layer_norm(s, x, block.attn_ln, f"{name}.attn_ln", scale), block.attn)
    y = blocks.attention(s, q, k, v, block.attn.heads, mask, pool)
    x = mb.add(x=x, y=blocks.linear(s, y, block.attn.out, f"{name}.attn.out", scale))
    q = queries(s, blocks.layer_norm(s, x, block.cross_attn_ln, f"{name}.cross_attn_ln", scale), block.cross_attn)
    y = blocks.cross_attention(s, q, memory, block.cross_attn.heads)
    x = mb.add(x=x, y=blocks.linear(s, y, block.cross_attn.out, f"{name}.cross_attn.out", scale))
    y = blocks.layer_norm(s, x, block.mlp_ln, f"{name}.mlp_ln", scale)
    return mb.add(x=x, y=feed_forward(s, y, block.mlp, scale, f"{name}.mlp"), name=blocks.value_name(name)), k, v


def _logits(s: Style, hidden: Var, weight: np.ndarray) -> dict[str, Var]:
    """Compute the logits as several products, because the token embedding (V, D) is too large for one product.

    All parts of the embedding have nearly equal sizes.
    """
    parts = np.array_split(weight, -(-len(weight) // MAX_AXIS))
    return {f"logits_{index}": blocks.conv(s, hidden, part[:, :, None, None], None) for index, part in enumerate(parts)}


def _stacked(layers: list[Var], heads: int) -> Var:
    """Stack the keys or the values of all layers: (1, D, 1, S) per layer → (layers, heads, width, S)."""
    return mb.concat(values=[blocks.split_heads(layer, heads) for layer in layers], axis=0)
