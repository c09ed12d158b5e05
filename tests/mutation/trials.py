"""Runs the tests of a module on its mutants, in a copy of the tree."""

import contextlib
import importlib.util
import multiprocessing
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutants import Mutant

# beside tests/<path>/test_<module>.py
EXTRA_TESTS = {
    "ane.models.tortoise.sampling": ["tests/parity/test_sampling.py"],
    "ane.models.tortoise.ranking": ["tests/parity/test_ranking.py"],
    "ane.models.tortoise.decoding": ["tests/parity/test_decoding.py"],
    "ane.models.tortoise.vocoding": ["tests/parity/test_end_to_end.py"],
    "ane.models.tortoise.diffusion": ["tests/parity/test_diffusion.py"],
    "converters.proof.lint_rules": ["tests/converters/proof/test_lint.py"],
    "training.card": ["tests/training/test_main.py"],
    **{f"ane.server.{name}": ["tests/server/test_requests.py"] for name in (
        "app", "encoders", "errors", "page", "schemas", "settings", "speech", "speech_service", "websocket")},
    "ane.server.jobs": ["tests/server/test_engine.py", "tests/server/test_shared_lanes.py"],
    "ane.server.upload_decoder": ["tests/server/test_uploads.py"],
    "ane.server.lifecycle": ["tests/server/test_clients.py"],
    "ane.server.wyoming_protocol": ["tests/server/test_wyoming.py"],
    **{f"ane.books.{name}": ["tests/books/test_output.py"] for name in (
        "assembly", "captions", "media_writer", "omissions", "speakers")},
    **{f"ane.books.{name}": ["tests/books/test_reading.py", "tests/books/test_hostile_files.py"] for name in (
        "document", "epub", "html_reader", "markup", "plain_text")},
    **{f"ane.books.{name}": ["tests/books/test_store.py"] for name in ("job_database", "narration")},
    "ane.bundles.pickles": ["tests/bundles/test_bad_checkpoints.py"],
    "ane.bundles.entries": ["tests/bundles/test_checkpoints.py", "tests/bundles/test_bundle.py"],
    **{f"ane.bundles.{name}": ["tests/bundles/test_bundle.py", "tests/bundles/test_bundle_damage.py"] for name in (
        "family", "hashes", "manifest", "model", "opening", "packages", "weights")},
    **{f"ane.system.{name}": ["tests/system/test_records.py"] for name in ("checked", "errors")},
}
NOT_COPIED = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "run", "*.egg-info")
PRELOADED = ["torch", "numpy", "pytest", "hypothesis", "rich", "tests.mutation.trials"]
SLACK, FACTOR = 20.0, 4.0       # a mutant may take SLACK + FACTOR times the seconds of the unchanged module


class TrialError(Exception):
    """The tests of a module are missing, or fail without any change."""


def file_of(module: str) -> str:
    return module.replace(".", "/") + ".py"


def find_tests(root: Path, module: str) -> list[str]:
    """Of ``ane.a.b`` tests/a/test_b.py, of ``other.a`` tests/other/test_a.py; else all tests of that folder."""
    *folders, name = module.removeprefix("ane.").split(".")
    folder = "/".join(["tests", *folders])
    found = [file for file in (f"{folder}/test_{name}.py", *EXTRA_TESTS.get(module, [])) if (root / file).exists()]
    found = found or sorted(path.relative_to(root).as_posix() for path in (root / folder).glob("test_*.py"))
    if not found:
        raise TrialError(f"{module}: no tests in {folder}; name them in EXTRA_TESTS of tests/mutation/trials.py")
    return found


@dataclass
class Workspace:
    """A copy of the tree in which one module at a time is changed."""

    root: Path
    copy: Path

    def __post_init__(self) -> None:
        shutil.copytree(self.root, self.copy, ignore=NOT_COPIED)
        self.limits: dict[tuple[str, ...], float] = {}      # by the tests: many modules have the same

    def limit(self, module: str) -> float:
        """Seconds that a mutant's tests may take, from one run without a change; TrialError if that run fails."""
        tests = tuple(find_tests(self.root, module))
        if tests not in self.limits:
            started = time.monotonic()
            if self.run_tests(module, 3600.0) != "survived":
                raise TrialError(f"{module}: its tests fail without any change")
            self.limits[tests] = SLACK + FACTOR * (time.monotonic() - started)
        return self.limits[tests]

    def verdict(self, mutant: Mutant) -> str:
        """``killed``, ``survived`` or ``timeout``."""
        limit = self.limit(mutant.module)
        self._write(mutant.module, mutant.source)
        try:
            return self.run_tests(mutant.module, limit)
        finally:
            self._write(mutant.module, mutant.original)

    def _write(self, module: str, source: str) -> None:
        path = self.copy / file_of(module)
        path.write_text(source, encoding="utf-8")
        # two mutants written within a second would share a .pyc file
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def run_tests(self, module: str, limit: float) -> str:
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0", *find_tests(self.root, module)]
        context = multiprocessing.get_context("forkserver")     # each trial begins with the libraries imported
        context.set_forkserver_preload(PRELOADED)
        process = context.Process(target=_run_pytest, args=(self.copy, arguments))
        process.start()
        process.join(limit)
        if process.exitcode is not None:
            return "killed" if process.exitcode else "survived"
        with contextlib.suppress(ProcessLookupError):       # it ended just now
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return "timeout"


def _run_pytest(root: Path, arguments: list[str]) -> None:
    """Run pytest in ``root`` as if it were started there, in a process group of its own, and exit with its status."""
    os.setsid()
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.path.insert(0, str(root))
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]           # those of the original tree
    with open(os.devnull, "r+b") as null:
        for stream in range(3):
            os.dup2(null.fileno(), stream)
    import pytest

    sys.exit(pytest.main(arguments))
