"""Describe and export one ONNX graph of a network: a call of it, and inputs and outputs by name.

torch's exporter writes the graph. Decoders attend to caches that the runtime holds. A step reads the keys and values of
the prefix and of the lanes' earlier positions, and returns only the new columns' keys and values, which the runtime
stores. So the kv-cache is never copied or concatenated.

Each layer's cache is a separate input, which avoids slices: ``keys_i`` and ``values_i`` (n, heads, L, w) for the lanes,
``prefix_keys_i`` and ``prefix_values_i`` for the prefix. ``mask`` (n, T, P + L + T) float32 is added to the scores. Its
last axis holds P positions of the prefix, L of the lane, then the T new columns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.backends.decoding import DecoderShape
from converters.coreml.graph import quiet

if TYPE_CHECKING:
    import onnx_ir

# The first opset with an attention operator. Later ones add nothing that the graphs use and need newer runtimes.
OPSET = 23
SCOPES = "pkg.torch.onnx.name_scopes"  # the exporter's key for a node's modules, outermost first
NETWORK_PREFIX = "network."  # starts the paths of parameters and modules inside ``NetworkCall``

Axes = Mapping[int, str]  # index of a dynamic axis → its name
# name → an example value for tracing (or a list of values, one for each layer), and its dynamic axes
Inputs = Mapping[str, tuple[Tensor | list[Tensor], Axes]]


@dataclass(frozen=True)
class OnnxGraph:
    """One graph of a network. Each kind of function has one.

    Attributes:
        module: Module that takes the inputs in order and returns a tensor or a tuple. Its ``network`` is the reference.
        inputs: Example values and dynamic axes by name.
        outputs: Names of the outputs.
    """

    module: nn.Module
    inputs: Inputs
    outputs: Sequence[str]

    def export(self) -> "onnx_ir.Model":
        """Export the graph to ONNX. Its parameters share torch's memory and have their names in the state dict."""
        examples = tuple(example for example, _ in self.inputs.values())
        shapes = tuple(
            [dict(axes) for _ in example] if isinstance(example, list) else dict(axes)
            for example, axes in self.inputs.values()
        )
        names = [
            name
            for key, (example, _) in self.inputs.items()
            for name in ([f"{key}_{index}" for index in range(len(example))] if isinstance(example, list) else [key])
        ]
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                self.module.eval(),
                examples,
                dynamo=True,
                opset_version=OPSET,
                verbose=False,
                input_names=names,
                output_names=list(self.outputs),
                dynamic_shapes=(shapes,),
            )
        model = program.model
        for node in model.graph.all_nodes():  # keep the names of its modules, but no paths of source files
            for key in [key for key in node.metadata_props if key != SCOPES]:
                del node.metadata_props[key]
        model.metadata_props.clear()
        for value in list(model.graph.initializers.values()):
            if value.name.startswith(NETWORK_PREFIX):
                value.name = value.name.removeprefix(NETWORK_PREFIX)
        return model


class NetworkCall(nn.Module):
    """A module that calls ``call(network, *inputs)``, for export."""

    def __init__(self, network: nn.Module, call: Callable[..., Any]):
        super().__init__()
        self.network, self.call = network, call

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(self.network, *inputs)


def traced(
    call: Callable[..., Any], outputs: Sequence[str], inputs: Callable[[Any, torch.dtype], Inputs]
) -> Callable[[nn.Module, torch.dtype], OnnxGraph]:
    """Return a function that builds the graph of ``call(network, *inputs)`` for a network and its dtype."""
    return lambda network, dtype: OnnxGraph(NetworkCall(network, call), inputs(network, dtype), outputs)


def network_call(network: nn.Module, *inputs: Tensor) -> Any:
    """Call the network itself. Pass this as ``call`` of ``traced``."""
    return network(*inputs)


