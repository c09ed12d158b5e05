"""Which lines each test executes, and so which tests can notice a mutant.

What the processes that a test starts execute is not seen: a mutant that survives is tried on those tests too.
"""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

from tests.mutation.mutants import Mutant

SETUP = "a fixture"         # a context of coverage
STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn")      # audit events


class LineRecorder:
    """A pytest plugin that writes JSON: each test that passes with its seconds and its lines of the package.

    Whatever a fixture executes or starts belongs to all tests of the file: they may share it.
    """

    def __init__(self, root: Path, output: Path) -> None:
        self.root, self.output = root, output
        self.coverage = Coverage(data_file=None, config_file=False, source=[str(root / "ane")], messages=False)
        self.tests: dict[str, dict[str, Any]] = {}
        self.current: dict[str, Any] = {}
        self.shared_process = False
        sys.addaudithook(self._audit)
        self.coverage.start()

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            self.current["starts"] = True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(SETUP)
        self.current = self.tests.setdefault(nodeid, {"outcomes": [], "setup": 0.0, "seconds": 0.0, "starts": False})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.current["outcomes"].append(report.outcome)
        self.current["setup" if report.when == "setup" else "seconds"] += report.duration
        if report.when == "setup":
            self.shared_process |= self.current["starts"]
            self.coverage.switch_context(report.nodeid)

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        passed = {name: test for name, test in self.tests.items() if set(test.pop("outcomes")) == {"passed"}}
        for name, test in passed.items():
            data.set_query_contexts([f"^{re.escape(name)}$", SETUP])
            test["starts"] |= self.shared_process
            test["lines"] = {Path(file).relative_to(self.root).as_posix(): lines
                             for file in data.measured_files() if (lines := data.lines(file))}
        self.output.write_text(json.dumps(passed), encoding="utf-8")


class ExecutedLines:
    """What the tests of a tree execute, kept in a file: tests are recorded again when their file changes."""

    def __init__(self, root: Path, path: Path, tests: list[str], most: float) -> None:
        """``tests``: files, and folders for all files below. ``most``: seconds of the tests of a mutant in its folder;
        the others have a quarter of it."""
        self.root, self.path, self.most = root, path, most
        files = [file for name in tests for file in sorted((root / name).rglob("test_*.py")) or [root / name]]
        self.files = {file.relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
                      for file in files}
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.records = {name: record for name, record in known.items() if record["hash"] == self.files.get(name)}

    @property
    def missing(self) -> list[str]:
        return [name for name in self.files if name not in self.records]

    def add(self, name: str, tests: dict[str, Any]) -> None:
        self.records[name] = {"hash": self.files[name], "tests": tests,
                              "setup": max((test["setup"] for test in tests.values()), default=0.0)}
        self.path.write_text(json.dumps(self.records), encoding="utf-8")

    def tests_of(self, mutant: Mutant) -> Iterator[list[str]]:
        """Tests that execute the changed statement (or import it), in its folder and elsewhere, and those that start
        processes."""
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
        near = self._quickest(near, self.most)
        yield from (near[:10], near[10:], self._quickest(far, self.most / 4))
        yield self._quickest(others, self.most / 4 if near else self.most, folder)

    def certain(self, name: str) -> bool:
        """Whether a test depends on no clock and no other process, as far as one can see."""
        return self.seconds([name]) < 1 and not self.records[name.partition("::")[0]]["tests"][name]["starts"]

    def _quickest(self, names: list[str], seconds: float, folder: str = "") -> list[str]:
        """Those of a folder first, as many as fit into these seconds, but one at least."""
        names = sorted(names, key=lambda name: (not name.startswith(folder), self.seconds([name])))
        count = 1
        while count < len(names) and self.seconds(names[:count + 1]) <= seconds:
            count += 1
        return names[:count]

    def seconds(self, names: Iterable[str]) -> float:
        """Of some tests alone, each file's slowest setup (it may be shared) once."""
        names = list(names)
        files = {name.partition("::")[0] for name in names}
        return (sum(self.records[name.partition("::")[0]]["tests"][name]["seconds"] for name in names)
                + sum(self.records[file]["setup"] for file in files))


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
