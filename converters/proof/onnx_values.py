"""Read the values inside an ONNX graph that modules of the network return.

A node of a graph names the modules that it belongs to. A module's output is its last value that a node outside reads. A
copy of the graph has these values as outputs too, so any provider of ONNX Runtime computes them.
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
from converters.proof.activations import ComparedValue, compare, hooked
from converters.proof.elements import LayerComparison


@contextmanager
def captured_outputs(reference: nn.Module) -> Iterator[dict[str, np.ndarray]]:
    """Yield the outputs of the reference's modules in their last calls, by path. The block fills the mapping."""
    captured: dict[str, np.ndarray] = {}
    with hooked({path: module for path, module in reference.named_modules() if path}, captured.__setitem__):
        yield captured


@dataclass
class InstrumentedGraph:
    """A copy of a graph whose outputs include the outputs of its modules.

    Attributes:
        graph: File of the original.
        copy: File of the copy.
        modules: Path of each module → its value, and the type of the node that computes it, in program order.
        outputs: Names of the copy's outputs. The original's outputs come first.
        original_outputs: Number of the original's outputs.
        last: Values of the last run, by name.
    """

    graph: Path
    copy: Path
    modules: Mapping[str, tuple[str, str]]
    outputs: Sequence[str]
    original_outputs: int
    last: dict[str, np.ndarray] = field(default_factory=dict)

    def wrap(self, load: Callable[[SessionKey], Any]) -> Callable[[SessionKey], Any]:
        """Return a ``load`` that loads the copy in place of this graph."""

        def load_copy(key: SessionKey) -> Any:
            if key.path != self.graph:
                return load(key)
            return InstrumentedSession(load(replace(key, path=self.copy)), self)

        return load_copy

    def record(self, values: Sequence[Any]) -> None:
        self.last = {name: np.array(value, np.float32) for name, value in zip(self.outputs, values, strict=True)}


class InstrumentedSession:
    """A session of the copy that behaves like a session of the original and records all outputs."""

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
    """A binding that records the order in which outputs were bound, because it returns them in that order."""

    def __init__(self, binding: Any):
        self.binding, self.names = binding, list[str]()

    def bind_input(self, *arguments: Any) -> None:
        self.binding.bind_input(*arguments)

    def bind_output(self, name: str, *arguments: Any) -> None:
        self.names.append(name)
        self.binding.bind_output(name, *arguments)


@contextmanager
def instrumented(graph: Path) -> Iterator[InstrumentedGraph]:
    """Yield an instrumented copy of a graph, which exists inside the block.

    Raises UserError for a graph of an earlier version, whose nodes do not name their modules.
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
    """Map the path of each module to the name and node type of its last value that leaves it.

    Such a value is read by a node outside the module, or the graph returns it. The order is the program's, with a part
    before the whole.
    """
    inside: dict[str, tuple[list[str], str, int]] = {}  # value → its modules, the type of its node, its place
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
                    last[path] = name  # keys and values leave an attention before its output does
    ordered = sorted(last, key=lambda path: (inside[last[path]][2], -len(path)))
    return {path: (last[path], inside[last[path]][1]) for path in ordered}


def compare_values(
    captured: Mapping[str, np.ndarray], graph: InstrumentedGraph, layers: LayerComparison
) -> list[ComparedValue]:
    """Return the last run's values that a module of the reference returned in as many elements, in program order."""
    compared = []
    for path, (name, op) in graph.modules.items():
        expected, actual = captured.get(path), graph.last.get(name)
        if expected is not None and actual is not None and expected.size == actual.size:
            value = compare(name, op, expected, actual.reshape(expected.shape), layers=layers, path=path)
            compared.append(replace(value, module=path))
    return compared
