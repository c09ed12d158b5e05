"""Tracing a graph to ONNX: torch's own exporter, its noise held back, its names made ours."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from converters.quiet import quiet
from converters.tortoise.onnx_graphs import Graph

if TYPE_CHECKING:
    import onnx_ir

# The first with an operator for attention; what came later changes nothing that the graphs use, and asks for newer
# runtimes.
OPSET = 23
SCOPES = "pkg.torch.onnx.name_scopes"       # the exporter's name for the modules that a node lies in, outermost first
TWIN = "network."           # what the paths of a twin's parameters and modules begin with inside ``graphs.Call``


def exported(graph: Graph) -> "onnx_ir.Model":
    """The graph, its parameters still torch's memory, under the names that they have in the state dict."""
    examples = tuple(graph.examples.values())
    shapes = tuple(_shapes(example, graph.axes[name]) for name, example in graph.examples.items())
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph.module.eval(), examples, dynamo=True, opset_version=OPSET, verbose=False,
            input_names=graph.inputs, output_names=list(graph.outputs), dynamic_shapes=(shapes,))
    model = program.model
    for node in model.graph.all_nodes():        # keep which module a node is of, not where its code lay on this machine
        for key in [key for key in node.metadata_props if key != SCOPES]:
            del node.metadata_props[key]
    model.metadata_props.clear()
    for value in list(model.graph.initializers.values()):
        if value.name.startswith(TWIN):
            value.name = value.name.removeprefix(TWIN)
    return model


def _shapes(example: Tensor | list[Tensor], axes: Any) -> Any:
    return [dict(axes) for _ in example] if isinstance(example, list) else dict(axes)
