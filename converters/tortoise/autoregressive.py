"""Build Core ML graphs of Tortoise's autoregressive decoder.

The PyTorch network is in ``ane.models.tortoise.networks.autoregressive``.
"""

from copy import deepcopy

import numpy as np
import torch

from ane.models.tortoise.networks.autoregressive import Block, UnifiedVoice, causal
from converters import blocks
from converters.blocks import LayerPool
from converters.coreml.graph import Style, Var, mb
from converters.decoder_graphs import DecoderGraphBuilder, Pools, scale_for


def stream_scale(network: UnifiedVoice) -> float:
    """Choose the power of two by which the residual stream is multiplied (``scale_for``).

    The largest value of the stream is measured on random tokens and codes.
    """
    generator = torch.Generator().manual_seed(0)
    halves = []
    for table, positions in (
        (network.text_embedding, network.text_pos_embedding),
        (network.mel_embedding, network.mel_pos_embedding),
    ):
        ids = torch.randint(len(table.weight), (min(64, len(positions.emb.weight)),), generator=generator)
        halves.append(table.weight[ids].float() + positions.emb.weight[: len(ids)].float())
    x = torch.cat(halves)[None]
    largest = x.abs().max()
    for block in network.gpt.h:
        x = deepcopy(block).float()(x, causal)
        largest = torch.maximum(largest, x.abs().max())
    return scale_for(float(largest))


def decoder_graphs(network: UnifiedVoice, scale: float = 1.0) -> DecoderGraphBuilder:
    """Describe the graphs of Tortoise's decoder.

    A graph takes x (1, D, 1, T) and a mask. It returns hidden (1, D, 1, T), logits (1, V, 1, T), and the keys and
    values for the kv-cache, which ``DecoderGraphBuilder`` explains.
    """

    def body(s: Style, x: Var, mask: Var, pools: Pools | None) -> dict[str, Var]:
        new_keys, new_values = [], []
        for index, block in enumerate(network.gpt.h):
            x, k, v = _block(s, x, mask, block, scale, pools and pools.layer(index), f"gpt.h.{index}")
            new_keys.append(blocks.split_heads(k, network.config.heads))
            new_values.append(blocks.split_heads(v, network.config.heads))
        hidden = blocks.layer_norm(s, x, network.gpt.ln_f, "gpt.ln_f", scale)
        hidden = blocks.layer_norm(s, hidden, network.final_norm)
        return {
            "hidden": hidden,
            "logits": blocks.linear(s, hidden, network.mel_head),
            "new_keys": mb.concat(values=new_keys, axis=0),
            "new_values": mb.concat(values=new_values, axis=0),
        }

    return DecoderGraphBuilder(network.config.decoder_shape, body)


def _block(
    s: Style, x: Var, mask: Var, block: Block, scale: float, pool: LayerPool | None, name: str
) -> tuple[Var, Var, Var]:
    """Apply one pre-norm block to x (1, D, 1, S), which is already multiplied by ``scale``.

    Returns the block's output, its keys and its values, (1, D, 1, S) each.
    """
    q, k, v = _queries_keys_values(s, blocks.layer_norm(s, x, block.ln_1, f"{name}.ln_1", scale), block)
    y = blocks.attention(s, q, k, v, block.attn.heads, mask, pool)
    x = mb.add(x=x, y=blocks.linear(s, y, block.attn.c_proj, f"{name}.attn", scale))
    y = blocks.linear(s, blocks.layer_norm(s, x, block.ln_2, f"{name}.ln_2", scale), block.mlp.c_fc, f"{name}.mlp.c_fc")
    y = mb.gelu(x=y, mode="TANH_APPROXIMATION")
    y = blocks.linear(s, y, block.mlp.c_proj, f"{name}.mlp", scale)
    return mb.add(x=x, y=y, name=blocks.value_name(name)), k, v


def _queries_keys_values(s: Style, x: Var, block: Block) -> tuple[Var, Var, Var]:
    """Project x to queries, keys and values, (1, D, 1, S) each. The weights of the queries include 1/√width."""
    weight, bias = blocks.kernel(block.attn.c_attn)
    D = x.shape[1]
    factor = np.ones(3 * D, np.float32)
    factor[:D] = (D // block.attn.heads) ** -0.5
    return mb.split(x=blocks.conv(s, x, weight * factor[:, None, None, None], bias * factor), num_splits=3, axis=1)
