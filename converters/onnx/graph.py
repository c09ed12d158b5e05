"""An ONNX graph before it is exported: a module, its inputs and outputs by name, its dynamic axes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

Axes = Mapping[int, str]        # index of a dynamic axis → its name


@dataclass(frozen=True)
class OnnxGraph:
    """One graph of a network.

    Attributes:
        name: of the function in the package, and its kind: each kind has one graph.
        module: takes the examples in order, returns a tensor or a tuple. ``network`` in it is the reference.
        examples: example value of each input for tracing, or a list of values, one for each layer.
        axes: the dynamic axes of each input, of every tensor if it is a list.
        outputs: their names.
    """

    name: str
    module: nn.Module
    examples: Mapping[str, Tensor | list[Tensor]]
    axes: Mapping[str, Axes]
    outputs: Sequence[str]

    @property
    def inputs(self) -> list[str]:
        """Names of the input tensors; those of a list are numbered."""
        return [name for key, value in self.examples.items() for name in
                ([f"{key}_{index}" for index in range(len(value))] if isinstance(value, list) else [key])]


class NetworkCall(nn.Module):
    """A module that calls ``call(network, *inputs)``, for export."""

    def __init__(self, network: nn.Module, call: Callable[..., Any]):
        super().__init__()
        self.network, self.call = network, call

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(self.network, *inputs)
