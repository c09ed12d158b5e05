"""Count the forms in which a chunk of text passes through the program, so that a redesign can be compared.

    python -m tools.source.measures             print every measure
    python -m tools.source.measures --made      also print the forms that one chunk of the default voice takes

A *form* is a value of its own shape that carries a chunk between the request and its sound: an object, a tuple, a
string or an array. An object within another one counts, and so does a changed copy. `FORMS` names every form and the
place that makes it. A test checks that every place exists.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np

from ane.backends.packaged.backend import PackagedBackend
from ane.backends.packaged.functions import Runtime
from ane.bundles.family import families
from ane.bundles.package_records import FunctionRecord, PackageFolder, PackageRecord
from docs.generate import READING_PATH, logical_lines, module_file
from tools.source.structure import ROOT, circles, sources, tree_of

# form → the file and the definition that make it
FORMS: dict[str, list[tuple[str, str, str]]] = {
    "the default voice, ane say": [
        ("Namespace", "ane/commands/say.py", "say"),
        ("text, str", "ane/commands/say_text.py", "read_text"),
        ("SpeechRequest", "ane/commands/say.py", "say"),
        ("Passage", "ane/text/passages.py", "read_pauses"),
        ("TextPiece, a str", "ane/text/splitter.py", "words"),
        ("PhonemeWord", "ane/text/phonemes/__init__.py", "phonemise"),
        ("PhonemeChunk", "ane/models/phoneme_chunks.py", "split_into_phonemes"),
        ("RenderedChunk", "ane/models/hibari/synthesizer.py", "HibariSynthesizer.render"),
        ("sound, array", "ane/models/hibari/synthesizer.py", "HibariSynthesizer.sound"),
    ],
    "Tortoise, ane say": [
        ("Namespace", "ane/commands/say.py", "say"),
        ("text, str", "ane/commands/say_text.py", "read_text"),
        ("SpeechRequest", "ane/commands/say.py", "say"),
        ("SpeechRequest with its seed", "ane/models/tortoise/synthesizer.py", "TortoiseSpeaker.with_defaults"),
        ("Passage", "ane/text/passages.py", "read_pauses"),
        ("TextPiece, a str", "ane/text/splitter.py", "words"),
        ("TokenChunk", "ane/models/tortoise/chunks.py", "split_into_chunks"),
        ("Prompt", "ane/models/tortoise/pipeline.py", "Rendering._prompt"),
        ("Decoding", "ane/speech/lanes.py", "Lanes.submit"),
        ("SampledCandidate", "ane/models/tortoise/decoding.py", "Prompt.begin"),
        ("BusyLane", "ane/speech/lanes.py", "Lanes._start"),
        ("Candidate", "ane/models/tortoise/decoding.py", "SampledCandidate.finish"),
        ("RenderedChunk", "ane/models/tortoise/pipeline.py", "Rendering._group"),
        ("sound, array", "ane/models/tortoise/pipeline.py", "Rendering._streamed_sound"),
    ],
    "a book, up to its SpeechRequest and from its Speech": [
        ("TextBlock", "ane/text/blocks.py", "TextBlock"),
        ("Passage", "ane/text/passages.py", "read_pauses"),
        ("PlannedChunk", "ane/books/plan.py", "plan_book"),
        ("row, tuple", "ane/books/job_facts.py", "read_chunk"),
        ("StoredChunk, claimed", "ane/books/store.py", "JobStore._claim"),
        ("text without faulty commands, str", "ane/books/speakers.py", "BookSpeaker.speak"),
        ("SpokenChunk", "ane/books/speakers.py", "BookSpeaker.speak"),
        ("ChunkSignals", "ane/books/judging.py", "ChunkSignals.of"),
        ("SpokenChunk, to be checked", "ane/books/store.py", "JobStore.spoken"),
        ("StoredChunk", "ane/books/store.py", "JobStore.chunks"),
    ],
}
REQUEST_FIELDS = {"voice", "preset", "seed", "speed", "lexicon", "ssml", "word_times", "cast", "quote_voice"}
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<genexpr>")
EIGHT = defaultdict(lambda: 8, states=4)  # a bucket of 8 for every length. Whisper has a state for two frames
ENOUGH = 4  # a class, signature or table with so many of these fields counts as a declaration of the request


@cache
def definitions(file: Path) -> dict[str, ast.AST]:
    """The classes, functions and methods of a file by their dotted names."""
    found: dict[str, ast.AST] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + child.name] = child
                visit(child, f"{prefix}{child.name}.")

    visit(tree_of(file), "")
    return found


def missing_places() -> list[str]:
    """The places of `FORMS` that the code lacks."""
    return [
        f"{form}: {file}: {name}"
        for forms in FORMS.values()
        for form, file, name in forms
        if not (ROOT / file).exists() or name not in definitions(ROOT / file)
    ]


def request_declarations() -> list[str]:
    """Classes, signatures and tables of the program that name at least `ENOUGH` of the request's fields."""
    found = []
    for file in sources("ane"):
        for node in ast.walk(tree_of(file)):
            names = declared_names(node)
            if len(names & REQUEST_FIELDS) >= ENOUGH:
                found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    return found


