"""Test `ane plan` as a user runs it, and how it reads a Core ML compute plan, which is a fake here."""

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from ane.bundles.hashes import FileRecord
from ane.bundles.package_records import FunctionRecord, PackageRecord, sections_of
from ane.commands import plan
from ane.commands.placement import NEURAL_ENGINE, OffloadedGroup, placement
from converters.coreml.graph import CoreMLGraph, Style, mb


@pytest.fixture
def run(succeed, monkeypatch):
    """``run(*arguments)``: what `ane plan` prints; it must succeed, as on Linux."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys, "platform", "linux")
    return partial(succeed, "plan")


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
