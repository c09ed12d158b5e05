"""List the functions that packages contain, one row per kind, for `ane convert`, `ane verify` and the tests.

A package has one network as one or several functions. Functions of one kind do the same computation, and differ in
their fixed lengths. A function's lengths together are called its bucket.

To add another model, add a module with its rows, ``converters/NAME.py`` or ``converters/NAME/NAME_functions.py``. The
code for Core ML and ONNX needs no change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Bundle
from ane.bundles.family import ModelFamily, Network, family_names, find_family
from ane.bundles.precisions import CORE_ML, ONNX, PackagePrecision
from ane.system.errors import NoEffectError, UserError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from converters.coreml.graph import CoreMLGraph
    from converters.onnx.graph import OnnxGraph

Sizes = tuple[int, ...]
# calls one function of a package with test inputs that fit its bucket, and returns the outputs. The same call on the
# torch backend in float32 returns the reference outputs
Probe = Callable[[Backend, Bundle, Mapping[str, int], np.random.Generator], list[np.ndarray]]

# Precision → dB of signal to error that a Core ML function must reach (``PackagePrecision`` explains the two numbers)
THRESHOLDS = {name: (row.decibels, row.rounded) for name, row in CORE_ML.items()}
ONNX_THRESHOLDS = {name: row.decibels for name, row in ONNX.items()}
# Precision → (how many of 20 sentences spoken by the model `demo` keep every code that float32 draws, how many of the
# 206 words Whisper base mishears). In float32 it mishears 1. The decoder was a Core ML package, which the interpreter
# ran with fp16 rounding, and torch made the sound of its latents (tools/campaigns/results/codes.json)
SPEECH = {"fp16": (19, 1), "8bit": (5, 2), "6bit": (0, 4), "4bit": (0, 8)}
ONNX_ERROR = 1e-4  # largest error of an fp32 graph, divided by the largest output value


@dataclass(frozen=True)
class Bucket:
    """The lengths that a kind of Core ML function can have. --buckets replaces the default lengths.

    Attributes:
        unit: Unit that a length counts, such as "frames".
        smallest: Smallest length that the function's test supports.
        lengths: Function that returns the default lengths. ``None`` means that the default lengths depend on the number
            of lanes (``ConvertibleModel.slots``).
        most: Function that returns the largest length that the model supports. ``None`` means that only the engine
            limits the length.
    """

    unit: str
    smallest: int = 1
    lengths: Callable[[Bundle], Sizes] | None = None
    most: Callable[[Bundle], int] | None = None


@dataclass(frozen=True)
class GraphRequest:
    """The information from which a function's Core ML graphs are built.

    Attributes:
        network: PyTorch network.
        model: The bundle.
        lanes, caches, buckets: Fields of ``CoreMLOptions``.
        scale: Factor by which the host (the program that calls the package) multiplies the inputs.
    """

    network: Any
    model: Bundle
    lanes: Sizes
    caches: Sequence[str]
    buckets: Mapping[str, Sizes]
    scale: float = 1.0

    def lengths(self, kind: str) -> Sizes:
        """Return the input lengths for a kind of function in a package, as requested or by default."""
        requested = self.buckets.get(kind)
        return tuple(requested) if requested else convertible_model(self.model).buckets[kind].lengths(self.model)

    def pools(self, cache: str) -> dict[int, Sizes]:
        """Return the numbers of kv-cache slots for which to build a decoder's steps, by number of lanes (sequences).

        If ``caches`` does not have this kind of cache, return {}.
        """
        requested, model = self.buckets.get("step"), convertible_model(self.model)
        return {
            lanes: tuple(sorted(requested)) if requested else model.slots(self.model, lanes)
            for lanes in self.lanes
            if cache in self.caches
        }


@dataclass(frozen=True)
class Function:
    """A kind of function in a network's packages.

    Attributes:
        kind: Name of the kind.
        network: Name of the network.
        probe: Python function that calls the package's function with test inputs.
        coreml: Python function that builds the Core ML graphs, one per set of lengths. ``None`` means that Core ML
            packages do not contain this kind.
        onnx: Python function that builds the ONNX graph from the PyTorch network and its dtype. ``None`` means that
            ONNX packages do not contain this kind.
        bucket: Lengths of the Core ML graphs, for which --buckets uses the name of the kind. ``None`` means that the
            lengths of other kinds apply.
        onnx_lengths: Lengths of the test inputs of the ONNX graph. They differ from the lengths with which the graph
            was traced.
        calls: Other kinds of functions that ``probe`` calls.
        outputs: For each output, the path of the module in the PyTorch network that returns the same value. "" means
            the network itself.
        thresholds: Thresholds by precision. They replace ``THRESHOLDS``.
        onnx_fp32: Thresholds of the ONNX graph in fp32, which replace ``ONNX_THRESHOLDS`` and ``ONNX_ERROR``: the dB
            that the graph must reach, and the largest error that the graph may have.
    """

    kind: str
    network: str
    probe: Probe
    coreml: "Callable[[GraphRequest], Iterable[CoreMLGraph]] | None" = None
    onnx: "Callable[[nn.Module, torch.dtype], OnnxGraph] | None" = None
    bucket: Bucket | None = None
    onnx_lengths: Mapping[str, int] = field(default_factory=dict)
    calls: tuple[str, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    thresholds: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    onnx_fp32: tuple[float, float] | None = None


def speech_lines(precisions: Iterable[str]) -> list[str]:
    """Return a line for each measured precision of Tortoise's decoder that says how it changes the speech of `demo`."""
    return [
        f"Speech in {precision}: the decoder of demo keeps all codes of {SPEECH[precision][0]} of 20 sentences. "
        f"Whisper base mishears {SPEECH[precision][1]} of 206 words, and 1 in float32."
        for precision in dict.fromkeys(precisions)
        if precision in SPEECH
    ]