def noise(*shape: int) -> Tensor:
    """Return normally distributed numbers to trace with, the same at each call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def masked(name: str, example: Tensor, axis: str, dtype: torch.dtype) -> Inputs:
    """Return the input ``name`` (B, L, …), whose second axis is called ``axis``, and a mask (B, L) of ones."""
    axes = {0: "batch", 1: axis}
    return {name: (example, axes), "mask": (torch.ones(example.shape[:2], dtype=dtype), axes)}


def ids(count: int, *shape: int) -> Tensor:
    """Return whole numbers below ``count`` to trace with."""
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(0))


# Decoders

PREFILL_OUTPUTS = ("hidden", "logits", "keys", "values")
STEP_OUTPUTS = ("hidden", "logits", "new_keys", "new_values")
LANES, COLUMNS, LENGTH, PREFIX_LENGTH, PREFIXES = 3, 2, 7, 5, 4  # sizes of the example inputs for tracing


def prefilled(network: nn.Module, columns: Tensor, *cross: Any) -> tuple[Tensor, ...]:
    """Compute a prefix (1, P, D) → hidden (1, D), logits (1, V), keys and values (layers, heads, P, w).

    ``cross`` is the cross-attention of the layers, for a network that has it.
    """
    stored: list[tuple[Tensor, Tensor]] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        stored.append((k[0], v[0]))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    hidden = network(columns, [attend] * network.config.decoder_shape.layers, *cross)[:, -1:]
    return hidden[:, 0], network.logits(hidden)[:, 0], *(torch.stack(part) for part in zip(*stored, strict=True))


def decoder_step(
    network: nn.Module,
    columns: Tensor,
    mask: Tensor,
    prefix_index: Tensor | None,
    caches: Sequence[list[Tensor]],
    *cross: Any,
) -> tuple[Tensor, ...]:
    """Compute columns (n, T, D) → hidden (n, T, D), logits (n, V) of the last column, new keys and values.

    The new keys and values are (layers, n, heads, T, w). Lanes share one prefix (heads, P, w), whose scores are
    computed in one matrix product. Or ``prefix_index`` (n,) int64 selects each lane's prefix from (prefixes, heads, P,
    w).
    """
    new: list[tuple[Tensor, Tensor]] = []
    hidden = network(
        columns, [attention(mask, prefix_index, new, *layer) for layer in zip(*caches, strict=True)], *cross
    )
    logits = network.logits(hidden[:, -1:])[:, 0]  # rank 3, so that the product can be quantised
    return hidden, logits, *(torch.stack(part) for part in zip(*new, strict=True))


def attention(
    mask: Tensor,
    prefix_index: Tensor | None,
    new: list[tuple[Tensor, Tensor]],
    keys: Tensor,
    values: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the attention of one layer to its cache. When called, it appends the new keys and values to ``new``."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        new.append((k, v))
        q = q * q.shape[-1] ** -0.5
        scores = (to_prefix(q, prefix_keys, prefix_index), q @ keys.transpose(2, 3), q @ k.transpose(2, 3))
        weight = torch.softmax(torch.cat(scores, dim=-1).float() + mask[:, None], dim=-1).to(q.dtype)
        P, L = prefix_keys.shape[-2], keys.shape[-2]
        of_prefix, of_lane, of_new = weight[..., :P], weight[..., P : P + L], weight[..., P + L :]
        return from_prefix(of_prefix, prefix_values, prefix_index) + of_lane @ values + of_new @ v

    return attend


def to_prefix(q: Tensor, keys: Tensor, prefix_index: Tensor | None) -> Tensor:
    """Compute scores (n, heads, T, P) of queries (n, heads, T, w)."""
    if prefix_index is not None:
        return q @ keys[prefix_index].transpose(2, 3)
    n, heads, T, width = q.shape
    rows = q.transpose(0, 1).reshape(heads, n * T, width) @ keys.transpose(1, 2)
    return rows.view(heads, n, T, keys.shape[-2]).transpose(0, 1)


def from_prefix(weight: Tensor, values: Tensor, prefix_index: Tensor | None) -> Tensor:
    """Compute the prefix's part (n, heads, T, w) of the output from attention weights (n, heads, T, P)."""
    if prefix_index is not None:
        return weight @ values[prefix_index]
    n, heads, T, P = weight.shape
    rows = weight.transpose(0, 1).reshape(heads, n * T, P) @ values
    return rows.view(heads, n, T, values.shape[-1]).transpose(0, 1)


def step_inputs(shape: DecoderShape, dtype: torch.dtype, shared: bool) -> dict[str, tuple[Any, Axes]]:
    """Return the inputs of a step. ``shared`` means that all lanes have one prefix."""
    layers, heads, width = shape.layers, shape.heads, shape.head_width

    def caches(*size: int) -> list[Tensor]:  # distinct tensors: the tracer merges inputs that share one
        return [torch.zeros(size, dtype=dtype) for _ in range(layers)]

    before = (heads, PREFIX_LENGTH, width) if shared else (PREFIXES, heads, PREFIX_LENGTH, width)
    of_lane, of_prefix = {0: "lanes", 2: "length"}, {1: "prefix"} if shared else {0: "prefixes", 2: "prefix"}
    prefix_index = {} if shared else {"prefix_index": (torch.zeros(LANES, dtype=torch.int64), {0: "lanes"})}
    return {
        "columns": (torch.zeros(LANES, COLUMNS, shape.width), {0: "lanes", 1: "columns"}),
        "mask": (torch.zeros(LANES, COLUMNS, PREFIX_LENGTH + LENGTH + COLUMNS), {0: "lanes", 1: "columns", 2: "seen"}),
        **prefix_index,
        **{name: (caches(LANES, heads, LENGTH, width), of_lane) for name in ("keys", "values")},
        **{name: (caches(*before), of_prefix) for name in ("prefix_keys", "prefix_values")},
    }
