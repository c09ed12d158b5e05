"""Values inside a function as other engines compute them, Core ML on a Mac, Core AI, ONNX Runtime, and as the same
function converted again does.

An ONNX graph states for each node which modules of the network it belongs to. A value that leaves a module is that
module's output: such values become outputs of a copy of the graph, and are compared with the outputs of the reference's
modules.
"""

import ast
import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from ane.backends.coreml.compiled import extract_function
from ane.backends.mil import Arithmetic, MilRuntime, Package
from ane.backends.mil.package import ProgramFunction
from ane.backends.mil.values import Immediate
from ane.backends.onnx.sessions import SessionKey
from ane.bundles import Model
from ane.bundles.packages import PackageRecord
from ane.system.errors import UserError
from ane.system.files import link_or_copy
from converters.coreml.graph import quiet
from converters.coreml.package import CoreMLOptions, write_package
from converters.onnx.graph import NETWORK_PREFIX, SCOPES
from converters.onnx.package import WEIGHTS_FILE
from converters.proof.activations import (
    Activations,
    ActivationSource,
    FunctionCall,
    compare_with_run,
    hooked,
    interpreted,
)
from converters.proof.comparison import MAX_DROP, MAX_SNR, ComparedValue, LayerComparison

if TYPE_CHECKING:
    from ane.backends.coreai.runtime import CoreAIRuntime

BATCH = 40              # values that one compiled model returns
EXACT = 120.0           # dB of two runs in float32 that sum in another order
SAME = 80.0             # dB above which they agree
MAX_LOSS = 15.0         # dB that one operation may lose: deep networks amplify the rounding of their first layers


class CoreMLInspector:
    """coremltools' inspector of a package's only function. Raises RuntimeError when Core ML fails."""

    def __init__(self, package: Path, compute_units: str):
        with quiet():
            import coremltools
            from coremltools.models.ml_program.experimental.debugging_utils import MLModelInspector

            compute = coremltools.ComputeUnit[compute_units]
            self.model = coremltools.models.MLModel(str(package), skip_model_load=True, compute_units=compute)
            self.inspector = MLModelInspector(self.model, compute)

    def values(self, inputs: Mapping[str, np.ndarray], names: Sequence[str]) -> Mapping[str, np.ndarray | None]:
        """The values by name; None where Core ML returns none."""
        try:
            return asyncio.run(self.inspector.retrieve_outputs(dict(inputs), list(names)))
        finally:
            self.inspector.clear_cached_models()


def core_ml_activations(package: Path, function: str, call: FunctionCall, chosen: Sequence[str] | None = None,
                        inspector: Callable[[Path, str], Any] = CoreMLInspector) -> Activations:
    """An ``ActivationSource`` on a Mac: the values of these names, or all. Raises UserError when Core ML fails.

    The inspector adds values to a model's outputs and compiles it again: a minute or more for a large function. It
    (coremltools 9.0) supports models of one function without a state. So a function is first extracted from its
    package, and functions with a state cannot be inspected.

    coremltools' MLModelComparator compares Core ML models only, and its ``compute_snr_and_psnr`` adds 1e-5 to the
    signal, which exceeds the signal of some scaled streams. So values are compared by ``converters.proof.activations``.
    """
    program = Package(package).function(function)
    types = {name: (op.type, type) for op in program.ops for name, type in op.outputs.items()}
    # the binding does not accept float16 (ane.backends.coreml.runtime)
    inputs = {name: array.astype(np.float32) if array.dtype.kind == "f" else array
              for name, array in call.inputs.items()}
    names = list(types if chosen is None else chosen)
    with TemporaryDirectory() as folder:
        extract_function(package, function, Path(folder) / "function.mlpackage")
        try:
            inspected = inspector(Path(folder) / "function.mlpackage", call.compute_units)
            for start in range(0, len(names), BATCH):
                batch = names[start:start + BATCH]
                values = inspected.values(inputs, batch)
                for name in batch:
                    if values.get(name) is not None:
                        op, type = types[name]
                        yield name, op, np.asarray(values[name], np.float32).reshape(type.shape)
        except RuntimeError as error:
            raise UserError(f"Core ML cannot show the values inside function {function} of {package} on "
                            f"{call.compute_units}: {error}") from error


