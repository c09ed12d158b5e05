"""Describe the ONNX graphs of Whisper's networks. torch traces the PyTorch networks, batch first.

``converters.onnx.graph`` explains the decoder's columns, lanes and caches. Whisper's decoder also has cross-attention
to the states of an audio window. The graph ``memory`` computes the keys and values of the cross-attention once per
window. The other graphs of the decoder take these keys and values as inputs of each layer i, ``memory_keys_i`` and
``memory_values_i``.

If all lanes of a call belong to one window, these inputs have the shape (heads, N, w). In ``step_prefixes``, lanes may
belong to different windows, and the shape is (prefixes, heads, N, w). The graph then groups the lanes by window, so
that it copies no keys and values. For this purpose, the graph has two more inputs. ``memory_lanes`` (prefixes, rows)
int64 lists the lanes of each window, padded with any lane. ``memory_rows`` (n,) int64 has the position of each lane in
``memory_lanes``.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ane.models.whisper.networks import WhisperDecoderConfig
from converters.onnx import graph
from converters.onnx.graph import network_call, traced

ROWS = 2  # number of lanes per window in the example inputs for tracing


def _memory(network: nn.Module, states: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the keys and values of cross-attention, (layers, heads, N, w), from the encoder's states (1, N, D)."""
    keys, values = zip(*network.memory(states), strict=True)
    return torch.cat(keys), torch.cat(values)


def _prefill(network: nn.Module, columns: Tensor, *memories: list[Tensor]) -> tuple[Tensor, ...]:
    return graph.prefilled(network, columns, [cross_attention(*layer) for layer in zip(*memories, strict=True)])


def _step(network: nn.Module, columns: Tensor, mask: Tensor, *caches: list[Tensor]) -> tuple[Tensor, ...]:
    """Compute a decoder step whose lanes (sequences) all belong to the same window (stretch of audio)."""
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
    """Compute a decoder step whose lanes (sequences) belong to several windows.

    Each window (stretch of audio) has a separate prefix.
    """
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
    """Return a function that lets the queries (n, heads, T, w) of all lanes (sequences) attend to one audio window.

    The window's keys and values are (heads, N, w). One matrix product per head computes the scores of all lanes.
    """

    def attend(q: Tensor) -> Tensor:
        n, heads, T, width = q.shape
        rows = q.transpose(0, 1).reshape(heads, n * T, width)
        return attended(rows, keys, values).view(heads, n, T, width).transpose(0, 1)

    return attend


def grouped_cross_attention(keys: Tensor, values: Tensor, lanes: Tensor, rows: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that lets the queries (n, heads, T, w) of each lane (sequence) attend to the lane's own window.

    A window is the stretch of audio that a lane transcribes. The windows' keys and values are (prefixes, heads, N, w).
    ``lanes`` and ``rows`` are the graph's inputs ``memory_lanes`` and ``memory_rows``.
    """

    def attend(q: Tensor) -> Tensor:
        _, heads, T, width = q.shape
        prefixes, count = lanes.shape
        grouped = q[lanes.reshape(-1)].view(prefixes, count, heads, T, width).transpose(1, 2)
        result = attended(grouped.reshape(prefixes, heads, count * T, width), keys, values)
        result = result.view(prefixes, heads, count, T, width).transpose(1, 2)
        return result.reshape(prefixes * count, heads, T, width)[rows]

    return attend


def attended(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute attention of queries (…, rows, w) to keys and values (…, N, w)."""
    scores = (q * q.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
    return torch.softmax(scores.float(), dim=-1).to(q.dtype) @ values


def _memories(config: WhisperDecoderConfig, dtype: torch.dtype, shared: bool) -> graph.Inputs:
    d = config.decoder_shape
    shape = (*(() if shared else (graph.PREFIXES,)), d.heads, d.memory_length, d.head_width)
    # one tensor per layer, because the tracer merges inputs that are the same tensor
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
