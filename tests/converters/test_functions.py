"""Test the table of converted functions, what a conversion records and prints, and packages that are not valid."""

import json
import pkgutil
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import ane.models
from ane.backends import load_backend
from ane.bundles.bundle import Bundle
from ane.bundles.family import find_family
from ane.bundles.package_records import WEIGHTS
from ane.cli import main
from ane.commands import convert
from ane.commands.packages import open_undamaged
from ane.models.tortoise.networks import NETWORKS
from converters import function_table as functions
from converters.conversion import ROOT, graph_fingerprint
from converters.coreml.coreml_package import CoreMLOptions, check_options
from converters.coreml.graph import CoreMLGraph, Style, mb
from converters.function_table import all_functions, convertible_networks, family_of, functions_of
from converters.progress import ConversionProgress, memory_needed
from tests.conversions import converted
from tests.edits import edit_json, flip
from tests.random_model import random_model
from tests.refusals import assert_refused


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
    assert_refused("whisperer is not converted: choose from autoregressive, ", functions_of, "whisperer", "coreml")


def test_a_state_that_the_neural_engine_would_refuse_is_refused_with_the_next_length():
    assert_refused(
        r"step=450.*use 480", lambda: check_options(CoreMLOptions(lanes=(1,), buckets={"step": (450,)}), random_model())
    )
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


@pytest.fixture
def copied(random_bundle, shared, tmp_path) -> Bundle:
    small = CoreMLOptions(lanes=(2,), caches=("io",), buckets={"prefill": (32,), "step": (128,)})
    intact = converted(shared, Bundle(random_bundle), [small], ["rlg_auto", "autoregressive"]).path
    return Bundle(shutil.copytree(intact, tmp_path / "copied"))


def edit(bundle: Bundle, change) -> None:
    edit_json(bundle.path / "bundle.json", change)


def damage_weights(bundle: Bundle) -> None:
    path = next(bundle.path.rglob("autoregressive-fp16.mlpackage/**/weight.bin"))
    path.chmod(0o644)
    flip(path, 1000)


def swap(stated: dict) -> None:
    packages = {package["network"]: package for package in stated["coreml"]["packages"]}
    packages["autoregressive"]["source"][WEIGHTS] = "0" * 64


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (damage_weights, "weight.bin has SHA-256"),
        (lambda bundle: edit(bundle, swap), "was converted from other weights"),
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
    assert_refused(problem, lambda: Bundle(copied.path))


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
    assert_refused(fault, load_backend, "mil", copied, **option)


def test_networks_without_a_package_are_named(copied):
    assert load_backend("mil", copied).name == "mil fp16, on torch: clvp, diffusion, hifigan, univnet"


def test_a_damaged_cached_copy_of_the_embedded_voice_is_not_used(copied):
    assert open_undamaged(copied.path).packages
    next(copied.path.rglob("weight.bin")).unlink()
    assert open_undamaged(copied.path) is None


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def measured_peaks() -> dict[str, float]:
    """GB of the largest networks at the official size; the decoder with all functions was measured later."""
    rows = json.loads((RESULTS / "2026-11-21-convert-amd-epyc.json").read_text())["networks"]
    peaks = {row["network"]: row["peak_gb"] for row in rows if row["network"] in ("diffusion", "clvp", "hifigan")}
    later = json.loads((RESULTS / "2026-11-23-decoder-official.json").read_text())
    return peaks | {"autoregressive": max(later["build"]["peak_gb"], later["verify"]["peak_gb"])}


@pytest.mark.parametrize(("network", "peak"), measured_peaks().items())
def test_the_formula_for_memory_fits_what_was_measured_at_the_official_size(network, peak):
    family = find_family("tortoise")
    official = SimpleNamespace(family=family, config=lambda name: family.networks[name].official())
    assert memory_needed(official, network) / 1e9 == pytest.approx(peak, abs=0.9)


@pytest.mark.parametrize(("gigabytes", "warned"), [(None, False), (2.4, True), (8, False)])
def test_little_memory_is_announced_before_the_conversion(
    random_bundle, tmp_path, monkeypatch, capsys, gigabytes, warned
):
    monkeypatch.setattr(convert, "memory_bytes", lambda: gigabytes and int(gigabytes * 1e9))
    assert (
        main(["convert", str(random_bundle), "--to", "coreml", "-o", str(tmp_path / "out"), "--networks", "rlg_auto"])
        == 0
    )
    line = (
        "converting rlg_auto takes about 2.0 GB of memory (an estimate: 2 GB and 3.6 times its weights in "
        "float32), and this machine has 2.4 GB: close other programs, or convert on a larger machine"
    )
    assert (line in " ".join(capsys.readouterr().err.split())) == warned


def test_it_counts_functions_and_estimates_the_time_left():
    """A function of a network takes as long as its weights are many; building takes a third of measuring."""
    now, lines = [0.0], []
    progress = ConversionProgress(
        lambda network, text: lines.append(f"{network}: {text}"),
        [("decoder", 3, 10), ("vocoder", 1, 5)],
        clock=lambda: now[0],
        finished=1,
    )
    for package, names in enumerate((("prefill", "step", "state"), ("hifigan",))):
        for activity, seconds in (("building", 100), ("measuring", 300)):
            for name in names:
                progress.report(package, f"{activity} {name}")
                now[0] += seconds / (1, 2)[package]
    assert lines == [
        "decoder: building prefill, 1 of 3 functions, package 2 of 3",
        # 2.5 functions are left to build. How long measuring takes is unknown
        "decoder: building step, 2 of 3 functions, package 2 of 3, at least 5 min left",
        "decoder: building state, 3 of 3 functions, package 2 of 3, at least 3 min left",
        "decoder: measuring prefill, 1 of 3 functions, package 2 of 3",
        "decoder: measuring step, 2 of 3 functions, package 2 of 3, about 14 min left",
        "decoder: measuring state, 3 of 3 functions, package 2 of 3, about 9 min left",
        "vocoder: building hifigan, 1 of 1 functions, package 3 of 3, about 4 min left",
        "vocoder: measuring hifigan, 1 of 1 functions, package 3 of 3, about 3 min left",
    ]


def test_the_functions_of_an_interrupted_run_take_no_time_in_the_estimate():
    now, lines = [0.0], []
    progress = ConversionProgress(lambda package, text: lines.append(text), [("decoder", 10, 7)], clock=lambda: now[0])
    for index in range(8):
        progress.report(0, f"keeping step_{index}")
        now[0] += 1
    for index in range(8, 10):
        progress.report(0, f"building step_{index}")
        now[0] += 120
    assert lines[7:] == [
        "keeping step_7, 8 of 10 functions, package 1 of 1",
        "building step_8, 9 of 10 functions, package 1 of 1",
        "building step_9, 10 of 10 functions, package 1 of 1, at least 2 min left",
    ]
