"""The table of converted functions."""

import pkgutil
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import ane.models
from ane.bundles.family import find_family
from ane.bundles.packages import missing_packages
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError
from converters import functions
from converters.coreml.graph import CoreMLGraph, Style, mb
from converters.coreml.package import CoreMLOptions
from converters.coreml.target import check_options
from converters.functions import all_functions, convertible_networks, family_of, functions_of
from tests.random_model import RandomModel


def test_every_network_of_tortoise_is_converted_to_onnx_and_those_that_speak_to_core_ml():
    assert set(NETWORKS) <= set(convertible_networks("onnx"))
    assert set(NETWORKS) - set(convertible_networks("coreml")) == {"cvvp", "classifier"}


def test_families_with_networks_are_converted_to_both_formats():
    """Messages advise a conversion by that."""
    names = [module.name for module in pkgutil.iter_modules(ane.models.__path__) if module.ispkg]
    families = [find_family(name) for name in names if find_spec(f"ane.models.{name}.family")]
    assert len(families) >= 4
    for family in families:
        rows = functions.models()[family.name].functions if family.name in functions.MODULES else ()
        formats = {target for target in ("coreml", "onnx") for row in rows if getattr(row, target)}
        assert formats == ({"coreml", "onnx"} if family.networks else set())


def test_a_model_that_cannot_be_converted_is_not_sent_to_convert():
    family = SimpleNamespace(title="Kitten", networks={})
    model = SimpleNamespace(name="other", path="other", family=family)
    assert str(missing_packages(model, "onnx", "use backend=torch")) == (
        "other is a Kitten model, and `ane convert` makes no ONNX packages of it: use backend=torch")


def test_each_row_is_known_by_network_and_kind_and_calls_rows_of_its_network():
    rows = {(row.network, row.kind): row for row in all_functions()}
    assert len(rows) == len(all_functions())
    for row in rows.values():
        assert row.coreml or row.onnx
        assert all((row.network, kind) in rows for kind in row.calls)
        assert set(row.thresholds) <= set(functions.THRESHOLDS)
        assert row.network in find_family(family_of(row.network).name).networks
    assert family_of("encoder").name == "whisper"
    assert family_of("clvp").name == "tortoise"


def test_a_second_model_needs_an_entry_only(monkeypatch):
    row = functions.Function("acoustic", "acoustic", lambda *_: [], coreml=lambda request: [])
    other = functions.ConvertibleModel("other.networks", (row,))
    found = functions.models() | {"other": other}
    monkeypatch.setattr(functions, "models", lambda: found)
    monkeypatch.setattr(functions, "all_functions", functions.all_functions.__wrapped__)
    assert convertible_networks("coreml")[-1] == "acoustic"
    assert functions_of("acoustic", "coreml") == {"acoustic": row}
    assert set(functions_of("clvp", "coreml")) == {"clvp_text", "clvp_speech"}


def test_an_unknown_network_is_reported_with_the_known_ones():
    with pytest.raises(UserError, match="whisperer is not converted; there are autoregressive, "):
        functions_of("whisperer", "coreml")


def test_a_state_that_the_neural_engine_would_refuse_is_refused_with_the_next_length():
    with pytest.raises(UserError, match=r"step=450.*use 480"):
        check_options(CoreMLOptions(lanes=(1,), buckets={"step": (450,)}), RandomModel())
    check_options(CoreMLOptions(lanes=(1,), buckets={"step": (480,)}), RandomModel())
    check_options(CoreMLOptions(lanes=(1,), caches=("io",), buckets={"step": (450,)}), RandomModel())


def test_a_graph_gives_its_values_the_same_names_whatever_was_built_before():
    def names() -> list[str]:
        graph = CoreMLGraph("double", {}, {"x": (1, 2)}, lambda style, x: {"y": mb.add(x=mb.add(x=x, y=x), y=x)})
        return [op.name for op in graph.build(Style("fp32"))._mil_program.functions["main"].operations]

    before = names()
    mb.name_count["add"] += 7       # as a graph that was refused while it was built leaves it
    assert names() == before
