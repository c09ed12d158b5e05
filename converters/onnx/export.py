"""Exports a graph to ONNX with torch's exporter."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from converters.onnx.graph import OnnxGraph
from converters.quiet import quiet

if TYPE_CHECKING:
    import onnx_ir

# The first with an attention operator; later ones add nothing that the graphs use and need newer runtimes.
OPSET = 23
SCOPES = "pkg.torch.onnx.name_scopes"       # key under which the exporter stores a node's modules, outermost first
NETWORK_PREFIX = "network."     # of the paths of parameters and modules inside ``NetworkCall``


def export(graph: OnnxGraph) -> "onnx_ir.Model":
    """The graph in ONNX. Its parameters share torch's memory and have their names in the state dict."""
    examples = tuple(graph.examples.values())
    shapes = tuple(_shapes(example, graph.axes[name]) for name, example in graph.examples.items())
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph.module.eval(), examples, dynamo=True, opset_version=OPSET, verbose=False,
            input_names=graph.inputs, output_names=list(graph.outputs), dynamic_shapes=(shapes,))
    model = program.model
    for node in model.graph.all_nodes():        # keep each node's modules, but not the paths of source files
        for key in [key for key in node.metadata_props if key != SCOPES]:
            del node.metadata_props[key]
    model.metadata_props.clear()
    for value in list(model.graph.initializers.values()):
        if value.name.startswith(NETWORK_PREFIX):
            value.name = value.name.removeprefix(NETWORK_PREFIX)
    return model


def _shapes(example: Tensor | list[Tensor], axes: Any) -> Any:
    return [dict(axes) for _ in example] if isinstance(example, list) else dict(axes)
