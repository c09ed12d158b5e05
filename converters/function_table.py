"""List the converted functions, a row for each kind, for `ane convert`, `ane verify` and the tests.

To add another model, add a module with its rows, ``converters/NAME.py`` or ``converters/NAME/NAME_functions.py``. No
target changes.
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
from ane.system.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from converters.coreml.graph import CoreMLGraph
    from converters.onnx.graph import OnnxGraph

Sizes = tuple[int, ...]
# calls one function of a package with test inputs of its bucket and returns the outputs. On float32 torch, these are
# the reference
Probe = Callable[[Backend, Bundle, Mapping[str, int], np.random.Generator], list[np.ndarray]]

# Precision → dB that a Core ML function must reach: see ``PackagePrecision``
THRESHOLDS = {name: (row.decibels, row.rounded) for name, row in CORE_ML.items()}
ONNX_THRESHOLDS = {name: row.decibels for name, row in ONNX.items()}
# Precision → number of sentences, among 20 spoken by `demo`, whose codes all equal the codes of float32. The decoder is
# a Core ML package that the interpreter runs with fp16 rounding (tools/campaigns/results/codes.json)
KEPT_CODES = {"fp16": 19}
ONNX_ERROR = 1e-4  # the largest error of an fp32 graph, as a share of the largest value


@dataclass(frozen=True)
class Bucket:
    """Lengths in which Core ML functions are built, by default or as --buckets requests.

    Attributes:
        unit: Unit that a length counts.
        smallest: Smallest length that the probe supports.
        lengths: Default lengths. ``None`` means that they depend on the number of lanes (``ConvertibleModel.slots``).
        most: Largest length that the model supports. ``None`` means any length that the engine takes.
    """

    unit: str
    smallest: int = 1
    lengths: Callable[[Bundle], Sizes] | None = None
    most: Callable[[Bundle], int] | None = None


@dataclass(frozen=True)
class GraphRequest:
    """The inputs from which the Core ML graphs of a function are built.

    Attributes:
        network: Reference network.
        model: The bundle.
        scale: Factor by which the host multiplies inputs.
        lanes, caches, buckets: As in ``CoreMLOptions``.
    """

    network: Any
    model: Bundle
    lanes: Sizes
    caches: Sequence[str]
    buckets: Mapping[str, Sizes]
    scale: float = 1.0

    def lengths(self, kind: str) -> Sizes:
        """Return the requested or default lengths for a kind of function."""
        requested = self.buckets.get(kind)
        return tuple(requested) if requested else convertible_model(self.model).buckets[kind].lengths(self.model)

    def pools(self, cache: str) -> dict[int, Sizes]:
        """Return the numbers of slots for each number of lanes of a decoder's steps.

        They are {} unless this cache is requested.
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
        probe: Calls the function with test inputs.
        coreml: Builds its Core ML graphs, one for each bucket. ``None`` means that Core ML packages do not have it.
        onnx: Builds its ONNX graph from the reference and its dtype. ``None`` means that ONNX packages do not have it.
        bucket: Lengths that its Core ML graphs are built in, which --buckets names by the kind. ``None`` means that it
            has the lengths of other kinds.
        onnx_lengths: Lengths that its ONNX graph is probed with, which differ from the lengths that it was traced with.
        calls: Kinds of other functions that the probe calls.
        outputs: Output → path of the reference's module that returns the same. "" means the network itself.
        thresholds: Thresholds by precision, in place of ``THRESHOLDS``.
        onnx_fp32: In fp32, the dB that its ONNX graph must reach and its largest error, in place of ``ONNX_THRESHOLDS``
            and ``ONNX_ERROR``.
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
    """Return a line for each precision of Tortoise's decoder about its effect on speech, if that was measured."""
    return [
        f"Speech in {precision}: the decoder of demo keeps all codes of {KEPT_CODES[precision]} of 20 sentences. "
        "It reads the other sentences differently, not necessarily worse: word errors were not counted."
        for precision in dict.fromkeys(precisions)
        if precision in KEPT_CODES
    ]


def stage_probe(
    stage: str, masked: bool = False, **shapes: Callable[[Bundle, Mapping[str, int]], tuple[int, ...]]
) -> Probe:
    """Return a probe of a stateless stage, whose inputs are normally distributed and have these shapes.

    ``masked`` means that there is one input, and a mask of ones for its first two axes.
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
        networks: Package of the reference networks.
        functions: Rows of the table.
        lanes: Numbers of lanes that a Core ML decoder's steps take by default.
        scales: Network → factor of its residual stream, by which the host multiplies a decoder's input columns
            (default: 1).
        slots: Returns the default numbers of slots of steps with so many lanes. ``None`` means that the model has no
            decoder.
        before_tracing: Makes a reference traceable. It is called before ONNX graphs are built.
        published: Returns the authors' name for the output of a module, given the module's path, or "" if there is
            none.
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
        """The buckets that --buckets can name."""
        return {row.kind: row.bucket for row in self.functions if row.bucket}


# the family's name → the module with its ``MODEL``, imported when it is needed
MODULES = {
    name: f"converters.{path.replace('/', '.')}"
    for name in family_names()
    for path in (name, f"{name}/{name}_functions")
    if (Path(__file__).parent / f"{path}.py").exists()
}


@cache
def models() -> dict[str, ConvertibleModel]:
    """Return the models that can be converted, by the family's name."""
    return {family: import_module(module).MODEL for family, module in MODULES.items()}


