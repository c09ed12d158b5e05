"""Registry of the models that can be converted.

A second model adds a folder beside ``converters/tortoise`` and an entry here; no target changes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Model
from ane.bundles.family import Config, ModelFamily, Network, find_family
from ane.system.errors import UserError

# calls one function of a package with test inputs of its bucket; returns the outputs
Probe = Callable[[Backend, Model, Mapping[str, int], np.random.Generator], list[np.ndarray]]


@dataclass(frozen=True)
class ConvertibleModel:
    """The modules that convert one model, by dotted name; they are imported when they are needed.

    Attributes:
        networks: package of the reference networks.
        graphs: module that builds the graphs for a target. ``GRAPHS`` there lists the networks it converts, in order,
            and ``graphs_of`` builds those of one network. Core ML's also has ``scale_of``, ``check_buckets``, and
            ``LENGTH_UNITS`` with the kinds of functions that have buckets.
        probes: module that drives those graphs with test inputs. ``PROBES`` there has one for each kind of function.
        lanes: numbers of lanes that a Core ML decoder's steps take by default.
        activations: module whose ``published_names`` are the names that the model's authors give to activations.
    """

    networks: str
    graphs: Mapping[str, str]
    probes: Mapping[str, str]
    lanes: tuple[int, ...] = (1, 16)
    activations: str | None = None

    @property
    def length_units(self) -> Mapping[str, str]:
        """The kinds of Core ML functions that have buckets, and what their lengths count."""
        return import_module(self.graphs["coreml"]).LENGTH_UNITS


# by the family's name
MODELS = {
    "tortoise": ConvertibleModel(
        networks="ane.models.tortoise.networks",
        graphs={"coreml": "converters.tortoise.buckets", "onnx": "converters.tortoise.onnx_graphs"},
        probes={"coreml": "converters.tortoise.probes", "onnx": "converters.tortoise.onnx_probes"}),
    "fastspeech": ConvertibleModel(
        networks="ane.models.fastspeech.networks",
        graphs={"coreml": "converters.fastspeech.buckets", "onnx": "converters.fastspeech.onnx_graphs"},
        probes={"coreml": "converters.fastspeech.probes", "onnx": "converters.fastspeech.onnx_probes"},
        activations="converters.fastspeech.activations"),
    "whisper": ConvertibleModel(
        networks="ane.models.whisper.networks",
        graphs={"coreml": "converters.whisper.buckets", "onnx": "converters.whisper.onnx_graphs"},
        probes={"coreml": "converters.whisper.probes", "onnx": "converters.whisper.onnx_probes"},
        lanes=(1, 8)),                  # a window has at most five candidates
}


def convertible_model(model: Model) -> ConvertibleModel:
    """How to convert a model. Raises UserError when its family is not converted."""
    if model.family.name not in MODELS:
        raise UserError(f"{model.name} is a {model.family.title} model, of which no network can be converted: it runs "
                        "on torch")
    return MODELS[model.family.name]


def network_spec(network: str) -> Network:
    """What its model declares of a network. Raises UserError when no model that can be converted has it."""
    return family_of(network).networks[network]


def family_of(network: str) -> ModelFamily:
    """The family that a network belongs to. Raises UserError when no model that can be converted has it."""
    families = {name: find_family(name) for name in MODELS}
    found = next((family for family in families.values() if network in family.networks), None)
    if found is None:
        raise UserError(f"no model that can be converted has a network {network}")
    return found


def convertible_networks(target: str) -> tuple[str, ...]:
    """The networks that can be converted to a target ("coreml" or "onnx"), in order."""
    return tuple(network for model in MODELS.values() for network in import_module(model.graphs[target]).GRAPHS)


def model_of(target: str, network: str) -> ConvertibleModel:
    """The model that a network belongs to. Raises UserError when the network is not converted to this target."""
    for model in MODELS.values():
        if network in import_module(model.graphs[target]).GRAPHS:
            return model
    raise UserError(f"{network} is not converted; there are {', '.join(convertible_networks(target))}")


def graph_builder(target: str, network: str) -> ModuleType:
    """The module that builds the graphs of a network. Raises UserError as ``model_of``."""
    return import_module(model_of(target, network).graphs[target])


def probes(target: str, network: str) -> ModuleType:
    """The module that probes the graphs of a network. Raises UserError as ``model_of``."""
    return import_module(model_of(target, network).probes[target])


def published_names(network: str, kind: str, config: Config) -> Mapping[str, tuple[str, ...]]:
    """Activations of a kind of function, by the names that the model's authors give them → paths of the modules that
    return the same; no module: the host makes it. Empty where there are no such names."""
    model = next((model for name, model in MODELS.items() if network in find_family(name).networks), None)
    return import_module(model.activations).published_names(kind, config) if model and model.activations else {}


def chosen_networks(model: Model, requested: Sequence[str] | None, known: Collection[str]) -> list[str]:
    """The networks to convert, in the order of ``known``; by default all that the model has.

    Raises:
        UserError: none, an unknown one, one that the model lacks, or a model that is not converted.
    """
    known = [network for network in known if network in model.family.networks]
    if not known:
        raise UserError(f"{model.name} is a {model.family.title} model, of which no network can be converted to this "
                        "format")
    if requested is not None and not requested:
        raise UserError(f"networks must name a network; there are {', '.join(known)}")
    for network in requested or ():
        if network not in known:
            raise UserError(f"networks={network}: no such network; there are {', '.join(known)}")
        model.require(network)
    return [network for network in known if network in (requested or model.networks)]


def check_precision(model: Model, precision: str, flag: str, only: Collection[str]) -> None:
    """Raise UserError when ``precision`` is one of ``only``, and no network has that ``flag`` of ``Network``."""
    if precision in only and not model.family.networks_with(flag):
        raise UserError(f"precision={precision} has no effect: no network of a {model.family.title} model is {flag}")
