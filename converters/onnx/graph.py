"""Describe an ONNX graph by a call of the PyTorch network, its inputs and its outputs, and export the graph with torch.

The graphs of a decoder attend to a kv-cache that the runtime stores. A column is a position of one sequence, and a lane
is one of the n sequences that a step decodes. A step reads the keys and values of the prompt (the prefix) and of the
lanes' earlier positions. It returns only the keys and values of the new columns, which the runtime then stores. So no
graph copies or concatenates the cache.

The cache of each layer i is a separate input, so that a graph needs no slices: ``keys_i`` and ``values_i`` (n, heads,
L, w) for the lanes, ``prefix_keys_i`` and ``prefix_values_i`` for the prefix. The input ``mask`` (n, T, P + L + T)
float32 is added to the attention scores. Its last axis has the P positions of the prefix, the L positions of the lane,
and the T new columns, in this order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.backends.decoding import DecoderShape
from ane.system.errors import UserError
from converters.coreml.graph import quiet

if TYPE_CHECKING:
    import onnx_ir

# Opset 23 was the first with an attention operator. Later opsets add nothing that the graphs use, and need newer
# runtimes
OPSET = 23
ONE_PASS = {"GroupNormalization", "InstanceNormalization"}  # operators of ONNX that may compute norms in one pass
SCOPES = "pkg.torch.onnx.name_scopes"  # the exporter's metadata key for the names of a node's modules, outermost first
NETWORK_PREFIX = "network."  # the paths of parameters and modules within ``NetworkCall`` begin with this

Value = Any  # onnx_ir.Value. torch reads the annotations of a translation, for which the name must exist
Axes = Mapping[int, str]  # index of a dynamic axis → its name
# name → an example tensor for tracing (or a list of tensors, one per layer), and the tensor's dynamic axes
Inputs = Mapping[str, tuple[Tensor | list[Tensor], Axes]]


@dataclass(frozen=True)
class OnnxGraph:
    """The description of one graph of a network. Each kind of function has one graph.

    Attributes:
        module: Module that takes the inputs in order, and returns a tensor or a tuple. Its attribute ``network`` is the
            PyTorch network. Some modules can only be exported (``attention``).
        inputs: Example tensors and dynamic axes, by the name of the input.
        outputs: Names of the outputs.
    """

    module: nn.Module
    inputs: Inputs
    outputs: Sequence[str]

    def export(self) -> "onnx_ir.Model":
        """Export the graph to ONNX. The weights share torch's memory, and keep their names from the state dict.

        Raises:
            UserError: torch did not use the exact translation of group norms.
        """
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
                custom_translation_table={
                    torch.ops.aten.group_norm.default: two_pass_group_norm,
                    attention_operator(): attention_nodes,
                },
            )
        model = program.model
        if ONE_PASS & {node.op_type for node in model.graph.all_nodes()}:
            raise UserError(f"torch {torch.__version__} exports inexact group norms to ONNX: update torch")
        for node in model.graph.all_nodes():  # keep the names of the node's modules, but no paths of source files
            for key in [key for key in node.metadata_props if key != SCOPES]:
                del node.metadata_props[key]
        model.metadata_props.clear()
        for value in list(model.graph.initializers.values()):
            if value.name.startswith(NETWORK_PREFIX):
                value.name = value.name.removeprefix(NETWORK_PREFIX)
        return model


def two_pass_group_norm(
    input: Value, num_groups: int, weight: Value, bias: Value, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Value:
    """Build the nodes of torch's group norm in float32: first the mean, then the variance of the differences to it.

    ONNX's operator for group norms may compute both in one pass, which is less exact
    (``ane.models.tortoise.networks.layers.GroupNorm``). torch finds the arguments by these names.

    Args:
        input: Values to normalise, (B, C, …).
        num_groups: Number of groups into which the channels are divided.
        weight: Factor of each channel, (C,) float32.
        bias: Number to add to each channel, (C,) float32.
        eps: Number to add to the variance.
        cudnn_enabled: Has no effect.

    Returns:
        The normalised values, with the shape and dtype of ``input``.
    """
    from onnxscript import FLOAT, opset23

    op: Any = opset23
    wide = input if input.dtype == FLOAT.dtype else op.Cast(input, to=FLOAT.dtype)
    groups = op.Reshape(wide, op.Constant(value_ints=[0, num_groups, -1]))
    last = op.Constant(value_ints=[-1])
    centred = op.Sub(groups, op.ReduceMean(groups, last))
    variance = op.ReduceMean(op.Mul(centred, centred), last)
    y = op.Mul(centred, op.Reciprocal(op.Sqrt(op.Add(variance, op.Constant(value_float=eps)))))
    channels = op.Constant(value_ints=[-1, *[1] * (len(input.shape) - 2)])
    y = op.Mul(op.Reshape(y, op.Shape(wide)), op.Reshape(weight, channels))
    y = op.Add(y, op.Reshape(bias, channels))
    return y if input.dtype == FLOAT.dtype else op.Cast(y, to=input.dtype)


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
    """Return a function that takes a network and its dtype, and describes the graph of ``call(network, *inputs)``."""
    return lambda network, dtype: OnnxGraph(NetworkCall(network, call), inputs(network, dtype), outputs)


def network_call(network: nn.Module, *inputs: Tensor) -> Any:
    """Call the network itself. Pass this function to ``traced`` as ``call``."""
    return network(*inputs)


def noise(*shape: int) -> Tensor:
    """Return normally distributed numbers as an example input. The numbers are the same in every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def masked(name: str, example: Tensor, axis: str, dtype: torch.dtype) -> Inputs:
    """Describe two inputs: ``name`` (B, L, …), and a mask (B, L) of ones. ``axis`` is the name of the axis L."""
    axes = {0: "batch", 1: axis}
    return {name: (example, axes), "mask": (torch.ones(example.shape[:2], dtype=dtype), axes)}


