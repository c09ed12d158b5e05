"""Test whether tests notice random changes to the code: ``python -m tools.mutation --modules A,B --sample K -o FILE``.

The program draws K mutants of the modules. For each mutant, it runs the tests that reach its function until one fails,
in a copy of the tree. To find these tests, it runs all tests once (``tools/mutation/reach.py``), or reads the file of
``--reach``, which knows no tests that were written since.

FILE gets a diff of every mutant that survived. If a mutant changes no behaviour, write the reason in its field
"equivalent". A second run with the same FILE keeps the verdicts, but tries survivors without a reason again.
The library mutmut would run every mutant of a module, because it cannot draw a sample from a seed.
"""

import argparse
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from tools.mutation.mutants import Mutant, find_mutants
from tools.mutation.reach import Reach, measure, module_of

NOT_COPIED = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "run", "*.egg-info")
# options that make pytest start fast, because starting takes most of the time of a killed mutant
PYTEST = (
    "-m",
    "pytest",
    "-q",
    "-x",
    "--disable-plugin-autoload",
    "-p",
    "xdist.plugin",
    "-n",
    "0",
    "-p",
    "pytest_timeout",
    "--timeout",
    "180",
    "-p",
    "no:cacheprovider",
)
ALL_TESTS = (sys.executable, "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", "--timeout", "180")


