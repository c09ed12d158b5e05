"""Test the campaign that injects faults, on a tiny bundle and only with the interpreter."""

import json
from pathlib import Path

import pytest

from ane.backends.mil import Interpreter, Package
from ane.bundles.bundle import Bundle
from converters.coreml.coreml_package import CoreMLOptions
from converters.proof.verify import UnverifiedBundle
from tests.conversions import converted
from tools.faults import faults as faults_module
from tools.faults.__main__ import drawn_faults, main, score, smallest_functions
from tools.faults.faults import KINDS, FaultFinder, draw, write_faulty

OPTIONS = CoreMLOptions("fp32", lanes=(2,), buckets={"prefill": (32,), "step": (64,)})
NETWORKS = ["autoregressive", "rlg_auto"]
HERE = [kind for kind in KINDS if kind != "reversed groups"]  # kinds of fault that this tiny bundle can have


@pytest.fixture(scope="module")
def bundle(random_bundle, shared):
    return converted(shared, Bundle(random_bundle), [OPTIONS], NETWORKS).path


@pytest.fixture(scope="module")
def faults(bundle):
    """All faults of each kind, with the package of each function."""
    found, packages = {kind: [] for kind in KINDS}, {}
    for record in UnverifiedBundle(bundle).packages:
        path = bundle / record.path
        for name in smallest_functions(record):
            packages[name] = path, record
            for kind, some in FaultFinder(Package(path), name).find().items():
                found[kind] += some
    return found, packages


@pytest.mark.parametrize("kind", HERE)
def test_a_fault_of_each_kind_leaves_a_program_that_runs_and_differs_in_one_operation(faults, tmp_path, kind):
    found, packages = faults
    fault = draw({kind: found[kind]}, 0, 1)[0]
    path, _ = packages[fault.function]
    write_faulty(path, fault, {fault.function}, tmp_path / "faulty.mlpackage")
    faulty, sound = Package(tmp_path / "faulty.mlpackage"), Package(path)
    assert list(faulty.functions) == [fault.function]
    Interpreter(faulty, fault.function)
    before, after = sound.function(fault.function), faulty.function(fault.function)
    if kind in ("dropped cache write", "swapped pair", "mask off by one"):
        assert before.ops != after.ops
    elif kind == "other GELU":
        assert before.ops == after.ops
        assert before.constants != after.constants
    else:
        op, wrong = (next(op for op in program.ops if op.name == fault.value) for program in (before, after))
        assert [key for key in op.arguments if op.arguments[key] != wrong.arguments[key]]
        assert op.outputs == wrong.outputs


def test_a_sample_has_every_kind_and_function_in_turn_and_depends_on_its_seed(bundle):
    model = UnverifiedBundle(bundle)
    first, again, other = ([fault for _, fault in drawn_faults(model, seed, 3 * len(HERE))] for seed in (1, 1, 2))
    assert first == again != other
    assert {kind: sum(fault.kind == kind for fault in first) for kind in HERE} == dict.fromkeys(HERE, 3)
    assert len({fault.function for fault in first}) >= 4


def test_the_interpreter_names_a_fault_of_each_kind(bundle, tmp_path, capsys):
    """It takes a while, since each of ten faults is verified with all values inside."""
    output = tmp_path / "results.json"
    assert main(["--bundle", str(bundle), "--runners", "mil", "--sample", str(len(HERE)), "-o", str(output)]) == 0
    results = json.loads(output.read_text(encoding="utf-8"))
    printed = json.loads(capsys.readouterr().out)
    assert printed["sample"] == len(HERE)
    assert printed["mil"]["found"] == printed["mil"]["named"] == printed["agree"] == len(HERE)
    assert {fault["kind"] for fault in results["faults"]} == set(HERE)
    assert score(results["faults"]) == printed


def test_the_committed_campaign_meets_its_goal():
    results = json.loads(Path(faults_module.__file__).with_name("results.json").read_text(encoding="utf-8"))
    assert results["sample"] == 100
    assert {fault["kind"] for fault in results["faults"]} == set(KINDS)
    for runner in ("mil", "coreai"):
        assert results[runner]["found"] == 100
        assert results[runner]["named"] >= 95
    assert results["agree"] == 100
