"""Compiled models are kept: what is compiled when, and what damage and interruption do."""

# ruff: noqa: F811  fixtures are imported

import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ane.backends.coreml.compiled import CompiledCache, Machine
from ane.backends.coreml.engine import CoreMLEngine
from ane.system.errors import UserError
from tests.backends.coreml.stand_in import M2, StandIn, X, package, packages, run, toolkit  # noqa: F401


def crumbs() -> list[str]:
    """What lies in the cache of compiled models besides whole entries and the lock."""
    folder = CompiledCache().folder
    whole = {entry.path.name for entry in CompiledCache().entries() if entry.record}
    return [path.name for path in folder.iterdir() if path.name not in whole | {".lock"}] if folder.exists() else []


# --- compiled once


def test_a_second_start_compiles_nothing(toolkit, package):
    np.testing.assert_array_equal(run(toolkit, package), 2 * X)
    np.testing.assert_array_equal(run(toolkit, package), 2 * X)
    assert toolkit.compiled == 1
    assert crumbs() == []


def test_a_changed_package_is_compiled_again_and_the_old_model_is_stale(toolkit, package, packages):
    run(toolkit, package)
    shutil.rmtree(package)
    shutil.copytree(packages / "three.mlpackage", package)
    np.testing.assert_array_equal(run(toolkit, package), 3 * X)
    assert toolkit.compiled == 2
    assert {entry.stale(M2, time.time()) for entry in CompiledCache().entries()} == {"", "its package was replaced"}