@cache
def all_functions() -> tuple[Function, ...]:
    """Return the whole table."""
    return tuple(row for model in models().values() for row in model.functions)


def convertible_model(model: Bundle) -> ConvertibleModel:
    """Return the functions to convert of a model. Raises UserError if its family cannot be converted."""
    if model.family.name not in MODULES:
        raise UserError(f"{model.name} is a {model.family.title} model, which cannot be converted: it runs on torch")
    return models()[model.family.name]


def family_of(network: str) -> ModelFamily:
    """Return the family that a network belongs to. Raises UserError if no model that can be converted has it."""
    matching = next((family for family in map(find_family, MODULES) if network in family.networks), None)
    if matching is None:
        raise UserError(f"no model that can be converted has a network {network}")
    return matching


def network_spec(network: str) -> Network:
    """Return the model's declaration of a network. Raises UserError as ``family_of`` does."""
    return family_of(network).networks[network]


def weights_sha256(model: Bundle, network: str) -> str:
    """Return the SHA-256 of the file with a network's weights, as the bundle records it."""
    return model.manifest.networks[network].weights.sha256


def convertible_networks(target: str) -> tuple[str, ...]:
    """Return the networks that can be converted to a target ("coreml" or "onnx"), in order."""
    return tuple(dict.fromkeys(row.network for row in all_functions() if getattr(row, target)))


def functions_of(network: str, target: str) -> dict[str, Function]:
    """Return the rows of a network by kind. Raises UserError if it is not converted to this target."""
    matching = {row.kind: row for row in all_functions() if row.network == network and getattr(row, target)}
    if not matching:
        raise UserError(f"{network} is not converted: choose from {', '.join(convertible_networks(target))}")
    return matching


def scale_of(network: str, reference: "nn.Module") -> float:
    """Return the factor of a network's residual stream."""
    measure = models()[family_of(network).name].scales.get(network)
    return measure(reference) if measure else 1.0


def published_name(network: str, path: str) -> str:
    """Return the authors' name for the output of a network's module, or "" if there is none."""
    return models()[family_of(network).name].published(path)


def coreml_graphs(network: str, request: GraphRequest) -> "list[CoreMLGraph]":
    """Return the functions of a network's Core ML package. Raises UserError if a bucket is too long for the engine."""
    return [graph for row in functions_of(network, "coreml").values() if row.coreml for graph in row.coreml(request)]


def onnx_graphs(network: str, reference: "nn.Module", dtype: "torch.dtype") -> "dict[str, OnnxGraph]":
    """Return the graphs of a network's ONNX package by kind. ``reference`` computes in ``dtype``, and is modified."""
    models()[family_of(network).name].before_tracing(reference, dtype)
    return {kind: row.onnx(reference, dtype) for kind, row in functions_of(network, "onnx").items() if row.onnx}


def chosen_networks(model: Bundle, requested: Sequence[str] | None, target: str) -> list[str]:
    """Return the networks to convert to a target, in order (default: all that the model has).

    Raises UserError as ``pick_networks`` does.
    """
    return pick_networks(model, requested, convertible_networks(target))


def pick_networks(model: Bundle, requested: Sequence[str] | None, possible: Sequence[str]) -> list[str]:
    """Return the requested networks in the order of ``possible`` (default: all that the model has).

    Raises UserError for an empty request, an unknown network, a network that the model lacks, or a model that is not
    converted.
    """
    known = [network for network in possible if network in model.family.networks]
    if not known:
        raise UserError(f"{model.name} is a {model.family.title} model, which cannot be converted to this format")
    if requested is not None and not requested:
        raise UserError(f"networks must name a network: choose from {', '.join(known)}", "networks")
    for network in requested or ():
        if network in model.family.networks and network not in known:
            raise UserError(f"networks={network}: this format has no place for it: choose from {', '.join(known)}")
        if network not in known:
            raise UserError(f"networks={network}: no such network: choose from {', '.join(known)}")
        model.require(network)
    return [network for network in known if network in (requested or model.networks)]


def check_precision(model: Bundle, name: str, precision: PackagePrecision) -> None:
    """Raise UserError if a precision compresses weights and no network of the model may be compressed."""
    if precision.bits and not any(getattr(network, precision.flag) for network in model.family.networks.values()):
        raise UserError(
            f"precision={name} has no effect: no network of a {model.family.title} model is {precision.flag}"
        )
