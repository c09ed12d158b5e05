"""Test `ane plan` as a user runs it, and how it reads a Core ML compute plan, which is a fake here."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from ane.bundles.hashes import FileRecord
from ane.bundles.package_records import FunctionRecord, PackageRecord, sections_of
from ane.commands import plan
from ane.commands.placement import NEURAL_ENGINE, OffloadedGroup, placement
from converters.coreml.coreml_package import load_reference
from converters.coreml.graph import CoreMLGraph, Style, mb
from converters.tortoise import autoregressive as gpt2
from tests.random_model import random_model


@pytest.fixture(scope="module")
def step(tmp_path_factory) -> Path:
    """A package of one function, main: a step of the tiny decoder."""
    path = tmp_path_factory.mktemp("packages") / "step.mlpackage"
    gpt2.decoder_graphs(load_reference(random_model(), "autoregressive")).step(4, 64).build(Style(), path)
    return path


@pytest.fixture
def run(succeed, monkeypatch):
    """``run(*arguments)``: what `ane plan` prints; it must succeed, as on Linux."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys, "platform", "linux")
    return partial(succeed, "plan")


def test_the_command_prints_costs_estimates_and_warnings(step, tmp_path, python):
    command = [python, "-m", "ane", "plan", str(step), "--chip", "M1,M4-Pro", "--json", "plan.json"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    for said in ("not measured", "M4 Pro", "Minimum ms per call", "anemll-bench"):
        assert said in result.stdout
    report = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert "not measurements" in report["what"]
    assert [chip["name"] for chip in report["chips"]] == ["M1", "M4 Pro"]
    (function,) = report["functions"]
    assert (function["package"], function["function"]) == (str(step), "main")
    assert function["cost"]["cache_read"] == 2 * 2 * 3 * 64 * 64
    assert set(function["estimates"]) == {"M1", "M4 Pro"}
    assert function["estimates"]["M1"]["bound"] == "dispatch"
    assert report["warnings"] == []


def test_the_plan_begins_with_a_sentence_a_chip_and_fits_100_columns(run, step, monkeypatch):
    lines = run(step, "--chip", "M1,M4").splitlines()
    monkeypatch.setenv("COLUMNS", "500")
    assert lines[0].startswith("M1: the longest call takes at least ")
    text = " ".join(" ".join(lines[:6]).split())
    assert "ms (main); functions by their limit: dispatch 1 (estimated" in text
    assert "M4: the longest call" in text
    assert "break 0 rules for which the Neural Engine refuses an operation, and 0 rules that may move" in text
    assert max(map(len, lines)) <= 100
    for column in ("weights:", "cache:", "handed over:", "large:", "GFLOP:", "columns of chips"):
        assert column in " ".join(" ".join(lines).split()), "each column is explained"


def test_nothing_is_cut_off_in_a_narrow_terminal(run, step, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert "…" not in run(step, "--chip", "M1")


def test_rules_of_chips_that_were_not_asked_for_are_left_out(run, tmp_path):
    graph = CoreMLGraph("waves", {}, {"x": (1, 8, 1, 64)}, lambda style, x: {"y": mb.sin(x=x)})
    graph.build(Style(), tmp_path / "waves.mlpackage")
    assert "sin-cos" in run(tmp_path / "waves.mlpackage", "--chip", "m2")
    assert "sin-cos" not in run(tmp_path / "waves.mlpackage", "--chip", "M3 Max")


def test_all_packages_that_a_bundle_states_are_planned_with_its_units(random_bundle, workplace):
    bundle = Path(shutil.copytree(random_bundle, workplace / "bundle"))
    units = {"packages/a.mlpackage": "CPU_AND_GPU", "packages/b.mlpackage": "CPU_AND_NE"}
    records = [
        PackageRecord(
            "univnet",
            precision,
            path,
            [FileRecord(f"{path}/Manifest.json", "0" * 64, 1)],
            {"main": FunctionRecord("univnet", {"frames": 14}, {})},
            compute_units=stated,
        )
        for precision, (path, stated) in zip(("fp32", "fp16"), units.items(), strict=True)
    ]
    manifest = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps(manifest | sections_of(records)))
    for path in units:
        (bundle / path).mkdir(parents=True)
        (bundle / path / "Manifest.json").write_text("x")
    found = plan.find_packages(SimpleNamespace(package=None, bundle=str(bundle)))
    assert found == [(bundle / path, stated) for path, stated in units.items()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--chip", "M1,M99"), "unknown chip 'M99': choose from M1, M1 Max"),
        (("--function", "step_9_9"), "no package has a function 'step_9_9'"),
        (("--json", "/dev/null/plan.json"), "cannot write /dev/null/plan.json"),
    ],
)
def test_an_error_is_one_line(step, complain, arguments, message):
    assert message in complain("plan", step, *arguments)


