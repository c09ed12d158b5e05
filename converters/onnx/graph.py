"""An ONNX graph of a network: a call of it, inputs and outputs by name; torch's exporter writes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from converters.coreml.graph import quiet

if TYPE_CHECKING:
    import onnx_ir

# The first with an attention operator; later ones add nothing that the graphs use and need newer runtimes.
OPSET = 23
SCOPES = "pkg.torch.onnx.name_scopes"       # key under which the exporter stores a node's modules, outermost first
NETWORK_PREFIX = "network."     # of the paths of parameters and modules inside ``NetworkCall``

Axes = Mapping[int, str]        # index of a dynamic axis → its name
# name → an example value for tracing (or a list of values, one for each layer), and its dynamic axes
Inputs = Mapping[str, tuple[Tensor | list[Tensor], Axes]]


@dataclass(frozen=True)
class OnnxGraph:
    """One graph of a network; each kind of function has one.

    Attributes:
        module: takes the inputs in order, returns a tensor or a tuple. ``network`` in it is the reference.
        outputs: their names.
    """

    module: nn.Module
    inputs: Inputs
    outputs: Sequence[str]

    def export(self) -> "onnx_ir.Model":
        """The graph in ONNX. Its parameters share torch's memory and have their names in the state dict."""
        examples = tuple(example for example, _ in self.inputs.values())
        shapes = tuple([dict(axes) for _ in example] if isinstance(example, list) else dict(axes)
                       for example, axes in self.inputs.values())
        names = [name for key, (example, _) in self.inputs.items() for name in (
            [f"{key}_{index}" for index in range(len(example))] if isinstance(example, list) else [key])]
        with quiet(), torch.no_grad():
            program = torch.onnx.export(self.module.eval(), examples, dynamo=True, opset_version=OPSET, verbose=False,
                                        input_names=names, output_names=list(self.outputs), dynamic_shapes=(shapes,))
        model = program.model
        for node in model.graph.all_nodes():        # keep each node's modules, but not the paths of source files
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


def traced(call: Callable[..., Any], outputs: Sequence[str],
           inputs: Callable[[Any, torch.dtype], Inputs]) -> Callable[[nn.Module, torch.dtype], OnnxGraph]:
    """Builds the graph of ``call(network, *inputs)`` for a network and its dtype."""
    return lambda network, dtype: OnnxGraph(NetworkCall(network, call), inputs(network, dtype), outputs)


def network_call(network: nn.Module, *inputs: Tensor) -> Any:
    """The network itself, as ``call`` of ``traced``."""
    return network(*inputs)


def noise(*shape: int) -> Tensor:
    """Normally distributed numbers, to trace with; the same at each call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def ids(count: int, *shape: int) -> Tensor:
    """Whole numbers below ``count``, to trace with."""
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(0))