def stage_probe(
    stage: str, masked: bool = False, **shapes: Callable[[Bundle, Mapping[str, int]], tuple[int, ...]]
) -> Probe:
    """Create a probe (a test run) for a network without a state. The inputs are normally distributed.

    Args:
        stage: Name under which a backend runs the network.
        masked: Whether the network also takes a mask. The mask is 1 everywhere, and has the first two axes of the only
            other input.
        shapes: For each input, a function from the bundle and the lengths to the input's shape.
    """

    def probe(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
        inputs = {name: rng.standard_normal(shape(model, bucket), dtype=np.float32) for name, shape in shapes.items()}
        if masked:
            [x] = inputs.values()
            inputs["mask"] = np.ones(x.shape[:2], np.float32)
        return [backend.run(stage, **inputs)]

    return probe


@dataclass(frozen=True)
class ConvertibleModel:
    """The converted functions of one model.

    Attributes:
        networks: Python package with the PyTorch networks.
        functions: Rows of the table.
        lanes: Numbers of lanes for which a Core ML decoder has steps by default.
        scales: For each network, the function that returns the factor of its residual stream. The host multiplies a
            decoder's input columns by this factor. A network without a function has the factor 1.
        slots: Function that takes a number of lanes, and returns the default sizes of the pool, in slots.
            ``None`` means that the model has no decoder.
        before_tracing: Function that changes a PyTorch network so that torch can trace it. It is called before ONNX
            graphs are built.
        published: Function that takes a module's path, and returns the authors' name for the module's output, or "" if
            they gave it none.
    """

    networks: str
    functions: tuple[Function, ...]
    lanes: Sizes = (1, 16)
    scales: "Mapping[str, Callable[[nn.Module], float]]" = field(default_factory=dict)
    slots: Callable[[Bundle, int], Sizes] | None = None
    before_tracing: "Callable[[nn.Module, torch.dtype], None]" = lambda network, dtype: None
    published: Callable[[str], str] = lambda path: ""

    @property
    def buckets(self) -> dict[str, Bucket]:
        """The lengths that --buckets can change, by kind of function in the packages."""
        return {row.kind: row.bucket for row in self.functions if row.bucket}


# family of models → name of the module that defines the family's ``MODEL``. ``models`` imports the modules when needed
MODULES = {
    name: f"converters.{path.replace('/', '.')}"
    for name in family_names()
    for path in (name, f"{name}/{name}_functions")
    if (Path(__file__).parent / f"{path}.py").exists()
}


@cache
def models() -> dict[str, ConvertibleModel]:
    """Import the modules of ``MODULES``, and return the models that can be converted, by family."""
    return {family: import_module(module).MODEL for family, module in MODULES.items()}


@cache
def all_functions() -> tuple[Function, ...]:
    """Return the rows of all models."""
    return tuple(row for model in models().values() for row in model.functions)


def convertible_model(model: Bundle) -> ConvertibleModel:
    """Return the rows for a model's family. Raises UserError if models of this family cannot be converted."""
    if model.family.name not in MODULES:
        raise UserError(f"{model.name} is a {model.family.title} model, which cannot be converted: it runs on torch")
    return models()[model.family.name]


def family_of(network: str) -> ModelFamily:
    """Return the family to which a network belongs. Raises UserError if no convertible model has this network."""
    matching = next((family for family in map(find_family, MODULES) if network in family.networks), None)
    if matching is None:
        raise UserError(f"no model that can be converted has a network {network}")
    return matching


def network_spec(network: str) -> Network:
    """Return the declaration of a network in its family. Raises the errors of ``family_of``."""
    return family_of(network).networks[network]


def weights_sha256(model: Bundle, network: str) -> str:
    """Return the SHA-256 of the file with a network's weights, as the bundle records it."""
    return model.manifest.networks[network].weights.sha256


def convertible_networks(target: str) -> tuple[str, ...]:
    """List the networks that can be converted to a target ("coreml" or "onnx"), in the order of the table."""
    return tuple(dict.fromkeys(row.network for row in all_functions() if getattr(row, target)))


def functions_of(network: str, target: str) -> dict[str, Function]:
    """Return a network's rows, by kind. Raises UserError if the network cannot be converted to this target."""
    matching = {row.kind: row for row in all_functions() if row.network == network and getattr(row, target)}
    if not matching:
        raise UserError(f"{network} is not converted: choose from {', '.join(convertible_networks(target))}")
    return matching


def scale_of(network: str, reference: "nn.Module") -> float:
    """Measure the factor by which to multiply a network's residual stream. For most networks, the factor is 1."""
    measure = models()[family_of(network).name].scales.get(network)
    return measure(reference) if measure else 1.0


def published_name(network: str, path: str) -> str:
    """Return the name that the network's authors give the output of a module, or "" if they name none."""
    return models()[family_of(network).name].published(path)


def coreml_graphs(network: str, request: GraphRequest) -> "list[CoreMLGraph]":
    """Describe the functions of a network's Core ML package. Raises UserError if the engine rejects a length."""
    return [graph for row in functions_of(network, "coreml").values() if row.coreml for graph in row.coreml(request)]


def onnx_graphs(network: str, reference: "nn.Module", dtype: "torch.dtype") -> "dict[str, OnnxGraph]":
    """Describe the graphs of a network's ONNX package, by kind.

    The function changes ``reference``, a PyTorch network that computes in ``dtype``, so that torch can trace it.
    """
    models()[family_of(network).name].before_tracing(reference, dtype)
    return {kind: row.onnx(reference, dtype) for kind, row in functions_of(network, "onnx").items() if row.onnx}


def chosen_networks(model: Bundle, requested: Sequence[str] | None, target: str) -> list[str]:
    """Return the requested networks in the order of the table. ``None`` requests all networks that the model has.

    Raises the errors of ``pick_networks``.
    """
    return pick_networks(model, requested, convertible_networks(target))


def pick_networks(model: Bundle, requested: Sequence[str] | None, possible: Sequence[str]) -> list[str]:
    """Return the requested networks in the order of ``possible``. ``None`` requests all networks that the model has.

    Raises:
        UserError: The request is empty or has an unknown network, the model lacks a requested network, or no network of
            the model is in ``possible``.
    """
    known = [network for network in possible if network in model.family.networks]
    if not known:
        raise UserError(f"{model.name} is a {model.family.title} model, which cannot be converted to this format")
    if requested is not None and not requested:
        raise UserError(f"networks must name a network: choose from {', '.join(known)}", "networks")
    choice = ", ".join(network for network in known if network in model.networks)
    for network in requested or ():
        if network in model.family.networks and network not in known:
            raise UserError(f"networks={network}: this format cannot hold it: choose from {choice}")
        if network not in known:
            raise UserError(f"networks={network}: no such network: choose from {choice}")
        model.require(network)
    return [network for network in known if network in (requested or model.networks)]


def check_precision(model: Bundle, name: str, precision: PackagePrecision) -> None:
    """Raise UserError if a precision compresses weights, but no network of the model can be compressed."""
    if precision.bits and not any(getattr(network, precision.flag) for network in model.family.networks.values()):
        reason = f"because no network of a {model.family.title} model is {precision.flag}"
        raise NoEffectError("precision", reason, text=f"precision={name} has no effect, {reason}")
