"""The size and the shape of the source, measured: what docs/architecture.md promises, and what it is.

    python -m tests.docs.structure             print the figures beside their goals
    python -m tests.docs.structure --write     make them those that tests/docs/test_figures.py allows

Lines are those of the files, with comments and blank ones. A circle is a set of modules that import each other, at the
top of a module or within a function; imports for type checking alone do not count.
"""

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docs.generate import READING_PATH, TORTOISE_PATH, module_file

ROOT = Path(__file__).parents[2]
FIGURES = Path(__file__).with_name("figures.json")
SOURCES = ("ane", "converters", "training", "benchmarks")
# lines of Python at most
LINE_BUDGETS = {("ane", "converters"): 36_500, ("training",): 2_000, ("benchmarks",): 2_000, ("tests",): 30_000}
FILE_BUDGET = 330           # of SOURCES
LONGEST_FILE = 400
PATH_LINES, PATH_FILES = 4_000, 22
CONTRACT = "ane.backends"       # the folder whose protocols are what models ask of engines
CONTRACT_PROTOCOLS = 5


@dataclass(frozen=True)
class Structure:
    """Figures of the source tree.

    ``lines`` is by groups of folders; ``family_members`` counts what a model family declares.
    """

    lines: dict[tuple[str, ...], int]
    files: int
    longest: tuple[str, int]
    classes: int
    protocols: int
    contract_protocols: list[str]
    circles: list[list[str]]
    family_members: int
    path_lines: int
    path_files: int
    tortoise_lines: int
    tortoise_files: int


def sources(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def line_count(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def imports(file: Path, top_level_only: bool) -> set[str]:
    """Modules of this project that a file imports when it is loaded, or anywhere in it; not for type checking alone."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                names = [f"{child.module}.{alias.name}" for alias in child.names]
                found.update(name if is_module(name) else child.module for name in names)
            elif not (top_level_only and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
                visit(child)

    visit(tree_of(file))
    return {name for name in found if name.split(".")[0] in ("ane", "converters")}


def is_module(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def circles() -> list[list[str]]:
    """Sets of modules that import each other (Tarjan's strongly connected components)."""
    graph = {module_name(file): imports(file, top_level_only=False) for file in sources("ane", "converters")}
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
            members = stack[stack.index(module):]
            del stack[stack.index(module):]
            if len(members) > 1:
                found.append(sorted(members))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def classes(*folders: str) -> Iterator[tuple[Path, ast.ClassDef]]:
    for file in sources(*folders):
        yield from ((file, node) for node in ast.walk(tree_of(file)) if isinstance(node, ast.ClassDef))


def is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).partition("[")[0] in ("Protocol", "typing.Protocol") for base in node.bases)


def contract_protocols() -> list[str]:
    """The protocols that files directly in the folder of the engine contract declare."""
    return sorted(node.name for file, node in classes(CONTRACT.replace(".", "/"))
                  if file.parent == ROOT / CONTRACT.replace(".", "/") and is_protocol(node))


def family_members() -> int:
    """What a model family declares: the fields, methods and properties of its interface."""
    from ane.bundles import family

    kind = getattr(family, "ModelFamily", None) or family.Family
    public = {name for name in vars(kind) if not name.startswith("_")} | set(getattr(kind, "__annotations__", {}))
    return len(public)


def measure() -> Structure:
    """All figures of the tree as it stands."""
    by_folder: dict[tuple[str, ...], int] = defaultdict(int)
    for folders in LINE_BUDGETS:
        by_folder[folders] = sum(line_count(file) for file in sources(*folders))
    files = sources(*SOURCES)
    longest = max(files, key=line_count)
    path, tortoise = ([module_file(module) for modules in each.values() for module in modules]
                      for each in (READING_PATH, TORTOISE_PATH))
    return Structure(dict(by_folder), len(files), (longest.relative_to(ROOT).as_posix(), line_count(longest)),
                     sum(1 for _ in classes(*SOURCES)), sum(is_protocol(node) for _, node in classes(*SOURCES)),
                     contract_protocols(), circles(), family_members(), sum(map(line_count, path)), len(path),
                     sum(map(line_count, tortoise)), len(tortoise))


def report(found: Structure) -> str:
    """The figures as lines of text, each beside its budget where there is one."""
    lines = [f"lines of {' + '.join(folders)}: {count:,} (at most {LINE_BUDGETS[folders]:,})"
             for folders, count in found.lines.items()]
    lines += [f"  {folder.relative_to(ROOT).as_posix()}: {sum(map(line_count, folder.rglob('*.py'))):,}"
              for top in ("ane", "converters") for folder in sorted((ROOT / top).iterdir())
              if folder.is_dir() and any(folder.rglob("*.py"))]
    lines += [f"files of {', '.join(SOURCES)}: {found.files} (at most {FILE_BUDGET})",
              f"longest file: {found.longest[0]}, {found.longest[1]} lines (at most {LONGEST_FILE})",
              f"classes: {found.classes}",
              f"protocols: {found.protocols}; of the engine contract: {', '.join(found.contract_protocols)} "
              f"(at most {CONTRACT_PROTOCOLS})",
              f"circles of imports: {len(found.circles)} (at most 0)",
              *(f"  {', '.join(circle)}" for circle in found.circles),
              f"members of a model family's interface: {found.family_members}",
              f"reading path: {found.path_lines:,} lines in {found.path_files} files "
              f"(at most {PATH_LINES:,} in {PATH_FILES})",
              f"  of Tortoise besides: {found.tortoise_lines:,} lines in {found.tortoise_files} files"]
    return "\n".join(lines)


def figures(found: Structure) -> dict[str, int]:
    """What must not grow without a decision, by name; lines by folder are rounded up to the next fifty."""
    folders = [folder for top in ("ane", "converters") for folder in sorted((ROOT / top).iterdir()) if folder.is_dir()]
    counts = {folder.relative_to(ROOT).as_posix(): sum(map(line_count, folder.rglob("*.py"))) for folder in folders}
    counts |= {folder: found.lines[folder,] for folder in ("training", "benchmarks", "tests")}
    return {**{f"lines of {folder}": -(-count // 50) * 50 for folder, count in counts.items() if count},
            "files": found.files, "lines of the longest file": found.longest[1], "protocols": found.protocols,
            "protocols of the engine contract": len(found.contract_protocols), "circles of imports": len(found.circles),
            "members of a model family": found.family_members, "lines of the reading path": found.path_lines,
            "files of the reading path": found.path_files,
            "lines of Tortoise's reading path": found.tortoise_lines}


if __name__ == "__main__":
    print(report(measure()))
    if "--write" in sys.argv:
        FIGURES.write_text(json.dumps(figures(measure()), indent=1) + "\n", encoding="utf-8")