def first_loss(program: ProgramFunction, call: FunctionCall, source: Callable[..., Activations],
               package: Path) -> ComparedValue | None:
    """The first value of a function that loses more on Core ML than rounding to fp16 explains; None if none does.

    ``BATCH`` values, evenly apart, are compared, then those between the last right one and the first wrong one, and so
    on: two or three compilations for a large function. Raises UserError when Core ML fails.
    """
    exact, rounded = (interpreted(MilRuntime(Arithmetic(fp16=fp16))) for fp16 in (False, True))
    usual = {value.name: value.snr for value in compare_with_run(program, call, exact, rounded, package)}
    names, first = list(usual), None
    while names:
        step = -(-len(names) // BATCH)
        chosen = partial(source, chosen=[*names[step - 1:-1:step], names[-1]])
        values = compare_with_run(program, call, exact, chosen, package)
        wrong = next((index for index, value in enumerate(values) if value.snr < usual[value.name] - MAX_DROP), None)
        if wrong is None:
            return first
        first = values[wrong]
        begin = names.index(values[wrong - 1].name) + 1 if wrong else 0
        names = names[begin:names.index(first.name)] if step > 1 else []
    return first


def core_ai_activations(runtime: "CoreAIRuntime") -> ActivationSource:
    """Core AI as an ``ActivationSource``, in the precision of ``runtime``, which returns all values."""
    def activations(package: Path, function: str, call: FunctionCall) -> Activations:
        from ane.backends.coreai.runtime import CoreAIState

        loaded = runtime.load(package, function, "")
        state = CoreAIState(call.state) if call.state else None
        values = loaded.run(call.inputs, state)
        states = state.copied() if state else {}
        for op in loaded.program.ops:
            for name in op.outputs:
                yield name, op.type, values[name]
            if op.written_state:        # its last value, as programs write each state once
                yield op.written_state, op.type, states[op.written_state].astype("float32")

    return activations


# The same function converted again

def first_difference(model: Model, package: PackageRecord, name: str, call: FunctionCall,
                     candidate: ActivationSource, interpreter: MilRuntime) -> ComparedValue | None:
    """The first value of a function, or state that it writes, that differs from the same function converted again.

    A comparison with the reference's modules finds the module in which a function goes wrong. The converter gives every
    value of a graph the same name each time, so against a fresh conversion of the bundle's own weights it finds the
    operation.

    Args:
        call: what both are called with. candidate: runs the package's function. interpreter: runs the fresh one.

    Returns:
        The value, with -``MAX_SNR`` when only the fresh function has it or they declare it differently; None when
        there is no difference.

    Raises:
        UserError: the package does not state its options, or one of the two cannot run.
    """
    with TemporaryDirectory() as folder:
        fresh = Path(folder) / write_package(model, package.network, CoreMLOptions.of(package), Path(folder),
                                             functions={name}).path
        expected, path = Package(fresh).function(name), model.path / package.path
        declared = _declared(Package(path).function(name))
        for value, (op, type) in _declared(expected).items():
            if declared.get(value, ("", type))[1] != type:
                return ComparedValue(value, op, float("inf"), -MAX_SNR)
        values = compare_with_run(expected, call, interpreted(interpreter), candidate, path, fresh, EXACT)
    found = {value.name: value for value in values}
    for value, (op, _) in _declared(expected).items():
        if value not in found:
            return ComparedValue(value, op, float("inf"), -MAX_SNR)
        if found[value].snr < SAME and (found[value].lost or 0) > MAX_LOSS:
            return found[value]
    return None


def _declared(program: ProgramFunction) -> dict[str, tuple[str, object]]:
    """Operation of each value, and of each state that is written, in program order, with its type and settings: axes,
    epsilons and modes, which may change too little to be seen in what an operation returns."""
    values: dict[str, tuple[str, object]] = {}
    for op in program.ops:
        parts = [(key, program.constants.get(part) if isinstance(part, str) else part)
                 for key, (part, *_) in op.arguments.items()]
        settings = {key: part for key, part in parts if isinstance(part, Immediate) and not part.type.shape}
        values |= {name: (op.type, (type, settings)) for name, type in op.outputs.items()}
        if op.written_state:
            values[op.written_state] = op.type, program.states[op.written_state]
    return values


# ONNX Runtime

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
    with TemporaryDirectory(prefix="ane-verify.") as folder:
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