def declared_names(node: ast.AST) -> set[str]:
    """The fields of a class, the parameters of a function, or the keys of a dict literal."""
    if isinstance(node, ast.ClassDef):
        return {
            child.target.id
            for child in node.body
            if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
        }
    if isinstance(node, ast.FunctionDef):
        return {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    if isinstance(node, ast.Dict):
        return {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
    return set()


def unions_with_lanes() -> list[str]:
    """Union types of which `Lanes` is a member and something other than None is too, and tests for it."""
    found: dict[tuple[Path, int, int], str] = {}  # start of a text → the longest text there
    for file in sources("ane"):
        for node in ast.walk(tree_of(file)):
            text = ast.unparse(node) if isinstance(node, ast.BinOp | ast.Call) else ""
            members = {part.strip() for part in text.split("|")}
            if ("Lanes" in members and members - {"Lanes", "None"}) or (
                text.startswith("isinstance(") and "Lanes" in text
            ):
                found.setdefault((file, node.lineno, node.col_offset), text)
    return [f"{file.relative_to(ROOT)}:{line} {text}" for (file, line, _), text in sorted(found.items())]


def models_on_disk() -> list[str]:
    """The classes that are, or stand for, a model on disk: `Model`, its heirs, and what forwards to one."""
    heirs = {"Model", "Bundle"}
    found: dict[str, str] = {}
    nodes = [
        (file, node)
        for file in sources("ane", "converters")
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.ClassDef)
    ]
    while True:
        new = {
            node.name: f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
            for file, node in nodes
            if node.name not in found and (node.name in heirs or heirs & {ast.unparse(base) for base in node.bases})
        }
        if not new:
            break
        found |= new
        heirs |= new.keys()
    forwarding = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file, node in nodes
        if node.name not in found
        and "Model" in node.name
        and any(isinstance(child, ast.FunctionDef) and child.name == "__getattr__" for child in node.body)
    ]
    return sorted([*found.values(), *forwarding])


def made_by_one_chunk() -> Counter[str]:
    """Objects of this program's classes, and changed copies, that speaking one chunk makes, by their class."""
    import ane

    speaker, made = ane.load(), Counter[str]()
    speaker.speak("Go home.")

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name in ("__init__", "init", "replace", "_replace"):
            values = frame.f_locals
            subject = values.get("self", values.get("obj"))
            if type(subject).__module__.startswith("ane."):
                copied = " copied" if frame.f_code.co_name in ("replace", "_replace") else ""
                if (
                    frame.f_code.co_name != "__init__"
                    or "__dataclass_fields__" not in vars(type(subject))
                    or (frame.f_code.co_filename.startswith("<string>"))
                ):
                    made[f"{type(subject).__name__}{copied}"] += 1

    sys.setprofile(note)
    try:
        speaker.speak("It was late, and then it slept.")
    finally:
        sys.setprofile(None)
    return made


class HopCount(Exception):  # noqa: N818 (no error: it carries a count up to the caller)
    """How many calls lie between the run of a stage and the prediction of a package."""


class CountingRuntime(Runtime):
    """Loads functions that predict nothing, but raise the count of calls from the backend's ``run`` to them."""

    name = "counting"

    def load(self, package: Path, function: str, compute_units: str) -> Any:
        return self

    def predict(self, inputs: Mapping[str, Any], state: Any = None) -> Any:
        frame, names = sys._getframe(), []
        while frame.f_code is not PackagedBackend.run.__code__:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        raise HopCount(sum(name not in COMPREHENSIONS for name in names))


def hops() -> dict[str, int]:
    """Calls from ``Backend.run`` to ``predict``, by stage, with inputs and a bucket of 8 in every dimension."""
    found = {}
    for family in families():
        for name, stage in family.stages.calls.items() if family.networks else ():
            package = PackageRecord(stage.network, "fp32", "p", [], {name: FunctionRecord(name, EIGHT)})
            model = SimpleNamespace(name=family.name, family=family, path=ROOT, networks=frozenset(family.networks))
            backend = PackagedBackend(model, CountingRuntime(), None, unpublished=PackageFolder(ROOT, [package]))
            backend.table = lambda network, key: np.ones(() if key == "temperature" else (8, 8), np.float32)
            inputs = {
                key: np.ones([length(size) for size in spec.shape], spec.dtype) for key, spec in stage.inputs.items()
            }
            try:
                backend.run(name, **inputs)
            except HopCount as count:
                found[f"{family.name}: {name}"] = count.args[0]
    return found


def length(dimension: int | str) -> int:
    """A size for a dimension: 8 for a name, 18 for "L+10"."""
    return dimension if isinstance(dimension, int) else 8 + int(dimension.partition("+")[2] or 0)


def report() -> Iterator[str]:
    for title, forms in FORMS.items():
        yield f"forms of a chunk, {title}: {len(forms)}"
        yield from (f"  {number:2} {form} ({file}: {name})" for number, (form, file, name) in enumerate(forms, 1))
    path = [module_file(module) for modules in READING_PATH.values() for module in modules]
    yield (
        f"reading path of `ane say`, the default voice: {len(path)} files, "
        f"{sum(len(file.read_text(encoding='utf-8').splitlines()) for file in path):,} lines, "
        f"{logical_lines(*path):,} logical (left out: OFF_THE_PATH of tests/docs/test_pages.py)"
    )
    for title, found in (
        ("declarations of the request's fields", request_declarations()),
        ("union types with lanes, and tests for them", unions_with_lanes()),
        ("models on disk", models_on_disk()),
        ("circles, imports for types included", [", ".join(circle) for circle in circles()]),
    ):
        yield f"{title}: {len(found)}"
        yield from (f"  {each}" for each in found)
    yield (
        f"calls from a backend's run to a package's predict: at most {max(hops().values())} "
        f"({', '.join(f'{stage} {count}' for stage, count in sorted(hops().items()))})"
    )
    for folders in (("ane", "converters"), ("tests",), ("training",), ("benchmarks",), ("tools",)):
        yield f"logical lines of {' and '.join(folders)}: {logical_lines(*sources(*folders)):,}"


if __name__ == "__main__":
    print("\n".join(report()))
    if "--made" in sys.argv:
        for kind, count in sorted(made_by_one_chunk().items()):
            print(f"  made: {count} {kind}")
