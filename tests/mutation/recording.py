"""Which lines each test executes, and so which tests can notice a mutant.

What the processes that a test starts execute is not seen: a mutant that survives the tests of its line is tried on
those that start processes.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

from tests.mutation.mutants import Mutant

MOST_SECONDS = 40.0         # of tests for each way that a mutant could be noticed; the quickest come first
STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn")      # audit events


class LineRecorder:
    """A pytest plugin that writes JSON: each test that passes with its seconds and its lines of the package."""

    def __init__(self, root: Path, output: Path) -> None:
        self.root, self.output = root, output
        self.coverage = Coverage(data_file=None, config_file=False, source=[str(root / "ane")], messages=False)
        self.tests: dict[str, dict[str, Any]] = {}
        self.current: dict[str, Any] = {}
        self.with_process: set[str] = set()     # files
        sys.addaudithook(self._audit)
        self.coverage.start()

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            self.current["starts"] = True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)
        self.current = self.tests.setdefault(nodeid, {"outcomes": [], "setup": 0.0, "seconds": 0.0, "starts": False})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.current["outcomes"].append(report.outcome)
        self.current["setup" if report.when == "setup" else "seconds"] += report.duration
        if report.when == "setup" and self.current["starts"]:       # a fixture's process may serve the whole file
            self.with_process.add(report.nodeid.partition("::")[0])

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        passed = {name: test for name, test in self.tests.items() if set(test.pop("outcomes")) == {"passed"}}
        for name, test in passed.items():
            data.set_query_context(name)
            test["starts"] |= name.partition("::")[0] in self.with_process
            test["lines"] = {Path(file).relative_to(self.root).as_posix(): lines
                             for file in data.measured_files() if (lines := data.lines(file))}
        self.output.write_text(json.dumps(passed), encoding="utf-8")


class ExecutedLines:
    """What the tests of a tree execute, kept in a file: tests are recorded again when their file changes."""

    def __init__(self, root: Path, path: Path, tests: list[str]) -> None:
        """``tests``: files, and folders for all files below."""
        self.root, self.path = root, path
        files = [file for name in tests for file in sorted((root / name).rglob("test_*.py")) or [root / name]]
        self.files = {file.relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
                      for file in files}
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.records = {name: record for name, record in known.items() if record["hash"] == self.files.get(name)}

    @property
    def missing(self) -> list[str]:
        return [name for name in self.files if name not in self.records]

    def add(self, name: str, tests: dict[str, Any]) -> None:
        self.records[name] = {"hash": self.files[name], "tests": tests}
        self.path.write_text(json.dumps(self.records), encoding="utf-8")

    def tests_of(self, mutant: Mutant) -> Iterator[list[str]]:
        """Tests that execute the changed statement (or import it), in its folder and elsewhere; others that start
        processes, which may execute it."""
        file, folder = mutant.module.replace(".", "/") + ".py", tests_folder(mutant.module)
        lines, in_function = statement_at(mutant.original, mutant.line)
        near, far, others = list[str](), list[str](), list[str]()
        for record in self.records.values():
            for name, test in record["tests"].items():
                executed = test["lines"].get(file, ())
                if set(executed).intersection(lines) if in_function else executed:
                    (near if name.startswith(folder) else far).append(name)
                elif test["starts"]:
                    others.append(name)
        near = self._quickest(near)
        yield from (near[:10], near[10:], self._quickest(far))
        yield self._quickest(others, folder)

    def certain(self, name: str) -> bool:
        """Whether a test depends on no clock and no other process, as far as one can see."""
        return self.seconds([name]) < 1 and not self.records[name.partition("::")[0]]["tests"][name]["starts"]

    def _quickest(self, names: list[str], folder: str = "") -> list[str]:
        """Those of a folder first, as many as fit into ``MOST_SECONDS``, but one at least."""
        names = sorted(names, key=lambda name: (not name.startswith(folder), self.seconds([name])))
        count = 1
        while count < len(names) and self.seconds(names[:count + 1]) <= MOST_SECONDS:
            count += 1
        return names[:count]

    def seconds(self, names: Iterable[str]) -> float:
        """Of some tests alone, each file's slowest setup (it may be shared) once."""
        names = list(names)
        files = {name.partition("::")[0] for name in names}
        return (sum(self.records[name.partition("::")[0]]["tests"][name]["seconds"] for name in names)
                + sum(max(test["setup"] for test in self.records[file]["tests"].values()) for file in files))


def tests_folder(module: str) -> str:
    """Of ``ane.a.b`` tests/a/, of ``other.a`` tests/other/."""
    return "/".join(["tests", *module.removeprefix("ane.").split(".")[:-1], ""])


def statement_at(source: str, line: int) -> tuple[range, bool]:
    """Lines of the innermost statement at a line, without its body; whether it is in a function."""
    lines, in_function, nodes = range(line, line + 1), False, [(ast.parse(source), False)]
    for node, inside in nodes:
        body = getattr(node, "body", None)
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            header = range(node.lineno, (body[0].lineno if body else node.end_lineno + 1))
            if line in header:
                lines, in_function = header, inside
            elif line in range(node.lineno, node.end_lineno + 1):
                in_function = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        below = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        nodes += [(child, below) for child in ast.iter_child_nodes(node)]
    return lines, in_function
