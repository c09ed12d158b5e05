"""What docs/architecture.md says of the tree is true: imports run downward, names are unique, files are short."""

import ast
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_LINES = 400
# Each folder may import from itself and from those above it in this list; one row is one layer.
LAYERS = [["ane.system"], ["ane.bundles", "ane.audio", "ane.text"], ["ane.voices", "ane.backends"], ["ane.models"],
          ["ane"], ["ane.bench", "ane.books"], ["ane.server"], ["ane.cluster"],
          ["ane.commands", "ane.cli", "ane.__main__"]]
RANK = {folder: rank for rank, layer in enumerate(LAYERS) for folder in layer}


def sources(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(file: Path, top_level_only: bool) -> set[str]:
    """Modules of this project that a file imports when it is loaded, or anywhere in it; not for type checking alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
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

    visit(tree)
    return {name for name in found if name.split(".")[0] in ("ane", "converters")}


def is_module(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def folder_of(module: str) -> str:
    """The key of RANK that a module lies in."""
    parts = module.split(".")
    return next((key for count in (2, 1) if (key := ".".join(parts[:count])) in RANK), module)


def test_imports_run_downward() -> None:
    upward = []
    for file in sources("ane"):
        module = module_name(file)
        for imported in imports(file, top_level_only=False):
            if imported.startswith("converters"):
                if folder_of(module) != "ane.commands":
                    upward.append(f"{module} imports {imported}")
            elif RANK[folder_of(imported)] > RANK[folder_of(module)]:
                upward.append(f"{module} imports {imported}")
    assert not upward, "\n".join(upward)


def test_no_two_folders_import_each_other() -> None:
    arrows: dict[str, set[str]] = defaultdict(set)
    for file in sources("ane", "converters"):
        module = module_name(file)
        home = folder_of(module) if module.startswith("ane") else "converters"
        for imported in imports(file, top_level_only=False):
            away = folder_of(imported) if imported.startswith("ane") else "converters"
            if RANK.get(away) != RANK.get(home):
                arrows[home].add(away)
    both = {(home, away) for home, aways in arrows.items() for away in aways if home in arrows.get(away, set())}
    assert not both


def test_no_class_name_occurs_twice() -> None:
    names = Counter(node.name for file in sources("ane", "converters", "training", "benchmarks", "tests", "docs")
                    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef))
    assert not [name for name, count in names.items() if count > 1]


def test_no_file_is_long() -> None:
    long = {file.relative_to(ROOT).as_posix(): lines for file in sources("ane", "converters", "training", "benchmarks")
            if (lines := len(file.read_text(encoding="utf-8").splitlines())) > MOST_LINES}
    assert not long