def ids(count: int, *shape: int) -> Tensor:
    """Return random whole numbers from 0 to ``count`` − 1 as an example input."""
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(0))


# Decoders

PREFILL_OUTPUTS = ("hidden", "logits", "keys", "values")
STEP_OUTPUTS = ("hidden", "logits", "new_keys", "new_values")
LANES, COLUMNS, LENGTH, PREFIX_LENGTH, PREFIXES = 3, 2, 7, 5, 4  # sizes of the example inputs for tracing


def prefilled(network: nn.Module, columns: Tensor, *cross: Any) -> tuple[Tensor, ...]:
    """Decode a prefix (1, P, D), and return hidden (1, D), logits (1, V), keys and values.

    ``hidden`` and ``logits`` belong to the prefix's last column. The keys and values are (layers, heads, P, w). If the
    network has cross-attention, ``cross`` has the cross-attention of every layer.
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
    """Decode the new columns (inputs) of all lanes (sequences), (n, T, D). Works only in an export (``attention``).

    Args:
        network: The decoder.
        columns: New columns, (n lanes, T columns, D).
        mask: Mask to add to the scores, (n, T, P + L + T).
        prefix_index: Index of each lane's prefix, (n,) int64. The prefixes' keys and values have the shape (prefixes,
            heads, P, w). ``None`` means that all lanes share one prefix (heads, P, w). In this case, one matrix product
            per head computes the scores of all lanes.
        caches: Keys, values, keys of the prefix and values of the prefix, each as a list with one tensor per layer.
        cross: Cross-attention of every layer, if the network has cross-attention.

    Returns:
        hidden (n, T, D), logits of the last column (n, V), new keys and new values (layers, n, heads, T, w).
    """
    new: list[tuple[Tensor, Tensor]] = []
    hidden = network(
        columns, [attention(new, mask, *layer, prefix_index) for layer in zip(*caches, strict=True)], *cross
    )
    logits = network.logits(hidden[:, -1:])[:, 0]  # the input has three axes, so that the product can be quantised
    return hidden, logits, *(torch.stack(part) for part in zip(*new, strict=True))


def attention(new: list[tuple[Tensor, Tensor]], *others: Tensor | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a function that stands for one layer's attention to the kv-cache and the new columns (inputs).

    The function works only in an export. It also appends the keys and values of the new columns to ``new``. ``others``
    are ``mask``, ``keys``, ``values``, ``prefix_keys``, ``prefix_values`` and ``prefix_index`` of ``attention_nodes``.
    """
    operator = attention_operator()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        new.append((k, v))
        return operator(q, k, v, *others)

    return attend


@cache
def attention_operator() -> Any:
    """Define a torch operator for a decoder layer's attention, so that torch traces one operator instead of dozens.

    The operator has the arguments of ``attention_nodes``, which exports translate it with. torch cannot compute it.
    """
    arguments = [
        f"{'Tensor' if argument.default is argument.empty else 'Tensor?'} {name}"
        for name, argument in signature(attention_nodes).parameters.items()
    ]
    torch.library.define("ane::attention", f"({', '.join(arguments)}) -> Tensor")
    torch.library.register_fake("ane::attention", lambda q, *_: q.new_empty(q.shape))
    return torch.ops.ane.attention.default


