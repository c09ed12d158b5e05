"""Find which tests reach which functions: run all tests once, in a copy of the tree whose functions report their calls.

Each function begins with a call of ``note``, which appends the running test and the function's name to a file. pytest
puts the test's name into the environment, so calls in most forks and child processes count too. Some calls are missed,
or count for one test only: those of a fixture or a server that several tests share, those whose result a cache returns,
and those of ``ane.system.child_process``, whose programs get no such variable. coverage.py would follow every line, and
only in processes that start it.
"""

import ast
import os
import re
import subprocess
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# a child process of ``ane.system.child_process`` runs functions before it can import ``ane``
PROBE = "getattr(__import__('sys').modules.get('ane._reached'), 'note', len)({name!r})"
REPORTER = '''"""Report calls."""
import os
seen = set()
def note(name):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and (test, name) not in seen:
        seen.add((test, name))
        with open(f"{folder!s}/{{os.getpid()}}.tsv", "a", encoding="utf-8") as file:
            file.write(f"{{name}}\\t{{test}}\\n")
'''
FILE_SECONDS = 5.0  # usual duration of a file of tests
DURATION = re.compile(r"^(\d+\.\d+)s (?:setup|call) +(\S.*)$", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: str) -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module, nested ones too, with their names: ``Class.method``."""

    def below(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield ".".join((*names, child.name)), child
            named = isinstance(child, Function | ast.ClassDef)
            yield from below(child, (*names, child.name) if named else names)

    yield from below(ast.parse(source), ())


def instrumented(module: str, source: str) -> str:
    """Return the source with a probe at the start of each function."""
    lines = source.encode().splitlines(keepends=True)  # columns of ``ast`` count bytes of UTF-8
    starts = []
    for name, function in functions(source):
        body = [each for each in function.body if not is_constant(each)]
        if body:  # else the function does nothing
            starts.append((lines_of(body[0])[0], body[0].col_offset, f"{module}:{name}"))
    for line, column, name in sorted(starts, reverse=True):
        text = lines[line - 1]
        between = b"; " if text[:column].strip() else b"\n" + text[:column]
        lines[line - 1] = text[:column] + PROBE.format(name=name).encode() + between + text[column:]
    return b"".join(lines).decode()


def module_of(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def is_constant(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring or ``...``."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def measure(root: Path, command: Sequence[str], folder: Path) -> dict[str, dict[str, float]]:
    """Run all tests of a tree, which this function changes. Return the tests of each function, with their seconds.

    Args:
        root: A copy of the tree. The probes stay in it.
        command: The command that runs all tests with pytest.
        folder: An empty folder for the reports of the processes.
    """
    for path in sorted((root / "ane").rglob("*.py")):
        path.write_text(instrumented(module_of(path, root), path.read_text(encoding="utf-8")), encoding="utf-8")
    (root / "ane" / "_reached.py").write_text(REPORTER.format(folder=folder), encoding="utf-8")
    with (root / "ane" / "__init__.py").open("a", encoding="utf-8") as package:
        package.write("\nfrom ane import _reached as _reached\n")
    done = subprocess.run(
        [*command, "--durations=0"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        text=True,
        stdout=subprocess.PIPE,
    )
    if done.returncode not in (0, 1):  # 1: tests failed, as some do in a copy
        raise RuntimeError(done.stdout[-2000:])
    seconds = dict[str, float]()
    for duration, test in DURATION.findall(done.stdout):
        seconds[test] = seconds.get(test, 0.0) + float(duration)
    reached = dict[str, dict[str, float]]()
    for report in folder.glob("*.tsv"):
        for line in report.read_text(encoding="utf-8").splitlines():
            name, _, test = line.partition("\t")
            reached.setdefault(name, {})[test] = round(seconds.get(test, 0.0), 2)
    return reached


@dataclass(frozen=True)
class Reach:
    """Which tests reach a line.

    Attributes:
        reached: The tests of each function, with their seconds, as ``measure`` returns them.
        sources: The text of each module.
        test_files: The text of each test file.
    """

    reached: Mapping[str, Mapping[str, float]]
    sources: Mapping[str, str]
    test_files: Mapping[str, str]

    def tests(self, module: str, line: int) -> dict[str, float]:
        """Return the tests that reach a line of a module, with their seconds.

        A line outside functions belongs to a constant or a class. Its tests are the test files that name it, and the
        tests of every function that names it, directly or through another constant or class. If no test was seen to
        reach a line, the tests of all functions of its module count.
        """
        inside = [
            (first, name) for name, first, last, _ in function_texts(self.sources[module]) if first <= line <= last
        ]
        of_module = dict(
            ChainMap(*(dict(tests) for name, tests in self.reached.items() if name.startswith(f"{module}:")))
        )
        if inside:
            return dict(self.reached.get(f"{module}:{max(inside)[1]}", {})) or of_module
        new = {
            name
            for names, first, last, _ in statement_texts(self.sources[module])
            if first <= line <= last
            for name in names
        }
        found = {file: FILE_SECONDS for file, text in self.test_files.items() if names_one(new, text)}
        wanted = set(new)
        while new:
            for other, source in self.sources.items():
                for name, _, _, text in function_texts(source):
                    if names_one(new, text) or (other == module and name.partition(".")[0] in wanted):
                        found |= self.reached.get(f"{other}:{name}", {})
            statements = (each for source in self.sources.values() for each in statement_texts(source))
            new = {name for names, _, _, text in statements if names_one(new, text) for name in names} - wanted
            wanted |= new
        return found or of_module


def names_one(names: set[str], text: str) -> bool:
    """Return whether a text has one of some names as a word."""
    return bool(names) and pattern_of(frozenset(names)).search(text) is not None


@cache
def pattern_of(names: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")


@cache
def function_texts(source: str) -> list[tuple[str, int, int, str]]:
    """Return the functions of a module: their names, first and last lines with decorators, and texts."""
    return [(name, *lines_of(function), text_of(source, function)) for name, function in functions(source)]


@cache
def statement_texts(source: str) -> list[tuple[list[str], int, int, str]]:
    """Return the names that each top-level statement of a module defines, its first and last line, and its text."""
    found = []
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef():
                names = [node.name]
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            case _:
                continue
        found.append((names, *lines_of(node), text_of(source, node)))
    return found


def lines_of(node: Function | ast.stmt) -> tuple[int, int]:
    """Return the first and the last line of a statement, with its decorators."""
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    return first, node.end_lineno or node.lineno


def text_of(source: str, node: Function | ast.stmt) -> str:
    first, last = lines_of(node)
    return "\n".join(source.split("\n")[first - 1 : last])
