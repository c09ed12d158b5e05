"""Test compiled packages, and the reported devices of operations, on a stand-in that refuses what Core ML refuses."""

import gc
import multiprocessing
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from ane.backends.coreml.compiled import CompiledCache, CompiledRecord
from ane.backends.coreml.runtime import CoreMLRuntime
from ane.backends.coreml.tools import CoreMLTools, MacMachine
from ane.backends.mil import Package
from ane.commands.placement import NEURAL_ENGINE, function_placement
from ane.system import paths
from ane.system.errors import UserError
from tests.backends.coreml.mac_fixtures import RecordingTools, run
from tests.backends.coreml.orders import Order
from tests.backends.coreml.packages import X, save_two_functions
from tests.refusals import assert_refused


def leftovers() -> list[str]:
    """Names in the cache of compiled models besides complete entries and the lock."""
    folder = CompiledCache().folder
    complete = {entry.name for entry in CompiledCache().entries() if CompiledRecord.read(entry)}
    return [path.name for path in folder.iterdir() if path.name not in complete | {".lock"}] if folder.exists() else []


# A package is compiled once


def test_a_second_start_compiles_nothing_also_of_a_moved_package_and_beside_files_of_finder(api, package, tmp_path):
    for _ in range(2):
        np.testing.assert_array_equal(run(api, package), 2 * X)
    (package / ".DS_Store").write_bytes(b"icons")
    run(api, package)
    (tmp_path / "elsewhere").mkdir()
    run(api, package.rename(tmp_path / "elsewhere" / package.name))
    assert api.compiled == 1
    assert leftovers() == []


def test_a_changed_package_is_compiled_again(api, package, packages):
    run(api, package)
    shutil.rmtree(package)
    shutil.copytree(packages / "three.mlpackage", package)
    np.testing.assert_array_equal(run(api, package), 3 * X)
    assert api.compiled == 2


def test_a_file_changed_in_place_is_compiled_again(api, package):
    """Size and modification time are the same; only the change time differs."""
    run(api, package)
    manifest = package / "Manifest.json"
    stat = manifest.stat()
    manifest.write_text(manifest.read_text().replace("CoreML Model Weights", "Core ML ModelWeights"))
    os.utime(manifest, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert manifest.stat().st_size == stat.st_size
    run(api, package)
    assert api.compiled == 2


@pytest.mark.parametrize("other", [MacMachine("Apple M2", "25A354"), MacMachine("Apple M4", "24F74")])
def test_another_macos_or_chip_compiles_again(api, package, other):
    run(api, package)
    run(RecordingTools(api.stand_in, other), package)
    assert api.compiled == 2


# Damage and interruption


def truncate(entry: Path) -> None:
    model = next(entry.rglob("model.mlmodel"))
    model.write_bytes(model.read_bytes()[:100])


def overwrite(entry: Path) -> None:
    model = next(entry.rglob("model.mlmodel"))
    model.write_bytes(b"\xff" * model.stat().st_size)


def replace_record_by_a_fifo(entry: Path) -> None:
    (entry / "compiled.json").unlink()
    os.mkfifo(entry / "compiled.json")


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        overwrite,
        shutil.rmtree,
        replace_record_by_a_fifo,
        *(
            pytest.param(lambda entry, text=text: (entry / "compiled.json").write_text(text), id=f"record {text[:40]}")
            for text in (
                "[",
                "[" * 100_000,
                '{"version": ' + "[" * 100_000,
                "null",
                "{}",
                '{"version": 1, "model": 5, "files": {}}',
                '{"version": 1, "model": "../m", "files": {}}',
            )
        ),
    ],
)
def test_a_damaged_compiled_model_or_record_is_compiled_once_again(api, package, damage):
    run(api, package)
    damage(CompiledCache().entries()[0])
    for _ in range(2):
        np.testing.assert_array_equal(run(api, package), 2 * X)
    assert api.compiled == 2
    assert leftovers() == []


def test_a_truncated_model_is_not_opened(api, package):
    """Core ML maps the weights: it does not raise on a file that ends early, the process is killed."""
    run(api, package)
    truncate(CompiledCache().entries()[0])
    run(api, package)
    once = ["compile model.mlpackage", "load main CPU_ONLY", "predict main CPU_ONLY"]
    assert api.stand_in.log == 2 * once


def test_a_model_that_never_opens_is_compiled_twice_only(api, package):
    run(api, package)

    api.stand_in.order(Order("load", message="Failed to build\nthe plan"))
    runtime = CoreMLRuntime(api)
    for _ in range(2):
        assert_refused("Failed to build the plan: try compute_units=", runtime.load, package, "main", "CPU_AND_NE")
    assert api.compiled == 2


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (RuntimeError("no such op"), UserError),
        (OSError(28, "No space left on device"), UserError),
    ],
)
def test_an_interrupted_compile_leaves_nothing_half_written(api, package, monkeypatch, error, expected):

    def fail(package, destination):
        destination.mkdir()
        (destination / "coremldata.bin").write_bytes(b"half")
        raise error

    monkeypatch.setattr(api, "compile", fail)
    with pytest.raises(expected):
        CoreMLRuntime(api).load(package, "main", "ALL")
    assert CompiledCache().entries() == []
    assert leftovers() == []


