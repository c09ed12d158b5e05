"""Registry of the models that can be converted.

A second model adds a folder beside ``converters/tortoise`` and an entry here; no target changes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from ane.bundles import Model
from ane.bundles.family import Network
from ane.system.errors import UserError


@dataclass(frozen=True)
class ConvertibleModel:
    """The modules that convert one model, by dotted name; they are imported when they are needed.

    Attributes:
        networks: package of the reference networks.
        graphs: module that builds the graphs for a target. ``GRAPHS`` there lists the networks it converts, in order,
            and ``graphs_of`` builds those of one network. Core ML's also has ``scale_of`` and ``check_buckets``.
        probes: module that drives those graphs with test inputs. ``PROBES`` there has one for each kind of function.
    """

    networks: str
    graphs: Mapping[str, str]
    probes: Mapping[str, str]


MODELS = {
    "tortoise": ConvertibleModel(
        networks="ane.models.tortoise.networks",
        graphs={"coreml": "converters.tortoise.buckets", "onnx": "converters.tortoise.onnx_graphs"},
        probes={"coreml": "converters.tortoise.probes", "onnx": "converters.tortoise.onnx_probes"}),
    "fastspeech": ConvertibleModel(
        networks="ane.models.fastspeech.networks",
        graphs={"coreml": "converters.fastspeech.buckets", "onnx": "converters.fastspeech.onnx_graphs"},
        probes={"coreml": "converters.fastspeech.probes", "onnx": "converters.fastspeech.onnx_probes"}),
}


def network_spec(network: str) -> Network:
    """What its model declares of a network. Raises KeyError when no model has it."""
    return next(networks[network] for networks in (import_module(model.networks).NETWORKS for model in MODELS.values())
                if network in networks)


def convertible_networks(target: str) -> tuple[str, ...]:
    """The networks that can be converted to a target ("coreml" or "onnx"), in order."""
    return tuple(network for model in MODELS.values() for network in import_module(model.graphs[target]).GRAPHS)


def function_kinds() -> tuple[str, ...]:
    """The kinds of Core ML functions whose lengths can be chosen, of all models."""
    return tuple(kind for model in MODELS.values() for kind in import_module(model.graphs["coreml"]).LENGTH_UNITS)


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


def chosen_networks(model: Model, requested: Sequence[str] | None, known: Collection[str]) -> list[str]:
    """The networks to convert, in the order of ``known``; by default all that the model has.

    Raises:
        UserError: none, an unknown one, or one that the model lacks.
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
