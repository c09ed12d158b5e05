"""The registry of convertible models."""

import pkgutil
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import ane.models
from ane.bundles.family import find_family
from ane.bundles.packages import missing_packages
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError
from converters import models
from converters.models import convertible_networks, family_of, graph_builder, probes
from converters.tortoise import buckets, onnx_graphs
from converters.tortoise.onnx_probes import PROBES as ONNX_PROBES
from converters.tortoise.probes import PROBES


def test_every_network_of_tortoise_is_converted_to_onnx_and_those_that_speak_to_core_ml():
    assert set(NETWORKS) <= set(convertible_networks("onnx"))
    assert set(NETWORKS) - set(convertible_networks("coreml")) == {"cvvp", "classifier"}


def test_families_declare_the_formats_that_they_are_converted_to():
    """Messages advise a conversion by what the family declares."""
    names = [module.name for module in pkgutil.iter_modules(ane.models.__path__) if module.ispkg]
    families = [find_family(name) for name in names if find_spec(f"ane.models.{name}.family")]
    assert len(families) >= 4
    for family in families:
        graphs = models.MODELS[family.name].graphs if family.name in models.MODELS else {}
        assert family.package_formats == set(graphs)


def test_a_model_that_cannot_be_converted_is_not_sent_to_convert():
    model = SimpleNamespace(name="other", path="other", family=replace(find_family(), title="Kitten",
                                                                       package_formats=frozenset()))
    assert str(missing_packages(model, "onnx", "use backend=torch")) == (
        "other is a Kitten model, and `ane convert` makes no ONNX packages of it: use backend=torch")


def test_networks_lead_to_the_modules_of_their_model():
    assert graph_builder("coreml", "clvp") is buckets
    assert graph_builder("onnx", "clvp") is onnx_graphs
    assert probes("coreml", "clvp").PROBES is PROBES
    assert probes("onnx", "clvp").PROBES is ONNX_PROBES


def test_no_two_models_have_a_network_of_the_same_name():
    for target in ("coreml", "onnx"):
        assert len(set(convertible_networks(target))) == len(convertible_networks(target))
    assert family_of("encoder").name == "whisper"
    assert family_of("clvp").name == "tortoise"


def test_a_second_model_needs_an_entry_only(monkeypatch):
    class OtherGraphs:
        GRAPHS = ("acoustic",)

    monkeypatch.setitem(models.MODELS, "other", models.ConvertibleModel("other.networks", {"coreml": "other"}, {}))
    imported = models.import_module
    monkeypatch.setattr(models, "import_module", lambda name: OtherGraphs if name == "other" else imported(name))
    assert convertible_networks("coreml")[-1] == "acoustic"
    assert graph_builder("coreml", "acoustic") is OtherGraphs
    assert graph_builder("coreml", "clvp") is buckets


def test_an_unknown_network_is_reported_with_the_known_ones():
    with pytest.raises(UserError, match="whisperer is not converted; there are autoregressive, "):
        graph_builder("coreml", "whisperer")
