"""The table of converted functions, a row for each kind: `ane convert`, `ane verify` and the tests read it.

Another model adds a module with its rows, ``converters/NAME.py`` or ``converters/NAME/functions.py``. No target
changes.
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
# calls one function of a package with test inputs of its bucket; returns the outputs, on float32 torch the reference
Probe = Callable[[Backend, Bundle, Mapping[str, int], np.random.Generator], list[np.ndarray]]

# Precision → dB that a Core ML function must reach: see ``PackagePrecision``
THRESHOLDS = {name: (row.decibels, row.rounded) for name, row in CORE_ML.items()}
ONNX_THRESHOLDS = {name: row.decibels for name, row in ONNX.items()}
# Precision → of 20 sentences of `demo`, those whose codes all equal those of float32, with the decoder as a Core ML
# package that the interpreter runs with fp16 rounding (tools/campaigns/results/codes.json)
KEPT_CODES = {"fp16": 19}
ONNX_ERROR = 1e-4  # the largest of an fp32 graph, as a share of the largest value


@dataclass(frozen=True)
class Bucket:
    """Lengths in which Core ML functions are built, by default or as --buckets requests.

    Attributes:
        unit: what a length counts. smallest: that the probe supports.
        lengths: the default ones; None: they depend on the number of lanes (``ConvertibleModel.slots``).
        most: the largest that the model supports; None: any that the engine takes.
    """

    unit: str
    smallest: int = 1
    lengths: Callable[[Bundle], Sizes] | None = None
    most: Callable[[Bundle], int] | None = None


@dataclass(frozen=True)
class GraphRequest:
    """What the Core ML graphs of a function are built of.

    Attributes:
        network: the reference. scale: what the host multiplies inputs by.
        lanes, caches, buckets: as in ``CoreMLOptions``.
    """

    network: Any
    model: Bundle
    lanes: Sizes
    caches: Sequence[str]
    buckets: Mapping[str, Sizes]
    scale: float = 1.0

    def lengths(self, kind: str) -> Sizes:
        """The requested or default lengths of a kind of function."""
        requested = self.buckets.get(kind)
        return tuple(requested) if requested else convertible_model(self.model).buckets[kind].lengths(self.model)

    def pools(self, cache: str) -> dict[int, Sizes]:
        """For each number of lanes of a decoder's steps, its numbers of slots; empty unless this cache is requested."""
        requested, model = self.buckets.get("step"), convertible_model(self.model)
        return {
            lanes: tuple(sorted(requested)) if requested else model.slots(self.model, lanes)
            for lanes in self.lanes
            if cache in self.caches
        }


@dataclass(frozen=True)
class Function:
    """A kind of function of a network's packages.

    Attributes:
        coreml: its Core ML graphs, one for each bucket; None: Core ML packages do not have it.
        onnx: its ONNX graph, from the reference and its dtype; None: ONNX packages do not have it.
        bucket: the lengths that its Core ML graphs are built in, which --buckets names by the kind; None: others' ones.
        onnx_lengths: what its ONNX graph is probed with; other lengths than it was traced with.
        calls: kinds of other functions that the probe calls.
        outputs: output → path of the reference's module that returns the same; "": the network itself.
        thresholds: by precision, in place of ``THRESHOLDS``.
        onnx_fp32: in fp32, the dB that its ONNX graph must reach, and its largest error, in place of
            ``ONNX_THRESHOLDS`` and ``ONNX_ERROR``.
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
    """Return a line for each precision of Tortoise's decoder about its effect on speech, as far as it was measured."""
    return [
        f"Speech in {precision}: the decoder of demo keeps all codes of {KEPT_CODES[precision]} of 20 sentences. "
        "The others are read differently, not necessarily worse: word errors were not counted."
        for precision in dict.fromkeys(precisions)
        if precision in KEPT_CODES
    ]


def stage_probe(
    stage: str, masked: bool = False, **shapes: Callable[[Bundle, Mapping[str, int]], tuple[int, ...]]
) -> Probe:
    """A probe of a stateless stage: normally distributed inputs of these shapes; ``masked``: there is one, and a mask
    of ones for its first two axes.
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
        networks: package of the reference networks.
        lanes: numbers of lanes that a Core ML decoder's steps take by default.
        scales: network → the factor of its residual stream, by which the host multiplies a decoder's input columns
            (default: 1).
        slots: the default numbers of slots of steps of so many lanes. None: the model has no decoder.
        before_tracing: makes a reference traceable; called before ONNX graphs are built.
        published: the name that the model's authors give to what a module returns, by its path; "" for none.
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


# the family's name → the module that has its ``MODEL``; imported when it is needed
MODULES = {
    name: f"converters.{path.replace('/', '.')}"
    for name in family_names()
    for path in (name, f"{name}/functions")
    if (Path(__file__).parent / f"{path}.py").exists()
}


@cache
def models() -> dict[str, ConvertibleModel]:
    """The models that can be converted, by the family's name."""
    return {family: import_module(module).MODEL for family, module in MODULES.items()}


