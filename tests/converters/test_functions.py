"""Test the table of converted functions, the facts that a conversion records, and packages that are no longer valid."""

import json
import pkgutil
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import ane.models
from ane.backends import load_backend
from ane.bundles.bundle import Bundle
from ane.bundles.family import find_family
from ane.bundles.package_records import WEIGHTS
from ane.cli import main
from ane.commands.packages import open_undamaged
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError
from converters import function_table as functions
from converters.conversion import ROOT, graph_fingerprint
from converters.coreml.coreml_package import CoreMLOptions, check_options
from converters.coreml.graph import CoreMLGraph, Style, mb
from converters.function_table import all_functions, convertible_networks, family_of, functions_of
from tests.conversions import converted
from tests.random_model import random_model


def test_families_with_networks_are_converted_to_both_formats():
    """Messages advise a conversion by that."""
    names = [module.name for module in pkgutil.iter_modules(ane.models.__path__) if module.ispkg]
    families = [find_family(name) for name in names if find_spec(f"ane.models.{name}.family")]
    assert len(families) >= 4
    for family in families:
        rows = functions.models()[family.name].functions if family.name in functions.MODULES else ()
        formats = {target for target in ("coreml", "onnx") for row in rows if getattr(row, target)}
        assert formats == ({"coreml", "onnx"} if family.networks else set())
    assert all(set(NETWORKS) <= set(convertible_networks(target)) for target in ("coreml", "onnx"))


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


def test_reports_state_the_kept_codes_and_misheard_words_that_were_counted():
    counted = json.loads((ROOT / "tools" / "campaigns" / "results" / "codes.json").read_text())
    speech = {
        name.removeprefix("mil:fp16:"): (found["with all codes equal"], found["words misheard"])
        for name, found in counted.items()
        if name.startswith("mil:fp16:")
    }
    assert speech == functions.SPEECH
    for (kept, misheard), line in zip(speech.values(), functions.speech_lines(speech), strict=True):
        assert f"{kept} of 20 sentences" in line
        assert f"mishears {misheard} of {counted['torch:cpu:fp32']['words']} words" in line
        assert f"{counted['torch:cpu:fp32']['words misheard']} in float32" in line
    assert functions.speech_lines(["fp32"]) == []


def test_an_unknown_network_is_reported_with_the_known_ones():
    with pytest.raises(UserError, match="whisperer is not converted: choose from autoregressive, "):
        functions_of("whisperer", "coreml")


def test_a_state_that_the_neural_engine_would_refuse_is_refused_with_the_next_length():
    with pytest.raises(UserError, match=r"step=450.*use 480"):
        check_options(CoreMLOptions(lanes=(1,), buckets={"step": (450,)}), random_model())
    check_options(CoreMLOptions(lanes=(1,), buckets={"step": (480,)}), random_model())
    check_options(CoreMLOptions(lanes=(1,), caches=("io",), buckets={"step": (450,)}), random_model())


def test_a_graph_gives_its_values_the_same_names_whatever_was_built_before():
    def names() -> list[str]:
        graph = CoreMLGraph("double", {}, {"x": (1, 2)}, lambda style, x: {"y": mb.add(x=mb.add(x=x, y=x), y=x)})
        return [op.name for op in graph.build(Style("fp32"))._mil_program.functions["main"].operations]

    before = names()
    mb.name_count["add"] += 7  # the state after building a graph failed halfway
    assert names() == before