# Core ML's compute plan, which is a fake

MLNeuralEngineComputeDevice, MLGPUComputeDevice, MLCPUComputeDevice = (
    type(f"ML{kind}ComputeDevice", (), {}) for kind in ("NeuralEngine", "GPU", "CPU")
)
ANE, GPU, CPU = MLNeuralEngineComputeDevice(), MLGPUComputeDevice(), MLCPUComputeDevice()


def operation(kind, preferred=None, supported=(), cost=None, inner=()):
    """An operation as in MLModelStructure, with what the plan states for it."""
    usage = preferred and SimpleNamespace(preferred_compute_device=preferred, supported_compute_devices=list(supported))
    return SimpleNamespace(
        operator_name=kind,
        outputs=[SimpleNamespace(name=f"{kind}_0")],
        usage=usage,
        cost=cost and SimpleNamespace(weight=cost),
        blocks=[SimpleNamespace(operations=list(inner))] if inner else [],
    )


def compute_plan(*operations, function="main"):
    """A fake of coremltools' MLComputePlan."""
    program = SimpleNamespace(functions={function: SimpleNamespace(block=SimpleNamespace(operations=operations))})
    return SimpleNamespace(
        model_structure=SimpleNamespace(program=program),
        get_compute_device_usage_for_mlprogram_operation=lambda operation: operation.usage,
        get_estimated_cost_for_mlprogram_operation=lambda operation: operation.cost,
    )


COMPUTE_PLAN = compute_plan(
    operation("const"),
    operation("ios18.constexpr_lut_to_dense"),
    operation("ios18.conv", ANE, (CPU, GPU, ANE), 0.5),
    operation("ios18.add", ANE, (CPU, GPU, ANE), 0.1),
    operation("ios18.gather", CPU, (CPU, GPU), 0.1),
    operation("ios18.gather", CPU, (CPU, GPU), 0.1),
    operation("ios18.softmax", GPU, (CPU, GPU, ANE), 0.2),
    operation("ios18.shape"),
    operation("cond", CPU, (CPU,), inner=[operation("ios18.exp", CPU, (CPU,))]),
)


def test_operations_are_counted_by_device_and_type():
    assert placement(COMPUTE_PLAN, "step_1_64") is None
    found = placement(COMPUTE_PLAN, "main")
    assert found.ops == {NEURAL_ENGINE: 2, "CPU": 4, "GPU": 1}
    assert found.costs == pytest.approx({NEURAL_ENGINE: 0.6, "CPU": 0.2, "GPU": 0.2})
    assert found.unknown == 1, "constants run nowhere and are not asked for"
    assert found.elsewhere[:2] == [
        OffloadedGroup("gather", "CPU", ("CPU", "GPU"), "ios18.gather_0", 2, 0.2),
        OffloadedGroup("softmax", "GPU", ("CPU", "GPU", NEURAL_ENGINE), "ios18.softmax_0", 1, 0.2),
    ]
    assert {group.op for group in found.elsewhere[2:]} == {"cond", "exp"}
    assert [group.reason for group in found.elsewhere[:3]] == [
        "only CPU and GPU can",
        "the Neural Engine could too",
        "only CPU can",
    ]


def test_a_placement_is_shown(step, run, monkeypatch):
    monkeypatch.setattr(plan, "function_placement", lambda package, units, name: placement(COMPUTE_PLAN, name))
    monkeypatch.setattr(sys, "platform", "darwin")
    out = run(step)
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if "│" in line]
    assert [NEURAL_ENGINE, "2", "28.6%", "60.0%"] in rows
    assert ["CPU", "4", "57.1%", "20.0%"] in rows
    why = "the Neural Engine could too"
    assert ["softmax", "GPU", "1", "20.0%", why, "ios18.softmax_0"] in rows
    assert "Core ML names no device for 1 operations of main." in out
    report = json.loads(run(step, "--json", "-"))
    assert report["functions"][0]["placement"]["ops"] == {NEURAL_ENGINE: 2, "CPU": 4, "GPU": 1}
    without = placement(
        compute_plan(operation("ios18.gather", CPU, (CPU,)), operation("ios18.conv", ANE, (ANE,))), "main"
    )
    monkeypatch.setattr(plan, "function_placement", lambda *_: without)
    assert "unknown" in run(step), "a plan without costs"
