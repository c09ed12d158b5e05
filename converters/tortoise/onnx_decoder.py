"""The decoder's ONNX graphs: ``prefill``, and ``step`` on caches of the runtime (``converters.onnx.decoder``)."""

from typing import Any

import torch
from torch import Tensor, nn

from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig, causal
from converters.onnx.decoder import PREFIX_LENGTH, attention


def prefill(network: nn.Module, columns: Tensor) -> tuple[Tensor, ...]:
    """A prefix (1, P, D) → hidden (1, D), logits (1, V), keys and values (layers, heads, P, w)."""
    stored: list[tuple[Tensor, Tensor]] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        stored.append((k[0], v[0]))
        return causal(q, k, v)

    hidden = network(columns, [attend] * network.config.layers)[:, -1:]
    return hidden[:, 0], network.logits(hidden)[:, 0], *(torch.stack(part) for part in zip(*stored, strict=True))


def step(network: nn.Module, columns: Tensor, mask: Tensor, *caches: list[Tensor]) -> tuple[Tensor, ...]:
    """A step of lanes that share one prefix (heads, P, w), whose scores are computed in one matrix product.

    Columns (n, T, D) → hidden (n, T, D), logits (n, V) of the last column, new keys and values (layers, n, heads, T,
    w).
    """
    return step_prefixes(network, columns, mask, None, *caches)


def step_prefixes(network: nn.Module, columns: Tensor, mask: Tensor, prefix_index: Tensor | None,
                *caches: list[Tensor]) -> tuple[Tensor, ...]:
    """``step`` for several prefixes (prefixes, heads, P, w); ``prefix_index`` (n,) int64 selects each lane's."""
    new: list[tuple[Tensor, Tensor]] = []
    attend = [attention(mask, prefix_index, new, *layer) for layer in zip(*caches, strict=True)]
    hidden = network(columns, attend)
    logits = network.logits(hidden[:, -1:])[:, 0]       # rank 3, so that the product can be quantised
    return hidden, logits, *(torch.stack(part) for part in zip(*new, strict=True))


def prefill_examples(config: UnifiedVoiceConfig) -> tuple[dict[str, Any], dict[str, dict[int, str]]]:
    """Example inputs of ``prefill`` for tracing, and their dynamic axes."""
    columns = torch.randn(1, PREFIX_LENGTH, config.model_dim, generator=torch.Generator().manual_seed(0))
    return {"columns": columns}, {"columns": {1: "prefix"}}
