"""Test the promises of docs/architecture.md: imports run downward, names are unique, and files are short."""

from collections import Counter, defaultdict

from docs.generate import logical_lines
from tools.source.measures import hops
from tools.source.structure import LONGEST_FILE, ROOT, SOURCES, circles, classes, imports, module_name, sources

# A folder may import from itself and from the folders above it in this list. One row is one layer.
LAYERS = [
    ["ane.system"],
    ["ane.bundles", "ane.audio", "ane.text"],
    ["ane.voices", "ane.backends"],
    ["ane.speech"],
    ["ane.models"],
    ["ane"],
    ["ane.bench", "ane.books"],
    ["ane.server"],
    ["ane.cluster"],
    ["ane.commands", "ane.cli", "ane.__main__"],
]
RANK = {folder: rank for rank, layer in enumerate(LAYERS) for folder in layer}


def folder_of(module: str) -> str:
    """The key of RANK that a module lies in."""
    parts = module.split(".")
    return next((key for count in (2, 1) if (key := ".".join(parts[:count])) in RANK), module)


def test_imports_run_downward() -> None:
    upward = []
    for file in sources("ane"):
        module = module_name(file)
        for imported in imports(file):
            if imported.startswith("converters"):
                if folder_of(module) != "ane.commands":
                    upward.append(f"{module} imports {imported}")
            elif RANK[folder_of(imported)] > RANK[folder_of(module)]:
                upward.append(f"{module} imports {imported}")
    assert not upward, "\n".join(upward)


def test_no_modules_import_each_other_in_a_circle_not_even_for_types() -> None:
    assert not circles(), "move what both need into one of them, or pass it as an argument"


def test_a_stage_reaches_its_package_in_five_calls() -> None:
    found = hops()
    assert len(found) > 15
    assert max(found.values()) <= 5, found


def test_no_model_names_a_backend_or_another_model() -> None:
    """The modules of `ane.backends` below name no engine, and two models share `styletts`."""
    wrong = []
    for file in sources("ane/models"):
        module = module_name(file)
        parts = module.split(".")
        for imported in imports(file):
            away = imported.split(".")
            sibling = (
                away[:2] == ["ane", "models"]
                and len(away) > 3
                and len(parts) > 3
                and away[2] not in (parts[2], "vocoders", "styletts")
            )
            engine = (
                away[:2] == ["ane", "backends"]
                and away[2:3]
                and away[2] not in ("base", "rows", "windows", "decoding", "denoising", "fixed_shapes", "choosing")
            )
            if sibling or engine:
                wrong.append(f"{module} imports {imported}")
        if "row_limit" in file.read_text(encoding="utf-8"):
            wrong.append(f"{module} asks how long a call may be, which is for rows and windows to know")
    assert not wrong, "\n".join(wrong)


def test_no_two_folders_import_each_other() -> None:
    arrows: dict[str, set[str]] = defaultdict(set)
    for file in sources("ane", "converters"):
        module = module_name(file)
        home = folder_of(module) if module.startswith("ane") else "converters"
        for imported in imports(file):
            away = folder_of(imported) if imported.startswith("ane") else "converters"
            if RANK.get(away) != RANK.get(home):
                arrows[home].add(away)
    both = {(home, away) for home, aways in arrows.items() for away in aways if home in arrows.get(away, set())}
    assert not both


def test_no_class_name_occurs_twice() -> None:
    names = Counter(node.name for _, node in classes(*SOURCES, "tests", "tools", "docs"))
    assert not [name for name, count in names.items() if count > 1]


def test_no_file_is_long() -> None:
    assert not {
        file.relative_to(ROOT).as_posix(): lines
        for file in sources(*SOURCES)
        if (lines := logical_lines(file)) > LONGEST_FILE
    }