def attention_nodes(
    q: Value,
    k: Value,
    v: Value,
    mask: Value,
    keys: Value,
    values: Value,
    prefix_keys: Value,
    prefix_values: Value,
    prefix_index: Value = None,
) -> Value:
    """Build the ONNX nodes of ``attention``: to the prefix, to the lane's earlier columns, and to the new columns.

    Args:
        q: Queries of the new columns, (n lanes, heads, T columns, w).
        k: Keys of the new columns, with the shape of ``q``.
        v: Values of the new columns, with the shape of ``q``.
        mask: Mask to add to the scores, (n, T, P + L + T) float32. The softmax is computed in float32, too.
        keys: Keys of the lanes, (n, heads, L, w).
        values: Values of the lanes, with the shape of ``keys``.
        prefix_keys: Keys of the prefix that all lanes share, (heads, P, w), or with ``prefix_index`` of all prefixes,
            (prefixes, heads, P, w).
        prefix_values: Values of the prefix, with the shape of ``prefix_keys``.
        prefix_index: Index of each lane's prefix, (n,) int64, or ``None`` if all lanes share one prefix.

    Returns:
        The result, with the shape and dtype of ``q``.
    """
    from onnxscript import FLOAT, opset23

    op: Any = opset23

    def ints(*values: int) -> Value:
        return op.Constant(value_ints=values)

    def transposed(x: Value, axes: int) -> Value:
        return op.Transpose(x, perm=[*range(axes - 2), axes - 1, axes - 2])

    _, heads, _, width = q.shape
    # all layers have the same mask, so that a graph computes these sizes once
    lanes, columns = op.Shape(mask, end=1), op.Shape(mask, start=1, end=2)
    prefix, lane = (op.Shape(part, start=-2, end=-1) for part in (prefix_keys, keys))

    def times_prefix(x: Value, part: Value, result: Value) -> Value:
        """Multiply x (n, heads, T, …) by ``part`` of the prefix, whose last axis has the size ``result``.

        If all lanes share the prefix, one product per head has the rows of all lanes.
        """
        if prefix_index is not None:
            return op.MatMul(x, part)
        rows = op.Reshape(
            op.Transpose(x, perm=[1, 0, 2, 3]),
            op.Concat(ints(heads), op.Mul(lanes, columns), op.Shape(x, start=3), axis=0),
            allowzero=1,
        )
        by_head = op.Concat(ints(heads), lanes, columns, result, axis=0)
        return op.Transpose(op.Reshape(op.MatMul(rows, part), by_head, allowzero=1), perm=[1, 0, 2, 3])

    if prefix_index is not None:
        prefix_keys, prefix_values = (op.Gather(part, prefix_index) for part in (prefix_keys, prefix_values))
    axes = 3 if prefix_index is None else 4
    q = op.Mul(q, op.CastLike(op.Constant(value_float=int(width) ** -0.5), q))
    scores = op.Concat(
        times_prefix(q, transposed(prefix_keys, axes), prefix),
        op.MatMul(q, transposed(keys, 4)),
        op.MatMul(q, transposed(k, 4)),
        axis=-1,
    )
    scores = op.Add(op.Cast(scores, to=FLOAT.dtype), op.Unsqueeze(mask, ints(1)))
    weight = op.CastLike(op.Softmax(scores, axis=-1), q)
    seen = op.Add(prefix, lane)
    of_prefix = op.Slice(weight, ints(0), prefix, ints(3))
    of_lane = op.Slice(weight, prefix, seen, ints(3))
    of_new = op.Slice(weight, seen, ints(2**62), ints(3))
    stored = op.Add(times_prefix(of_prefix, prefix_values, ints(width)), op.MatMul(of_lane, values))
    return op.Add(stored, op.MatMul(of_new, v))


def step_inputs(shape: DecoderShape, dtype: torch.dtype, shared: bool) -> dict[str, tuple[Any, Axes]]:
    """Describe the inputs of a step. ``shared`` says whether all lanes (sequences) share one prefix."""
    layers, heads, width = shape.layers, shape.heads, shape.head_width

    def caches(*size: int) -> list[Tensor]:  # one tensor per layer, because the tracer merges inputs that are the same
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