def test_bytes_changed_in_place_are_noticed(toolkit, package):
    """The file is as long as before and of the same time: its change time gives it away."""
    run(toolkit, package)
    manifest = package / "Manifest.json"
    stat = manifest.stat()
    manifest.write_text(manifest.read_text().replace("CoreML Model Weights", "Core ML ModelWeights"))
    os.utime(manifest, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert manifest.stat().st_size == stat.st_size
    run(toolkit, package)
    assert toolkit.compiled == 2


def test_what_finder_strews_changes_nothing(toolkit, package):
    run(toolkit, package)
    (package / ".DS_Store").write_bytes(b"icons")
    run(toolkit, package)
    assert toolkit.compiled == 1


@pytest.mark.parametrize(("other", "reason"), [(Machine("Apple M2", "25A354"), "for macOS build 24F74"),
                                               (Machine("Apple M4", "24F74"), "for Apple M2")])
def test_another_macos_or_chip_compiles_again_and_the_old_model_is_stale(toolkit, package, other, reason):
    run(toolkit, package)
    run(StandIn(toolkit.log, other), package)
    assert toolkit.compiled == 2
    reasons = {(entry.record.chip, entry.record.os_build): entry.stale(other, time.time())
               for entry in CompiledCache().entries()}
    assert reasons == {M2: reason, other: ""}


def test_a_moved_package_keeps_its_compiled_model(toolkit, package, tmp_path):
    run(toolkit, package)
    (tmp_path / "elsewhere").mkdir()
    moved = package.rename(tmp_path / "elsewhere" / package.name)
    [entry] = CompiledCache().entries()
    assert entry.stale(M2, time.time()) == "its package is gone"
    run(toolkit, moved)
    [entry] = CompiledCache().entries()
    assert (toolkit.compiled, entry.stale(M2, time.time())) == (1, "")


def test_a_model_unused_for_long_is_stale_until_it_is_used(toolkit, package):
    run(toolkit, package)
    [entry] = CompiledCache().entries()
    os.utime(entry.path / "compiled.json", (0, 0))
    assert "unused" in CompiledCache().entries()[0].stale(M2, time.time())
    run(toolkit, package)
    assert CompiledCache().entries()[0].stale(M2, time.time()) == ""


# --- damage and interruption


def truncate(entry: Path) -> None:
    model = next(entry.rglob("model.mlmodel"))
    model.write_bytes(model.read_bytes()[:100])


def garble(entry: Path) -> None:
    model = next(entry.rglob("model.mlmodel"))
    model.write_bytes(b"\xff" * model.stat().st_size)


def forget(entry: Path) -> None:
    (entry / "compiled.json").write_text("[")


@pytest.mark.parametrize("damage", [truncate, garble, forget, shutil.rmtree])
def test_a_damaged_compiled_model_is_compiled_once_more(toolkit, package, damage):
    run(toolkit, package)
    damage(CompiledCache().entries()[0].path)
    np.testing.assert_array_equal(run(toolkit, package), 2 * X)
    run(toolkit, package)
    assert toolkit.compiled == 2
    assert crumbs() == []


def test_a_model_of_another_length_is_not_even_opened(toolkit, package):
    """Core ML maps the weights: where the file ends early it does not raise, the process is killed."""
    run(toolkit, package)
    truncate(CompiledCache().entries()[0].path)
    run(toolkit, package)
    assert toolkit.log.read_text().split() == 2 * ["compile", "model.mlpackage", "open", "model.mlmodelc", "CPU_ONLY"]


def test_a_model_that_never_opens_is_compiled_twice_and_no_more(toolkit, package, monkeypatch):
    run(toolkit, package)

    def refuse(compiled, function, units):
        raise RuntimeError("{\n NSLocalizedDescription = \"Failed to build the model\nexecution plan\";\n}")

    monkeypatch.setattr(toolkit, "open", refuse)
    engine = CoreMLEngine(toolkit)
    for _ in range(2):
        with pytest.raises(UserError, match="Failed to build the model execution plan; try --compute-units"):
            engine.load(package, "main", "CPU_AND_NE")
    assert toolkit.compiled == 2


@pytest.mark.parametrize(("fault", "seen"), [(KeyboardInterrupt(), KeyboardInterrupt),
                                             (RuntimeError("no such op"), UserError),
                                             (OSError(28, "No space left on device"), UserError)])
def test_an_interrupted_compile_leaves_nothing_half_written(toolkit, package, monkeypatch, fault, seen):

    def fail(package, destination):
        destination.mkdir()
        (destination / "coremldata.bin").write_bytes(b"half")
        raise fault

    monkeypatch.setattr(toolkit, "compile", fail)
    with pytest.raises(seen):
        CoreMLEngine(toolkit).load(package, "main", "ALL")
    assert CompiledCache().entries() == []
    assert crumbs() == []


COMPILE = """
import os, sys
from pathlib import Path
from tests.backends.coreml.stand_in import StandIn, run
toolkit = StandIn(Path(sys.argv[1]), delay=float(sys.argv[3]))
run(toolkit, Path(sys.argv[2]))
"""


def start(toolkit: StandIn, package: Path, delay: float) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", COMPILE, str(toolkit.log), str(package), str(delay)],
                            cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_what_a_killed_compile_left_goes_with_the_next(toolkit, package):
    process = start(toolkit, package, 60)
    while not toolkit.compiled:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert [entry.stale(M2, time.time()) for entry in CompiledCache().entries()] == ["unfinished"]
    run(toolkit, package)
    assert crumbs() == []
    assert len(CompiledCache().entries()) == 1


def in_process(log: Path, package: Path, gate) -> None:
    gate.wait()
    run(StandIn(log, delay=0.5), package)


def test_of_two_processes_at_once_one_compiles_and_both_run(toolkit, package):
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(2)
    processes = [context.Process(target=in_process, args=(toolkit.log, package, gate)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert toolkit.compiled == 1
    assert len(CompiledCache().entries()) == 1
    assert crumbs() == []


def test_long_work_is_announced(toolkit, package):
    said = []
    CoreMLEngine(toolkit, notice=said.append).load(package, "main", "ALL")
    CoreMLEngine(toolkit, notice=said.append).load(package, "main", "ALL")
    assert said == ["Compiling model for Apple M2, once for each version of macOS"]
