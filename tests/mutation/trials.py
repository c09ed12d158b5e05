"""Runs tests in a copy of the tree, in which one module at a time is changed."""

import contextlib
import gc
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from tests.mutation.mutants import Mutant
from tests.mutation.recording import ExecutedLines, LineRecorder

NOT_COPIED = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "run", "*.egg-info")
PRELOADED = ["torch", "numpy", "pytest", "xdist.plugin", "pytest_timeout", "hypothesis", "rich", "coremltools", "av",
             "pydantic", "soundfile", "soxr", "fastapi", "uvicorn", "websockets.sync.client", "wyoming", "tokenizers",
             "huggingface_hub", "safetensors.numpy", "tests.mutation.trials"]
OPTIONS = ["-q", "--disable-plugin-autoload", "-p", "xdist.plugin", "-p", "pytest_timeout", "-n", "0",
           "-p", "no:cacheprovider", "-p", "no:unraisableexception"]      # the quickest start: a trial is mostly that
SLACK, FACTOR = 30.0, 4.0       # a mutant's tests may take SLACK + FACTOR times their seconds without a change
NOT_FOUND, TIMEOUT = 4, -1000   # statuses: pytest's when a named test does not exist, and ours


class TrialError(Exception):
    """Tests cannot be recorded."""


def file_of(module: str) -> str:
    return module.replace(".", "/") + ".py"


class FailureNote:
    """A pytest plugin that writes the name of the last test that failed."""

    def __init__(self, root: Path, output: Path) -> None:
        self.output = output

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.output.write_text(report.nodeid, encoding="utf-8")


@dataclass
class Workspace:
    """A copy of the tree. Workspaces that are used in different threads share a lock."""

    root: Path
    copy: Path
    lock: Lock

    def __post_init__(self) -> None:
        shutil.copytree(self.root, self.copy, ignore=NOT_COPIED)
        self.note = self.copy.with_suffix(".note")

    def record(self, file: str) -> dict[str, Any]:
        """What ``LineRecorder`` writes of a file of tests."""
        self.note.unlink(missing_ok=True)
        self._run([file], 3600.0, LineRecorder)
        if not self.note.exists():
            raise TrialError(f"{file}: pytest ended early")
        return json.loads(self.note.read_text(encoding="utf-8"))

    def verdict(self, mutant: Mutant, recording: ExecutedLines) -> tuple[str, str]:
        """``killed``, ``survived`` or ``timeout``, and the test that failed."""
        self._write(mutant.module, mutant.source)
        try:
            for tests in recording.tests_of(mutant):
                found = self._trial(tests, SLACK + FACTOR * recording.seconds(tests), recording.certain)
                if found[0] != "survived":
                    return found
            return "survived", ""
        finally:
            self._write(mutant.module, mutant.original)

    def _trial(self, tests: list[str], limit: float, certain: Callable[[str], bool]) -> tuple[str, str]:
        """A test that is not ``certain`` must fail again alone: one that fails by chance says nothing of the mutant."""
        while tests:
            self.note.unlink(missing_ok=True)
            status = self._run(["-x", *tests], limit, FailureNote)
            if status == NOT_FOUND:         # the mutant changes the tests' names, or prevents their import
                status = self._run(["-x", *dict.fromkeys(name.partition("::")[0] for name in tests)],
                                   limit + SLACK, FailureNote)
            if status in (0, TIMEOUT):
                return ("timeout" if status else "survived"), ""
            failed = self.note.read_text(encoding="utf-8") if self.note.exists() else ""
            if failed not in tests or certain(failed) or self._run([failed], limit, FailureNote):
                return "killed", failed
            tests = tests[tests.index(failed) + 1:]
        return "survived", ""

    def _write(self, module: str, source: str) -> None:
        path = self.copy / file_of(module)
        path.write_text(source, encoding="utf-8")
        # two mutants written within a second would share a .pyc file
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def _run(self, arguments: list[str], limit: float, plugin: type) -> int:
        """The status of pytest, or ``TIMEOUT``. Each begins with the libraries imported."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        process = context.Process(target=_run_pytest, args=(self.copy, arguments, plugin, self.note))
        with self.lock:         # start() asks after the processes of other threads
            process.start()
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            with self.lock:
                if process.exitcode is not None:
                    return process.exitcode
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):       # it ended just now
            os.killpg(process.pid, signal.SIGKILL)
        with self.lock:
            process.join()
        return TIMEOUT


def _run_pytest(root: Path, arguments: list[str], plugin: type, note: Path) -> None:
    """Run pytest in ``root`` as if it were started there, in a process group of its own, and exit with its status."""
    os.setpgid(0, 0)
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.path.insert(0, str(root))
    gc.freeze()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]           # those of the original tree
    with open(os.devnull, "r+b") as null:
        for stream in range(3):
            os.dup2(null.fileno(), stream)
    sys.exit(pytest.main([*OPTIONS, "--basetemp", str(root.with_suffix(".tests")), *arguments], [plugin(root, note)]))