LIBRARIES = ("1.0",)


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the source, to be edited and restored."""
    root = tmp_path_factory.mktemp("source")
    for package in ("ane", "converters"):
        shutil.copytree(
            ROOT / package,
            root / package,
            ignore=lambda folder, names: [
                name for name in names if not (name.endswith((".py", ".tsv")) or (Path(folder) / name).is_dir())
            ],
        )
    return root


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("ane/models/tortoise/networks/univnet.py", True),
        ("ane/models/whisper/networks.py", True),
        ("ane/models/vocoders/hifigan.py", True),
        ("converters/function_table.py", True),
        ("converters/blocks.py", True),
        ("converters/vocoders.py", True),
        ("converters/tortoise/tortoise_functions.py", True),
        ("converters/tortoise/conditioning.py", True),
        ("converters/coreml/coreml_package.py", True),
        ("converters/coreml/merge.py", True),
        ("converters/onnx/graph.py", True),
        ("converters/whisper/onnx_graphs.py", True),
        ("converters/decoder_graphs.py", True),
        ("converters/values.tsv", True),
        ("converters/proof/lint.py", False),
        ("converters/proof/parity.py", False),
        ("converters/tortoise/tortoise_probes.py", False),
        ("converters/conversion.py", False),
        ("ane/cli.py", False),
    ],
)
def test_it_changes_with_a_network_and_with_its_converter_alone(copy, file, changes):
    path, before = copy / file, graph_fingerprint(LIBRARIES, copy)
    content = path.read_text(encoding="utf-8")
    path.write_text(content + "\n# changed\n", encoding="utf-8")
    try:
        assert (graph_fingerprint(LIBRARIES, copy) != before) == changes
    finally:
        path.write_text(content, encoding="utf-8")


def test_it_changes_with_a_library_and_with_a_files_name(copy):
    before = graph_fingerprint(LIBRARIES, copy)
    assert graph_fingerprint(("1.1",), copy) != before
    folder = copy / "ane/models/tortoise/networks"
    (folder / "univnet.py").rename(folder / "vocoder.py")
    try:
        assert graph_fingerprint(LIBRARIES, copy) != before
    finally:
        (folder / "vocoder.py").rename(folder / "univnet.py")


@pytest.fixture(scope="module")
def intact(random_bundle, shared) -> Path:
    small = CoreMLOptions(lanes=(2,), caches=("io",), buckets={"prefill": (32,), "step": (128,)})
    return converted(shared, Bundle(random_bundle), [small], ["rlg_auto", "autoregressive"]).path


@pytest.fixture
def copied(intact, tmp_path) -> Bundle:
    return Bundle(shutil.copytree(intact, tmp_path / "copied"))


def edit(bundle: Bundle, change) -> None:
    path = bundle.path / "bundle.json"
    stated = json.loads(path.read_text())
    change(stated)
    path.write_text(json.dumps(stated))


def damage_weights(bundle: Bundle) -> None:
    path = next(bundle.path.rglob("autoregressive-fp16.mlpackage/**/weight.bin"))
    data = bytearray(path.read_bytes())
    data[1000] ^= 255
    path.chmod(0o644)
    path.write_bytes(data)


def take_packages_of_another_model(bundle: Bundle) -> None:
    def swap(stated):
        packages = {package["network"]: package for package in stated["coreml"]["packages"]}
        packages["autoregressive"]["source"][WEIGHTS] = "0" * 64

    edit(bundle, swap)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (damage_weights, "weight.bin has SHA-256"),
        (take_packages_of_another_model, "was converted from other weights"),
        (lambda bundle: edit(bundle, lambda stated: stated["coreml"].update(format=2)), "update tortoise-ane"),
        (lambda bundle: edit(bundle, lambda stated: stated.pop("coreml")), "ane convert"),
        (lambda bundle: None, "largest decoder bucket of this bundle has 128"),
    ],
)
def test_packages_that_cannot_speak_are_reported_in_a_line(copied, capsys, change, fault):
    change(copied)
    assert (
        main(
            [
                "say",
                "Hello.",
                "--bundle",
                str(copied.path),
                "--backend",
                "mil",
                "--preset",
                "fastest",
                "-o",
                str(copied.path / "no.wav"),
            ]
        )
        == 1
    )
    assert not (copied.path / "no.wav").exists()
    assert fault in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda package: package.update(functions={}), "functions dictionary should have at least 1 item"),
        (lambda package: package.update(files=[]), "files list should have at least 1 item"),
        (lambda package: package.update(path="../elsewhere.mlpackage"), "must have its files in it"),
        (
            lambda package: next(iter(package["functions"].values())).update(bucket={"columns": "many"}),
            "bucket: columns must be a valid integer",
        ),
        (lambda package: package.update(compute_units="GPU"), "compute_units must be 'CPU_ONLY'"),
    ],
)
def test_an_invalid_record_is_reported(copied, change, problem):
    edit(copied, lambda stated: change(stated["coreml"]["packages"][0]))
    with pytest.raises(UserError, match=problem):
        Bundle(copied.path)


def test_packages_of_unknown_networks_are_ignored(copied):
    edit(copied, lambda stated: stated["coreml"]["packages"][0].update(network="whisperer"))
    assert [package.network for package in Bundle(copied.path).packages] == ["rlg_auto"]


@pytest.mark.parametrize(
    ("option", "fault"),
    [
        ({"precision": "fp32"}, "has autoregressive in fp16, not in fp32"),
        ({"compute_units": "CPU_ONLY"}, "compute_units has no effect on the backend mil"),
    ],
)
def test_options_that_the_packages_or_the_interpreter_lack_are_refused(copied, option, fault):
    with pytest.raises(UserError, match=fault):
        load_backend("mil", copied, **option)


def test_networks_without_a_package_are_named(copied):
    assert load_backend("mil", copied).name == "mil fp16, on torch: clvp, diffusion, hifigan, univnet"


def test_a_damaged_cached_copy_of_the_embedded_voice_is_not_used(copied):
    assert open_undamaged(copied.path).packages
    next(copied.path.rglob("weight.bin")).unlink()
    assert open_undamaged(copied.path) is None
