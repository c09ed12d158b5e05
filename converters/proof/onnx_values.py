"""Read from an ONNX graph the values that are outputs of the network's PyTorch modules, to compare both.

Every node of a graph records the modules to which it belongs. The output of a module is the last of its values that a
node outside the module reads. This module makes a copy of the graph in which the outputs of modules are additional
outputs. So any provider of ONNX Runtime can compute them.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn

from ane.backends.onnx.sessions import SessionKey
from ane.system.errors import UserError
from ane.system.files import link_or_copy
from converters.onnx.graph import NETWORK_PREFIX, SCOPES
from converters.onnx.onnx_package import WEIGHTS_FILE
from converters.proof.activations import hooked
from converters.proof.elements import ComparedValue, LayerComparison, compare


@contextmanager
def captured_outputs(reference: nn.Module) -> Iterator[dict[str, np.ndarray]]:
    """Within the ``with`` block, record the outputs of all PyTorch modules. Yields the dictionary that receives them.

    The keys are the modules' paths. A module that is called again replaces its output.
    """
    captured: dict[str, np.ndarray] = {}
    with hooked({path: module for path, module in reference.named_modules() if path}, captured.__setitem__):
        yield captured


@dataclass
class InstrumentedGraph:
    """A copy of a graph that also returns the outputs of its modules.

    Attributes:
        graph: File of the original graph.
        copy: File of the copy.
        modules: Name of each module's output and type of the node that computes this output, by the module's path, in
            program order.
        outputs: Names of the copy's outputs. The outputs of the original graph come first.
        original_outputs: Number of outputs of the original graph.
        last: Outputs of the last run, by name.
    """

    graph: Path
    copy: Path
    modules: Mapping[str, tuple[str, str]]
    outputs: Sequence[str]
    original_outputs: int
    last: dict[str, np.ndarray] = field(default_factory=dict)

    def wrap(self, load: Callable[[SessionKey], Any]) -> Callable[[SessionKey], Any]:
        """Wrap the function that loads graphs, so that it loads the copy instead of the original graph."""

        def load_copy(key: SessionKey) -> Any:
            if key.path != self.graph:
                return load(key)
            return InstrumentedSession(load(replace(key, path=self.copy)), self)

        return load_copy

    def record(self, values: Sequence[Any]) -> None:
        self.last = {name: np.array(value, np.float32) for name, value in zip(self.outputs, values, strict=True)}


class InstrumentedSession:
    """An ONNX Runtime session of the copied graph.

    It behaves like a session of the original, and records all outputs.
    """

    def __init__(self, session: Any, graph: InstrumentedGraph):
        self.session, self.graph = session, graph

    def get_inputs(self) -> list[Any]:
        return self.session.get_inputs()

    def run(self, outputs: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        results = self.session.run(outputs, feeds)
        self.graph.record(results)
        return results[: self.graph.original_outputs]

    def io_binding(self) -> "InstrumentedBinding":
        binding = InstrumentedBinding(self.session.io_binding())
        for name in self.graph.outputs[self.graph.original_outputs :]:
            binding.bind_output(name, "cpu")
        return binding

    def run_with_iobinding(self, binding: "InstrumentedBinding") -> None:
        self.session.run_with_iobinding(binding.binding)
        values = dict(zip(binding.names, binding.binding.get_outputs(), strict=True))
        self.graph.record([values[name].numpy() for name in self.graph.outputs])


class InstrumentedBinding:
    """An IO binding that records the order in which outputs are bound. ONNX Runtime returns outputs in that order."""

    def __init__(self, binding: Any):
        self.binding, self.names = binding, list[str]()

    def bind_input(self, *arguments: Any) -> None:
        self.binding.bind_input(*arguments)

    def bind_output(self, name: str, *arguments: Any) -> None:
        self.names.append(name)
        self.binding.bind_output(name, *arguments)


@contextmanager
def instrumented(graph: Path) -> Iterator[InstrumentedGraph]:
    """Make a copy of an ONNX graph that also returns the outputs of all modules. Delete the copy after the block.

    Raises:
        UserError: The nodes of the graph do not name their modules, because an earlier version of ``ane`` wrote it.
    """
    import onnx

    model = onnx.load(graph, load_external_data=False)
    modules = module_values(model.graph)
    if not modules:
        raise UserError(f"{graph} does not name the modules of its values: convert the model again")
    original = [value.name for value in model.graph.output]
    added = [name for name in dict.fromkeys(name for name, _ in modules.values()) if name not in original]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in added)
    with TemporaryDirectory(prefix="ane-verify.") as folder:
        copy = Path(folder) / graph.name
        copy.write_bytes(model.SerializeToString())
        link_or_copy(graph.parent / WEIGHTS_FILE, copy.parent / WEIGHTS_FILE)
        yield InstrumentedGraph(graph, copy, modules, [*original, *added], len(original))


def module_values(graph: Any) -> dict[str, tuple[str, str]]:
    """Find which value in an ONNX graph is the output of each PyTorch module.

    Returns:
        The name of the value and the type of the node that computes the value, by the module's path, in program order.
        A module comes after the modules within it. The output is the last value of the module that a node outside the
        module reads, or that the graph returns.
    """
    inside: dict[str, tuple[list[str], str, int]] = {}  # value → its modules, its node's type, its node's index
    for place, node in enumerate(graph.node):
        scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
        paths = [
            path.removeprefix(NETWORK_PREFIX) for path in ast.literal_eval(scopes) if path.startswith(NETWORK_PREFIX)
        ]
        inside |= dict.fromkeys(node.output, (paths, node.op_type, place))
    last: dict[str, str] = {}
    readers = [(list(node.input), inside[node.output[0]][0]) for node in graph.node]
    for names, paths in [*readers, ([value.name for value in graph.output], [])]:
        for name in names:
            for path in inside.get(name, ([], "", 0))[0]:
                if path not in paths and (path not in last or inside[name][2] >= inside[last[path]][2]):
                    last[path] = name  # an attention also returns keys and values, but computes its output last
    ordered = sorted(last, key=lambda path: (inside[last[path]][2], -len(path)))
    return {path: (last[path], inside[last[path]][1]) for path in ordered}


def compare_values(
    captured: Mapping[str, np.ndarray], graph: InstrumentedGraph, layers: LayerComparison
) -> list[ComparedValue]:
    """Compare the module outputs of the graph's last run with the outputs of the PyTorch modules, in program order.

    A value is left out if the PyTorch module returned another number of elements.
    """
    compared = []
    for path, (name, op) in graph.modules.items():
        expected, actual = captured.get(path), graph.last.get(name)
        if expected is not None and actual is not None and expected.size == actual.size:
            value = compare(name, op, expected, actual.reshape(expected.shape), layers=layers, path=path)
            compared.append(replace(value, module=path))
    return compared
