"""Count constructions that readers had to read twice, in pages, docstrings, messages and comments.

    python -m tools.source.prose             print the counts
    python -m tools.source.prose RULE        print the places of one rule, such as "what as a noun"
    python -m tools.source.prose --write     make the counts the limits of tests/docs/test_prose.py

A hit shows a place to look at, and is not always a fault.
"""

import ast
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.source.structure import ROOT, nodes_of, sources

COUNTS = ROOT / "tests" / "docs" / "prose.json"
PAGE, DOCSTRING, MESSAGE, COMMENT = "page", "docstring", "message", "comment"
EVERYWHERE = (PAGE, DOCSTRING, MESSAGE, COMMENT)
HOUSE_VERBS = "state|states|stated|stating|lets|goes on|gives|lies|stands|hears"
AFTER_A_HOUSE_VERB = "the|a|an|it|its|no|of|that|what|each|how|where|when|which|by|in|on|from|beside|with|CODE"
ARGUMENT = r"^ *[*\w, ]{1,40}: (?:of|as|by|in|with|for|from|at|on|to|if|where) [a-z`(]"
START = r"(?:^|(?<=[.:;] ))"
FIT_AFTER_NO = r"longer|more|need|effect|matter|such|one|way|point|reason|[a-z]+er\b"
NUMBER = r"(?<![\w.-])[−-]?\d[\d.,]*"
# name of the rule: advice, pattern, and the kinds of text to which it applies
RULES = {
    "what as a noun": (
        "name the thing: the text, the files, the job",
        rf"{START}What(?:ever)? (?!is\b[^.]*\?|it |to )|\b(?:of|from|to|for|with|in|by|than|as|on|and|or|but) what\b",
        EVERYWHERE,
    ),
    "topic before the subject": (
        "begin with the subject, or with an If or When clause",
        rf"{START}(?:Of (?!course)|Beside |By (?!default|convention)|With(?:out)? (?:it|them|one|that|those)\b)",
        (PAGE, DOCSTRING, COMMENT),
    ),
    "semicolon": ("write two sentences", ";", (PAGE, DOCSTRING, MESSAGE)),
    "argument without a noun": ("start with a noun or Whether", f"(?m){ARGUMENT}", (DOCSTRING,)),
    "None: as a sentence": (
        "write `None` means …",
        r"\b(?:None|True|False|\"\"|\(\)): ",
        (DOCSTRING, MESSAGE, COMMENT),
    ),
    "is no": ("write is not a …", rf"(?<!there )\b(?:is|are|was|be|were) no (?!{FIT_AFTER_NO})[a-z]+", EVERYWHERE),
    "house verb": (
        "say, list, return, produce, run, is",
        rf"\b(?:{HOUSE_VERBS}) (?!up\b|in for)(?:{AFTER_A_HOUSE_VERB})\b",
        EVERYWHERE,
    ),
    "more than three numbers": ("make a table", rf"(?:{NUMBER}[^.!?]*?){{4}}", (PAGE, MESSAGE)),
    "function without a verb": ("start the docstring with Return, Split, Load, …", "", ()),
}
STARTS = """the a an one some all each every any no what which how whether where why when who whose of in as for with
without two those that these this their its it names lines text samples numbers seconds at to from by on if"""
NO_VERBS = frozenset(STARTS.split())


class Hit(NamedTuple):
    rule: str
    place: str
    text: str


def without_code(text: str) -> str:
    """Replace inline code by the word CODE, and a link by its text."""
    return re.sub(r"``[^`]*``|`[^`]*`", "CODE", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text))


def paragraphs(page: str) -> Iterator[str]:
    """Yield the paragraphs, list items and long table cells of a Markdown page, without generated tables and code."""
    page = re.sub(r"(?sm)<!-- (table:|results|reading path|every file).*?<!-- end.*?-->|^ *```.*?^ *```", "\n\n", page)
    for block in re.split(r"\n\s*\n|\n(?=(?:[-*]|\d+\.) )|(?<=\|)\n(?=\|)", page):
        if block.startswith("|"):
            yield from (cell for cell in block.strip("|\n").split("|") if len(re.findall(r"[A-Za-z]{2,}", cell)) >= 6)
        elif not re.match(r"#|!\[|:::|<!--", block):
            yield " ".join(block.split())


def message(node: ast.expr) -> str:
    """Return the text of a string or an f-string, with CODE for each of its values; "" for another expression."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(message(part) if isinstance(part, ast.Constant) else "CODE" for part in node.values)
    return message(node.left) + message(node.right) if isinstance(node, ast.BinOp) else ""


def source_texts(file: Path) -> Iterator[tuple[str, int, str]]:
    """Yield the kind, the line and the text of each docstring, message and comment of a file."""
    for node in nodes_of(file):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            yield DOCSTRING, getattr(node, "lineno", 1), ast.get_docstring(node) or ""
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            spoken = [word.value for word in node.keywords if word.arg in ("help", "description", "epilog")]
            if name.endswith("Error") or name in ("warning", "info", "error", "debug"):
                spoken += node.args[:1]
            yield from ((MESSAGE, node.lineno, message(one)) for one in spoken)
    for token in tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT and not re.search("type: ignore|noqa|pragma|fmt: o", token.string):
            yield COMMENT, token.start[0], token.string.lstrip("# ")


def texts() -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the place and the text of everything that is written for a reader."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield from ((PAGE, page.name, text) for text in paragraphs(page.read_text(encoding="utf-8")))
    for file in sources("ane", "converters"):
        for kind, line, text in source_texts(file):
            yield kind, f"{file.relative_to(ROOT).as_posix()}:{line}", text


def functions_without_a_verb() -> Iterator[Hit]:
    for file in sources("ane", "converters"):
        for node in nodes_of(file):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if text := ast.get_docstring(node):
                first = text.split()[0].strip("`\"'(.,:").lower()
                is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
                if not is_property and (first in NO_VERBS or not first[:1].isalpha()):
                    place = f"{file.relative_to(ROOT).as_posix()}:{node.lineno}"
                    yield Hit("function without a verb", place, text[:90])


def hits() -> Iterator[Hit]:
    """Yield every place where a rule is broken."""
    for kind, place, text in texts():
        one_line = " ".join(without_code(text).split())
        for rule, (_, pattern, kinds) in RULES.items():
            if kind in kinds:
                searched = text if rule in ("argument without a noun", "None: as a sentence") else one_line
                yield from (
                    Hit(rule, place, searched[max(0, match.start() - 40) : match.end() + 50])
                    for match in re.finditer(pattern, searched)
                )
    yield from functions_without_a_verb()


def counts() -> dict[str, int]:
    """Count the hits of each rule."""
    counted: dict[str, int] = defaultdict(int, dict.fromkeys(RULES, 0))
    for hit in hits():
        counted[hit.rule] += 1
    return dict(counted)


if __name__ == "__main__":
    rule = " ".join(sys.argv[1:])
    if rule in RULES:
        print(*(f"{hit.place}: {hit.text}" for hit in hits() if hit.rule == rule), sep="\n")
    else:
        print(*(f"{count:5} {name}: {RULES[name][0]}" for name, count in counts().items()), sep="\n")
    if rule == "--write":
        COUNTS.write_text(json.dumps(counts(), indent=1) + "\n", encoding="utf-8")