COMPILE = """
from tests.backends.coreml.native import install_in_process
install_in_process()
import sys
from pathlib import Path
from ane.backends.coreml.runtime import CoreMLRuntime
CoreMLRuntime().load(Path(sys.argv[1]), "main", "CPU_ONLY")
"""


def test_the_next_compile_removes_what_a_killed_one_left(api, package, python):
    api.stand_in.order(Order("compile", "hang"))
    process = subprocess.Popen([python, "-c", COMPILE, str(package)], stderr=subprocess.PIPE)
    while not api.compiled:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    [left] = CompiledCache().entries()
    assert left.name.endswith(".partial")
    api.stand_in.order()
    run(api, package)
    assert leftovers() == []
    assert len(CompiledCache().entries()) == 1


def in_process(package: Path, gate) -> None:
    api = CoreMLTools()
    compile = api.compile
    api.compile = lambda *arguments: (time.sleep(0.5), compile(*arguments))
    gate.wait()
    run(api, package)


def test_of_two_processes_at_once_one_compiles_and_both_run(api, package):
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(2)
    processes = [context.Process(target=in_process, args=(package, gate)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert api.compiled == 1
    assert len(CompiledCache().entries()) == 1
    assert leftovers() == []


@pytest.mark.parametrize("damage", [lambda file: file.write_text("[" * 100_000), lambda file: os.mkfifo(file)])
def test_a_cached_hash_that_cannot_be_read_is_computed_again(api, package, damage):
    run(api, package)
    [file] = (paths.cache_dir() / "verified").glob("*.json")
    file.unlink()
    damage(file)
    run(api, package)
    assert api.compiled == 1


def test_every_function_of_a_package_has_a_plan_and_one_that_core_ml_refuses_is_an_error_of_one_line(mac, tmp_path):
    package = Package(save_two_functions(tmp_path / "both.mlpackage"))
    for name in ("double", "triple"):
        found = function_placement(package, "CPU_AND_NE", name)
        assert (found.ops, found.unknown) == ({NEURAL_ENGINE: len(package.function(name).ops)}, 0)
    mac.order(Order("plan", message="no plan today"))
    assert_refused(r"no plan for double of .*: no plan today$", function_placement, package, "CPU_ONLY", "double")


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    save_two_functions(folder / "both.mlpackage")
    return folder


@pytest.fixture
def compiled(unguarded_mac, both, tmp_path) -> Path:
    from coremltools.models.utils import compile_model

    return Path(compile_model(str(both / "both.mlpackage"), str(tmp_path / "both.mlmodelc")))


def opened(compiled: Path, function: str = "double"):
    import coremltools

    return coremltools.models.CompiledMLModel(str(compiled), coremltools.ComputeUnit.CPU_ONLY, function)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x[:, ::2],
        lambda x: x.astype(np.int64),
        lambda x: x.astype(np.uint8),
        lambda x: x.tolist(),
        lambda x: np.lib.stride_tricks.as_strided(x, writeable=False),
    ],
)
def test_an_array_that_the_binding_cannot_convert_is_refused(compiled, spoil):
    model = opened(compiled)
    with pytest.raises(RuntimeError, match="value type not convertible"):
        model.predict({"x": spoil(X.copy())}, model.make_state())


def test_a_state_serves_the_functions_of_its_own_model_only(compiled, both, tmp_path):
    double, triple = opened(compiled), opened(compiled, "triple")
    state, x = double.make_state(), X.copy()
    double.predict({"x": x}, state)
    np.testing.assert_array_equal(triple.predict({"x": x}, state)["sum"], 2 * X)
    with pytest.raises(RuntimeError, match="needs a state"):
        double.predict({"x": x})
    shutil.copytree(compiled, tmp_path / "other.mlmodelc")
    with pytest.raises(RuntimeError, match="made by another model"):
        opened(tmp_path / "other.mlmodelc").predict({"x": x}, state)


def test_the_plan_has_devices_for_the_default_function_only(compiled):
    import coremltools
    from coremltools.models.compute_plan import MLComputePlan

    plan = MLComputePlan.load_from_path(str(compiled), coremltools.ComputeUnit.CPU_AND_NE)
    usages = {
        name: [plan.get_compute_device_usage_for_mlprogram_operation(one) for one in function.block.operations]
        for name, function in plan.model_structure.program.functions.items()
    }
    assert None not in usages["double"]
    assert set(usages["triple"]) == {None}


def test_an_array_that_dies_while_core_ml_reads_it_is_noticed(unguarded_mac, both, tmp_path):
    from coremltools.models.utils import compile_model

    model = opened(Path(compile_model(str(both / "both.mlpackage"), str(tmp_path / "both.mlmodelc"))))
    model.predict({"x": X.copy()}, model.make_state())
    gc.collect()
    assert unguarded_mac.log[-1] == "freed too early: x"
