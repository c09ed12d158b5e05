"""ONNX packages held to the networks: graph by graph through their stages, then value by value inside.

A graph tells of each node which modules of the network it lies in. What leaves a module is that module's value: such
values are made outputs of a copy of the graph, and held to what the twin's module gives.
"""

import ast
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ane.backends.onnx.backend import OrtBackend
from ane.backends.onnx.providers import OnnxDevice
from ane.backends.onnx.sessions import SessionKey, session_loader
from ane.backends.torch.backend import TorchBackend
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import check_hash
from ane.bundles.packages import PackageRecord
from ane.system.errors import UserError
from ane.system.files import link_or_copy
from converters.onnx.export import SCOPES, TWIN
from converters.onnx.weights import FILE
from converters.proof.activations import Value, compared
from converters.proof.onnx_parity import FIGURE, bars_of, probed
from converters.proof.parity import Unpublished, snr
from converters.proof.verify import Checked, largest


@dataclass(frozen=True)
class OnnxSubject:
    """What runs the graphs."""

    device: OnnxDevice

    @property
    def name(self) -> str:
        return f"onnx:{self.device.name}"


def verify(model: Bundle, chosen: Sequence[tuple[PackageRecord, Sequence[str]]], subject: OnnxSubject,
           layers: bool = False, progress: Callable[[str], None] = lambda doing: None) -> list[Checked]:
    """Hold functions of packages to the model's networks on float32 torch.

    ``layers``: the values inside each too. A package that is damaged, or a graph that cannot be run, is told of in its
    result.
    """
    reference, results = TorchBackend(model, "cpu", "fp32", keep=False), []
    for package, functions in chosen:
        for name in functions:
            progress(f"{Path(package.path).stem} {name}")
            results.append(_checked(model, package, name, subject, reference, layers))
        reference.release()
    return results


def _checked(model: Bundle, package: PackageRecord, name: str, subject: OnnxSubject, reference: TorchBackend,
             layers: bool) -> Checked:
    record, published = package.functions[name], Unpublished(model, model.path, [package], reference)
    recorded = record.parity.get(FIGURE) if subject.device.name == "cpu" else None
    about: dict[str, Any] = {"network": package.network, "package": Path(package.path).stem, "function": name,
                             "bar": bars_of(package)[0], "recorded": recorded}
    try:
        for file in package.files:
            check_hash(model.path, file)
        with ExitStack() as open_:
            watched = open_.enter_context(watching(model.path / package.path / f"{name}.onnx")) if layers else None
            heard = open_.enter_context(listening(reference.network(package.network)))
            wanted = probed(reference, published, record.kind)
            load = session_loader(subject.device)
            candidate = OrtBackend(published, subject.device, reference,
                                   load=watched.loading(load) if watched else load)
            got = probed(candidate, published, record.kind)
        about |= {"snr": round(snr(wanted, got), 1), "error": largest(wanted, got)}
        if watched:
            about["values"] = against_twin(heard, watched)
    except UserError as error:
        about["problem"] = str(error)
    return Checked(**about)


# What the twin gives

@contextmanager
def listening(twin: nn.Module) -> Iterator[dict[str, np.ndarray]]:
    """What modules gave in their last call, by path; filled while this is open."""
    heard: dict[str, np.ndarray] = {}

    def note(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if hasattr(output, "detach"):
                heard[path] = np.array(output.detach().float().cpu().numpy())

        return hook

    hooks = [module.register_forward_hook(note(path)) for path, module in twin.named_modules() if path]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


# What the graph gives

class Watched:
    """A copy of a graph whose modules' values are outputs too.

    Attributes:
        modules: of each such value: the module's path and the type of the node that gives it, in the graph's order.
        last: the values of the last run, by name.
    """

    def __init__(self, graph: Path, copy: Path, modules: Mapping[str, tuple[str, str]]):
        self.graph, self.copy, self.modules = graph, copy, modules
        self.last: dict[str, np.ndarray] = {}

    def loading(self, load: Callable[[SessionKey], Any]) -> Callable[[SessionKey], Any]:
        """``load``, but for this graph its copy."""
        def loaded(wanted: SessionKey) -> Any:
            if wanted.path != self.graph:
                return load(wanted)
            return WatchedSession(load(replace(wanted, path=self.copy)), self)

        return loaded


class WatchedSession:
    """A session of the copy, to its caller one of the graph."""

    def __init__(self, session: Any, watched: Watched):
        self.session, self.watched = session, watched

    def get_inputs(self) -> list[Any]:
        return self.session.get_inputs()

    def run(self, outputs: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        found = self.session.run(outputs, feeds)
        own = len(found) - len(self.watched.modules)
        self._note(found[own:])
        return found[:own]

    def io_binding(self) -> Any:
        binding = self.session.io_binding()
        for name in self.watched.modules:
            binding.bind_output(name, "cpu")
        return binding

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        self.session.run_with_iobinding(binding, options)
        self._note([value.numpy() for value in binding.get_outputs()[:len(self.watched.modules)]])

    def _note(self, values: Sequence[np.ndarray]) -> None:
        self.watched.last = {name: np.asarray(value, np.float32)
                             for name, value in zip(self.watched.modules, values, strict=True)}


@contextmanager
def watching(graph: Path) -> Iterator[Watched]:
    """A graph to look into; its copy is there while this is open."""
    import onnx

    model = onnx.load(graph, load_external_data=False)
    modules = leaving(model.graph)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in modules)
    with tempfile.TemporaryDirectory(prefix="ane-verify.") as folder:
        copy = Path(folder) / graph.name
        copy.write_bytes(model.SerializeToString())
        link_or_copy(graph.parent / FILE, copy.parent / FILE)
        yield Watched(graph, copy, modules)


def leaving(graph: Any) -> dict[str, tuple[str, str]]:
    """The last value of each module of a graph that something outside of it reads: name → path and type of node."""
    inside: dict[str, tuple[list[str], str]] = {}           # value → paths of the modules it is made in, type of node
    for node in graph.node:
        stated = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
        paths = [path.removeprefix(TWIN) for path in ast.literal_eval(stated) if path.startswith(TWIN)]
        inside |= dict.fromkeys(node.output, (paths, node.op_type))
    outputs = {value.name for value in graph.output}
    places = {name: number for number, name in enumerate(inside)}
    left: dict[str, str] = {}                               # module → value; keys and values leave one before its own
    for node in graph.node:
        reading, _ = inside[node.output[0]]
        for name in node.input:
            for path in inside.get(name, ([], ""))[0]:
                if path not in reading and places[name] >= places.get(left.get(path, ""), 0):
                    left[path] = name
    found = sorted(((name, path) for path, name in left.items() if name not in outputs),
                   key=lambda entry: (places[entry[0]], -len(entry[1])))
    return {name: (path, inside[name][1]) for name, path in found}


def against_twin(heard: Mapping[str, np.ndarray], watched: Watched) -> list[Value]:
    """The values that a module of the twin gave in the same call, in the graph's order."""
    found = []
    for name, (path, op) in watched.modules.items():
        wanted, got = heard.get(path), watched.last.get(name)
        if wanted is not None and got is not None and wanted.size == got.size:
            found.append(replace(compared(name, op, wanted, got.reshape(wanted.shape)), module=path))
    return found
