"""Compares the values inside an ONNX graph with the outputs of the reference's modules.

A graph states for each node which modules of the network it belongs to. A value that leaves a module is that module's
output: such values become outputs of a copy of the graph, and are compared with the outputs of the reference's modules.
"""

import ast
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ane.backends.onnx.sessions import SessionKey
from ane.system.files import link_or_copy
from converters.onnx.graph import NETWORK_PREFIX, SCOPES
from converters.onnx.package import WEIGHTS_FILE
from converters.proof.activations import hooked
from converters.proof.comparison import ComparedValue, LayerComparison


@contextmanager
def capture_outputs(reference: nn.Module) -> Iterator[dict[str, np.ndarray]]:
    """Outputs of modules in their last call, by path; filled inside the block."""
    captured: dict[str, np.ndarray] = {}
    with hooked({path: module for path, module in reference.named_modules() if path}, captured.__setitem__):
        yield captured


class InstrumentedGraph:
    """A copy of a graph in which the modules' outputs are outputs of the graph too.

    Attributes:
        modules: value → the module's path and the type of the node that computes it, in the graph's order.
        last: the values of the last run, by name.
    """

    def __init__(self, graph: Path, copy: Path, modules: Mapping[str, tuple[str, str]]):
        self.graph, self.copy, self.modules = graph, copy, modules
        self.last: dict[str, np.ndarray] = {}

    def wrap(self, load: Callable[[SessionKey], Any]) -> Callable[[SessionKey], Any]:
        """``load``, which loads the copy instead of this graph."""
        def load_copy(request: SessionKey) -> Any:
            if request.path != self.graph:
                return load(request)
            return InstrumentedSession(load(replace(request, path=self.copy)), self)

        return load_copy


class InstrumentedSession:
    """A session of the copy that behaves as one of the original graph and records the additional outputs."""

    def __init__(self, session: Any, graph: InstrumentedGraph):
        self.session, self.graph = session, graph

    def get_inputs(self) -> list[Any]:
        return self.session.get_inputs()

    def run(self, outputs: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        results = self.session.run(outputs, feeds)
        original = len(results) - len(self.graph.modules)
        self._record(results[original:])
        return results[:original]

    def io_binding(self) -> Any:
        binding = self.session.io_binding()
        for name in self.graph.modules:
            binding.bind_output(name, "cpu")
        return binding

    def run_with_iobinding(self, binding: Any) -> None:
        self.session.run_with_iobinding(binding)
        self._record([value.numpy() for value in binding.get_outputs()[:len(self.graph.modules)]])

    def _record(self, values: Sequence[np.ndarray]) -> None:
        self.graph.last = {name: np.asarray(value, np.float32)
                             for name, value in zip(self.graph.modules, values, strict=True)}


@contextmanager
def instrument(graph: Path) -> Iterator[InstrumentedGraph]:
    """An instrumented copy of a graph, which exists inside the block."""
    import onnx

    model = onnx.load(graph, load_external_data=False)
    modules = module_outputs(model.graph)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in modules)
    with tempfile.TemporaryDirectory(prefix="ane-verify.") as folder:
        copy = Path(folder) / graph.name
        copy.write_bytes(model.SerializeToString())
        link_or_copy(graph.parent / WEIGHTS_FILE, copy.parent / WEIGHTS_FILE)
        yield InstrumentedGraph(graph, copy, modules)


def module_outputs(graph: Any) -> dict[str, tuple[str, str]]:
    """For each module, its last value that a node outside it reads: name → path of the module, type of node."""
    inside: dict[str, tuple[list[str], str]] = {}           # value → paths of the modules that compute it, node type
    for node in graph.node:
        scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
        paths = [path.removeprefix(NETWORK_PREFIX) for path in ast.literal_eval(scopes)
                 if path.startswith(NETWORK_PREFIX)]
        inside |= dict.fromkeys(node.output, (paths, node.op_type))
    outputs = {value.name for value in graph.output}
    order = {name: index for index, name in enumerate(inside)}
    last: dict[str, str] = {}       # module → value; keys and values leave an attention before its output
    for node in graph.node:
        readers, _ = inside[node.output[0]]
        for name in node.input:
            for path in inside.get(name, ([], ""))[0]:
                if path not in readers and order[name] >= order.get(last.get(path, ""), 0):
                    last[path] = name
    found = sorted(((name, path) for path, name in last.items() if name not in outputs),
                   key=lambda entry: (order[entry[0]], -len(entry[1])))
    return {name: (path, inside[name][1]) for name, path in found}


def compare_values(captured: Mapping[str, np.ndarray], graph: InstrumentedGraph,
                   layers: LayerComparison) -> list[ComparedValue]:
    """The values of the last run that have a module, in the graph's order."""
    compared = []
    for name, (path, op) in graph.modules.items():
        expected, actual = captured.get(path), graph.last.get(name)
        if expected is not None and actual is not None and expected.size == actual.size:
            compared.append(layers.compare(name, op, path, expected, actual.reshape(expected.shape)))
    return compared