@cache
def all_functions() -> tuple[Function, ...]:
    """The whole table."""
    return tuple(row for model in models().values() for row in model.functions)


def convertible_model(model: Bundle) -> ConvertibleModel:
    """How to convert a model. Raises UserError when its family is not converted."""
    if model.family.name not in MODULES:
        raise UserError(
            f"{model.name} is a {model.family.title} model, of which no network can be converted: it runs on torch"
        )
    return models()[model.family.name]


def family_of(network: str) -> ModelFamily:
    """The family that a network belongs to. Raises UserError when no model that can be converted has it."""
    found = next((family for family in map(find_family, MODULES) if network in family.networks), None)
    if found is None:
        raise UserError(f"no model that can be converted has a network {network}")
    return found


def network_spec(network: str) -> Network:
    """What its model declares of a network. Raises UserError as ``family_of``."""
    return family_of(network).networks[network]


def weights_sha256(model: Bundle, network: str) -> str:
    """SHA-256 of the file with a network's weights, as the bundle states it."""
    return model.manifest.networks[network].weights.sha256


def convertible_networks(target: str) -> tuple[str, ...]:
    """The networks that can be converted to a target ("coreml" or "onnx"), in order."""
    return tuple(dict.fromkeys(row.network for row in all_functions() if getattr(row, target)))


def functions_of(network: str, target: str) -> dict[str, Function]:
    """The rows of a network by kind. Raises UserError when it is not converted to this target."""
    found = {row.kind: row for row in all_functions() if row.network == network and getattr(row, target)}
    if not found:
        raise UserError(f"{network} is not converted; there are {', '.join(convertible_networks(target))}")
    return found


def scale_of(network: str, reference: "nn.Module") -> float:
    """The factor of a network's residual stream."""
    measure = models()[family_of(network).name].scales.get(network)
    return measure(reference) if measure else 1.0


def published_name(network: str, path: str) -> str:
    """The name that the model's authors give to what a module of a network returns; "" for none."""
    return models()[family_of(network).name].published(path)


def coreml_graphs(network: str, request: GraphRequest) -> "list[CoreMLGraph]":
    """The functions of a network's Core ML package. Raises UserError for a bucket that is too long for the engine."""
    return [graph for row in functions_of(network, "coreml").values() if row.coreml for graph in row.coreml(request)]


def onnx_graphs(network: str, reference: "nn.Module", dtype: "torch.dtype") -> "dict[str, OnnxGraph]":
    """The graphs of a network's ONNX package by kind. ``reference`` computes in ``dtype``, and is modified."""
    models()[family_of(network).name].before_tracing(reference, dtype)
    return {kind: row.onnx(reference, dtype) for kind, row in functions_of(network, "onnx").items() if row.onnx}


def chosen_networks(model: Bundle, requested: Sequence[str] | None, target: str) -> list[str]:
    """The networks to convert to a target, in order; by default all that the model has. Raises UserError as
    ``pick_networks``.
    """
    return pick_networks(model, requested, convertible_networks(target))


def pick_networks(model: Bundle, requested: Sequence[str] | None, possible: Sequence[str]) -> list[str]:
    """Return the requested networks, of the possible ones and in their order; by default all that the model has.
    Raises UserError for none, an unknown one, one that the model lacks, or a model that is not converted.
    """
    known = [network for network in possible if network in model.family.networks]
    if not known:
        raise UserError(
            f"{model.name} is a {model.family.title} model, of which no network can be converted to this format"
        )
    if requested is not None and not requested:
        raise UserError(f"networks must name a network; there are {', '.join(known)}", "networks")
    for network in requested or ():
        if network in model.family.networks and network not in known:
            raise UserError(f"networks={network}: this format has no place for it; there are {', '.join(known)}")
        if network not in known:
            raise UserError(f"networks={network}: no such network; there are {', '.join(known)}")
        model.require(network)
    return [network for network in known if network in (requested or model.networks)]


def check_precision(model: Bundle, name: str, precision: PackagePrecision) -> None:
    """Raise UserError when a precision compresses weights, and no network of the model may be stored so."""
    if precision.bits and not any(getattr(network, precision.flag) for network in model.family.networks.values()):
        raise UserError(
            f"precision={name} has no effect: no network of a {model.family.title} model is {precision.flag}"
        )
