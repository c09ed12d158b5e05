"""Build the ONNX graphs of Whisper's networks from the references, batch first.

The decoder has cross-attention as well as the caches (``converters.onnx.graph``). ``memory`` computes the keys and
values of the cross-attention once per window. The other graphs take them as inputs of each layer: ``memory_keys_i`` and
``memory_values_i`` (heads, N, w) of the window that all lanes have in common, or in ``step_prefixes`` (prefixes, heads,
N, w). There, the lanes of a window are gathered, so that no memory is copied. ``memory_lanes`` (prefixes, rows) int64
lists the lanes of each window, padded with any lane, and ``memory_rows`` (n,) int64 is the position of each lane in
that list.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ane.models.whisper.networks import WhisperDecoderConfig
from converters.onnx import graph
from converters.onnx.graph import network_call, traced

ROWS = 2  # lanes of a window in the example inputs for tracing


def _memory(network: nn.Module, states: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the encoder's states (1, N, D) → keys and values (layers, heads, N, w)."""
    keys, values = zip(*network.memory(states), strict=True)
    return torch.cat(keys), torch.cat(values)


def _prefill(network: nn.Module, columns: Tensor, *memories: list[Tensor]) -> tuple[Tensor, ...]:
    return graph.prefilled(network, columns, [cross_attention(*layer) for layer in zip(*memories, strict=True)])


def _step(network: nn.Module, columns: Tensor, mask: Tensor, *caches: list[Tensor]) -> tuple[Tensor, ...]:
    """Compute a step whose lanes all belong to one window."""
    *caches_of_lanes, keys, values = caches
    return graph.decoder_step(
        network,
        columns,
        mask,
        None,
        caches_of_lanes,
        [cross_attention(*layer) for layer in zip(keys, values, strict=True)],
    )


def _step_prefixes(
    network: nn.Module,
    columns: Tensor,
    mask: Tensor,
    prefix_index: Tensor,
    memory_lanes: Tensor,
    memory_rows: Tensor,
    *caches: list[Tensor],
) -> tuple[Tensor, ...]:
    """Compute a step whose lanes belong to several windows, each with its prefix."""
    *caches_of_lanes, keys, values = caches
    return graph.decoder_step(
        network,
        columns,
        mask,
        prefix_index,
        caches_of_lanes,
        [grouped_cross_attention(*layer, memory_lanes, memory_rows) for layer in zip(keys, values, strict=True)],
    )


def cross_attention(keys: Tensor, values: Tensor) -> Callable[[Tensor], Tensor]:
    """Let q (n, heads, T, w) of all lanes attend to one memory (heads, N, w), in one product for each head."""

    def attend(q: Tensor) -> Tensor:
        n, heads, T, width = q.shape
        rows = q.transpose(0, 1).reshape(heads, n * T, width)
        return attended(rows, keys, values).view(heads, n, T, width).transpose(0, 1)

    return attend


def grouped_cross_attention(keys: Tensor, values: Tensor, lanes: Tensor, rows: Tensor) -> Callable[[Tensor], Tensor]:
    """Let q (n, heads, T, w) attend to the memory of each lane, which is one of (prefixes, heads, N, w)."""

    def attend(q: Tensor) -> Tensor:
        _, heads, T, width = q.shape
        prefixes, count = lanes.shape
        grouped = q[lanes.reshape(-1)].view(prefixes, count, heads, T, width).transpose(1, 2)
        result = attended(grouped.reshape(prefixes, heads, count * T, width), keys, values)
        result = result.view(prefixes, heads, count, T, width).transpose(1, 2)
        return result.reshape(prefixes * count, heads, T, width)[rows]

    return attend


def attended(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Let (…, rows, w) attend to (…, N, w)."""
    scores = (q * q.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
    return torch.softmax(scores.float(), dim=-1).to(q.dtype) @ values


def _memories(config: WhisperDecoderConfig, dtype: torch.dtype, shared: bool) -> graph.Inputs:
    d = config.decoder_shape
    shape = (*(() if shared else (graph.PREFIXES,)), d.heads, d.memory_length, d.head_width)
    # distinct tensors: the tracer merges inputs that share one
    return {
        name: ([torch.zeros(shape, dtype=dtype) for _ in range(d.layers)], {} if shared else {0: "prefixes"})
        for name in ("memory_keys", "memory_values")
    }


def _step_inputs(config: WhisperDecoderConfig, dtype: torch.dtype, shared: bool) -> graph.Inputs:
    inputs = graph.step_inputs(config.decoder_shape, dtype, shared)
    caches = {name: inputs.pop(name) for name in ("keys", "values", "prefix_keys", "prefix_values")}
    if not shared:
        inputs |= {
            "memory_lanes": (torch.zeros(graph.PREFIXES, ROWS, dtype=torch.int64), {0: "prefixes", 1: "rows"}),
            "memory_rows": (torch.zeros(graph.LANES, dtype=torch.int64), {0: "lanes"}),
        }
    return inputs | caches | dict(_memories(config, dtype, shared))


encoder = traced(
    network_call,
    ("states",),
    lambda network, dtype: {
        "mel": (torch.zeros(2, network.config.n_mels, 2 * network.config.n_audio_ctx), {0: "batch"})
    },
)
memory = traced(
    _memory,
    ("keys", "values"),
    lambda network, dtype: {"states": (torch.zeros(1, network.config.n_audio_ctx, network.config.n_text_state), {})},
)
prefill = traced(
    _prefill,
    graph.PREFILL_OUTPUTS,
    lambda network, dtype: {
        "columns": (torch.zeros(1, graph.PREFIX_LENGTH, network.config.n_text_state), {1: "prefix"}),
        **_memories(network.config, dtype, shared=True),
    },
)
step = traced(_step, graph.STEP_OUTPUTS, lambda network, dtype: _step_inputs(network.config, dtype, shared=True))
step_prefixes = traced(
    _step_prefixes, graph.STEP_OUTPUTS, lambda network, dtype: _step_inputs(network.config, dtype, shared=False)
)
