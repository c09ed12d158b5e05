"""Measure the size and the structure of the source, and compare both with the goals of docs/architecture.md.

    python -m tools.source.structure             print the figures next to their goals
    python -m tools.source.structure --write     make the figures the limits of tests/docs/test_figures.py

Lines are logical lines: comments and blank lines do not count, and a formatter cannot change their number. A circle is
a set of modules that import each other, anywhere: at the top of a module, within a function, or only for type checking.
"""

import ast
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docs.generate import READING_PATH, TORTOISE_PATH, logical_lines, module_file

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "tests" / "docs" / "figures.json"
SOURCES = ("ane", "converters", "training", "benchmarks")
LONGEST_FILE = 280
# figure → its goal, which is a maximum
GOALS = {
    "lines of ane and converters": 31_000,
    "lines of training": 1_750,
    "lines of benchmarks": 1_550,
    "lines of tests": 21_500,
    "files": 330,
    "lines of the longest file": LONGEST_FILE,
    "protocols of the engine contract": 5,
    "circles of imports": 0,
    "lines of the reading path": 2_600,
    "files of the reading path": 22,
}


def sources(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Return every node of a file. Several rules search all of them."""
    return tuple(ast.walk(tree_of(file)))


@cache
def imports(file: Path, types: bool = False) -> set[str]:
    """Modules of this project that a file imports anywhere in it, also for type checking alone if ``types``."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if not types and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                names = [f"{child.module}.{alias.name}" for alias in child.names]
                found.update(name if is_module(name) else child.module for name in names)
            else:
                visit(child)

    visit(tree_of(file))
    return {name for name in found if name.split(".")[0] in ("ane", "converters")}


def is_module(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def circles() -> list[list[str]]:
    """Sets of modules that import each other, also for types alone (Tarjan's strongly connected components)."""
    graph = {module_name(file): imports(file, types=True) for file in sources("ane", "converters")}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for imported in graph[module] & graph.keys() - {module}:
            if imported not in index:
                visit(imported)
                low[module] = min(low[module], low[imported])
            elif imported in stack:
                low[module] = min(low[module], index[imported])
        if low[module] == index[module]:
            members = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(members) > 1:
                found.append(sorted(members))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def classes(*folders: str) -> Iterator[tuple[Path, ast.ClassDef]]:
    for file in sources(*folders):
        yield from ((file, node) for node in nodes_of(file) if isinstance(node, ast.ClassDef))


def is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).partition("[")[0] in ("Protocol", "typing.Protocol") for base in node.bases)


def contract_protocols() -> list[str]:
    """The protocols that files directly in the folder of the engine contract declare."""
    return sorted(
        node.name
        for file, node in classes("ane/backends")
        if file.parent == ROOT / "ane" / "backends" and is_protocol(node)
    )


def family_members() -> int:
    """What a model family declares: the fields, methods and properties of its interface."""
    from ane.bundles import family

    kind = getattr(family, "ModelFamily", None) or family.Family
    public = {name for name in vars(kind) if not name.startswith("_")} | set(getattr(kind, "__annotations__", {}))
    return len(public)


def lines(*folders: str) -> int:
    return logical_lines(*sources(*folders))


def figures() -> dict[str, int]:
    """What must not grow without a decision, by name; lines by folder are rounded up to the next fifty."""
    folders = [
        folder.relative_to(ROOT).as_posix()
        for top in ("ane", "converters")
        for folder in sorted((ROOT / top).iterdir())
        if folder.is_dir()
    ]
    counts = {folder: lines(folder) for folder in (*folders, "training", "benchmarks", "tests", "tools")}
    path, tortoise = (
        [module_file(module) for modules in each.values() for module in modules]
        for each in (READING_PATH, TORTOISE_PATH)
    )
    return {
        **{f"lines of {folder}": -(-count // 50) * 50 for folder, count in counts.items() if count},
        "files": len(sources(*SOURCES)),
        "lines of the longest file": max(map(logical_lines, sources(*SOURCES))),
        "protocols": sum(is_protocol(node) for _, node in classes(*SOURCES)),
        "protocols of the engine contract": len(contract_protocols()),
        "circles of imports": len(circles()),
        "members of a model family": family_members(),
        "lines of the reading path": logical_lines(*path),
        "files of the reading path": len(path),
        "lines of Tortoise's reading path": logical_lines(*tortoise),
    }


def report(found: dict[str, int]) -> str:
    """The figures as lines of text, each beside its goal where there is one."""
    found = {"lines of ane and converters": lines("ane", "converters"), **found}
    stated = [
        f"{name}: {count:,}" + (f" (at most {GOALS[name]:,})" if name in GOALS else "") for name, count in found.items()
    ]
    longest = max(sources(*SOURCES), key=logical_lines).relative_to(ROOT).as_posix()
    return "\n".join([*stated, f"the longest file: {longest}", *(f"circle: {', '.join(one)}" for one in circles())])


if __name__ == "__main__":
    print(report(figures()))
    if "--write" in sys.argv:
        FIGURES.write_text(json.dumps(figures(), indent=1) + "\n", encoding="utf-8")