@dataclass(frozen=True)
class TreeCopy:
    """A copy of the tree in which one module at a time is changed.

    Attributes:
        root: Root of the copy.
        seconds: Seconds after which the tests of a mutant are ended.
        sound: Tests that pass without a mutant.
        unsound: Tests that fail without a mutant, or not always with the same mutant. They are left out.
    """

    root: Path
    seconds: float
    sound: set[str] = field(default_factory=set)
    unsound: set[str] = field(default_factory=set)

    def verdict(self, mutant: Mutant, tests: list[str]) -> tuple[str, str]:
        """Run tests on a mutant. Return ``killed``, ``survived`` or ``timeout``, and the failed test.

        A failed test counts only if it also fails alone, and passes alone without the mutant. If pytest fails without
        the name of a test, as when the mutant breaks an import, the same tests must pass without the mutant.
        """
        while tests := [test for test in tests if test.partition("[")[0] not in self.unsound]:
            selected = [*tests, *(f"--deselect={test}" for test in sorted(self.unsound))]
            self._write(mutant.module, mutant.source)
            try:
                verdict, failed = self.run(*selected)
                again = verdict if not failed else self.run(failed)[0]
            finally:
                self._write(mutant.module, mutant.original)
            if verdict == "killed" and not failed:
                passes = self.run(*selected)[0] == "survived"
                return "killed" if passes else "survived", ""
            if not failed or (again == "killed" and self.passes(failed)):
                return verdict, failed
            if failed in self.unsound:  # it is left out already, and fails again while tests are collected
                return "survived", ""
            self.unsound.add(failed)
            sys.stderr.write(f"left out, because it does not depend on the mutant alone: {failed}\n")
        return "survived", ""

    def passes(self, test: str) -> bool:
        """Return whether a test passes alone, without a mutant."""
        if test not in self.sound and self.run(test)[0] == "survived":
            self.sound.add(test)
        return test in self.sound

    def run(self, *arguments: str) -> tuple[str, str]:
        """Run pytest on the current code. Return the verdict and the failed test."""
        process = subprocess.Popen(
            [sys.executable, *PYTEST, *arguments],
            cwd=self.root,
            text=True,
            env=os.environ | {"PYTHONPATH": str(self.root)},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            output, _ = process.communicate(timeout=self.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "timeout", ""
        if process.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:  # all are left out or skipped
            return "survived", ""
        failed = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", output, re.MULTILINE)  # without its parameters
        return ("killed", failed[1] if failed else "") if process.returncode else ("survived", "")

    def _write(self, module: str, source: str) -> None:
        path = self.root / file_of(module)
        path.write_text(source, encoding="utf-8")
        # without this, two mutants written within a second would share a .pyc file
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def file_of(module: str) -> str:
    return module.replace(".", "/") + ".py"


def nearest_first(tests: Mapping[str, float], module: str, seconds: float) -> list[str]:
    """Return the tests of a module in the order in which to run them, as many as probably take ``seconds``.

    First tests in files of the mirrored folder that are named like the module, then tests in that folder, then the
    others. Within each group, short tests come first. Each file counts as one second more, for its imports and
    fixtures.
    """
    *folders, name = module.removeprefix("ane.").split(".")

    def distance(test: str) -> int:
        file = Path(test.partition("::")[0])
        near = file.parent.parts[: len(folders) + 1] == ("tests", *folders)
        return 2 - near - (near and name in file.stem)

    chosen, files = list[str](), set[str]()
    for test in sorted(tests, key=lambda test: (distance(test), tests[test], test)):
        file = test.partition("::")[0]
        cost = tests[test] + (file not in files)
        if cost <= seconds:  # a test that does not fit leaves room for shorter ones
            seconds -= cost
            files.add(file)
            chosen.append(test)
    return chosen


def draw(root: Path, modules: list[str], seed: int, count: int) -> list[Mutant]:
    """Draw a random sample of the mutants of modules, and of all modules in packages, in random order."""
    names = [
        name
        for module in modules
        for name in [
            f"{module}.{path.stem}"
            for path in sorted((root / module.replace(".", "/")).glob("*.py"))
            if path.stem != "__init__"
        ]
        or [module]
    ]
    every = [mutant for name in names for mutant in find_mutants(name, (root / file_of(name)).read_text("utf-8"))]
    return random.Random(seed).sample(every, min(count, len(every)))


def read_reach(file: Path | None, root: Path, folder: Path) -> Reach:
    """Read which tests reach which function. If there is no file, run all tests, and write it."""
    if file and file.exists():
        reached = json.loads(file.read_text(encoding="utf-8"))
    else:
        (folder / "reports").mkdir()
        copied = Path(shutil.copytree(root, folder / "reach", ignore=NOT_COPIED))
        reached = measure(copied, ALL_TESTS, folder / "reports")
        if file:
            file.write_text(json.dumps(reached, indent=1) + "\n", encoding="utf-8")
    sources = {module_of(path, root): path.read_text(encoding="utf-8") for path in (root / "ane").rglob("*.py")}
    tests = (root / "tests").rglob("test_*.py")
    return Reach(reached, sources, {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in tests})


def verdicts(
    copies: Sequence[TreeCopy], mutants: Sequence[Mutant], reach: Reach, seconds: float
) -> Iterator[dict[str, Any]]:
    """Try mutants, one at a time in each copy of the tree. Yield the results in the order in which they come."""
    free: Queue[TreeCopy] = Queue()
    for copy in copies:
        free.put(copy)

    def tried(mutant: Mutant) -> dict[str, Any]:
        tests = nearest_first(reach.tests(mutant.module, mutant.line), mutant.module, seconds)
        return trial(free, mutant, tests)

    with ThreadPoolExecutor(len(copies)) as threads:
        for done in as_completed([threads.submit(tried, mutant) for mutant in mutants]):
            yield done.result()


def trial(copies: "Queue[TreeCopy]", mutant: Mutant, tests: list[str]) -> dict[str, Any]:
    copy, began = copies.get(), time.monotonic()
    try:
        verdict, test = copy.verdict(mutant, tests)
    finally:
        copies.put(copy)
    result = {
        "key": mutant.key,
        "change": mutant.change,
        "verdict": verdict,
        "seconds": round(time.monotonic() - began, 1),
    }
    return result | ({"by": test} if verdict == "killed" else {"equivalent": "", "diff": mutant.diff})


def score(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Count the verdicts, and compute which share of mutants was killed, without equivalent ones.

    If one test hangs, pytest fails it, so the mutant is killed. If all tests together take too long, the mutant is not
    killed.
    """
    counts = Counter(result["verdict"] for result in results)
    equivalent = sum(bool(result.get("equivalent")) for result in results)
    return {
        "sample": len(results),
        **counts,
        "equivalent": equivalent,
        "score": round(counts["killed"] / max(1, len(results) - equivalent), 3),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    add = parser.add_argument
    add("--modules", required=True, metavar="A,B", help="dotted names of modules or packages")
    add("--seed", type=int, default=0)
    add("--sample", type=int, default=200, metavar="K", help="number of mutants to draw (%(default)s)")
    add("--seconds", type=float, default=180.0, metavar="S", help="seconds of tests to run for a mutant (%(default)g)")
    add("--reach", type=Path, metavar="FILE", help="which tests reach which function (JSON), written if it is missing")
    add("--jobs", type=int, default=2, metavar="N", help="number of mutants to try at once (%(default)s)")
    add("--root", type=Path, default=Path(__file__).parents[2], metavar="DIR", help="source tree (%(default)s)")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="JSON")
    options = parser.parse_args(arguments)
    mutants = draw(options.root, options.modules.split(","), options.seed, options.sample)
    results = {}
    if options.output.exists():
        before = json.loads(options.output.read_text(encoding="utf-8"))["mutants"]
        results = {each["key"]: each for each in before}
    done = {key for key, each in results.items() if each["verdict"] == "killed" or each.get("equivalent")}
    waiting = [mutant for mutant in mutants if mutant.key not in done]
    unsound = set[str]()
    with tempfile.TemporaryDirectory() as folder:
        reach = read_reach(options.reach, options.root, Path(folder))
        copies = [
            TreeCopy(
                Path(shutil.copytree(options.root, f"{folder}/{number}", ignore=NOT_COPIED)),
                5 * options.seconds,  # two mutants at once, and a mutant may make tests slow
                unsound=unsound,
            )
            for number in range(options.jobs)
        ]
        for result in verdicts(copies, waiting, reach, options.seconds):
            results[result["key"]] = result
            ordered = [results[mutant.key] for mutant in mutants if mutant.key in results]
            left_out = {"left out": sorted(unsound)} if unsound else {}
            drawn = {"modules": options.modules.split(","), "seed": options.seed}
            summary = drawn | score(ordered) | left_out | {"mutants": ordered}
            # after each mutant, because the results of a stopped run are a sample too
            options.output.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            sys.stderr.write(f"{len(ordered)}/{len(mutants)} {result['key']}: {result['verdict']}\n")
    sys.stdout.write(json.dumps(score([results[mutant.key] for mutant in mutants])) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
