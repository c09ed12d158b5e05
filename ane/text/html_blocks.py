"""Turn HTML and XHTML into blocks (headings, paragraphs, …), and leave out elements that are not read aloud."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ane.system.errors import UserError
from ane.text.blocks import (
    FIRST_WORDS,
    HEADING,
    ITEM,
    PARAGRAPH,
    QUOTATION,
    SCENE_BREAK,
    LeftOutPart,
    TextBlock,
    first_words,
    text_block,
)
from ane.text.lexicon import words
from ane.text.omissions import NOTE_MARK, NOTE_MARKS, TABLES, UNSPEAKABLE, Omission
from ane.text.tags import MarkupToken, tokenize

MAX_DEPTH = 500  # largest number of nested elements; real books have fewer than 30
HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
KINDS = {**dict.fromkeys(HEADINGS, HEADING), "li": ITEM, "dt": ITEM, "dd": ITEM, "blockquote": QUOTATION}
BOUNDARIES = frozenset(KINDS) | words(
    "p div section article aside header footer main body ol ul dl table tr caption figure figcaption address pre "
    "details summary fieldset hr nav menu"
)
VOID = words("area base br col embed hr img input link meta param source track wbr")
NEVER_SPOKEN = words(
    "script style head title svg math rt rp template noscript iframe object audio video canvas form "
    "select textarea button"
)
CELLS = frozenset(("td", "th"))
SPACES = re.compile(r"\s+")
POWER = re.compile(r"[-−]?\d{1,3}|n")
POWER_BASE = re.compile(r"[\d)]$|(?<![A-Za-z])[A-Za-z]{1,3}$")  # a number, a unit or a variable
SUPERSCRIPTS = str.maketrans("0123456789-−n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻ⁿ")


@dataclass(frozen=True)
class AnchorMark:
    """Marks the position of an element whose id is in ``BlockReader.anchors``."""

    id: str


@dataclass(frozen=True)
class OpenElement:
    """An element that has not ended yet. ``text_at`` counts the pieces of text in the current block before it."""

    name: str
    skipped: bool
    named: bool  # whether the part that is left out begins with this element
    language: str
    kind: str
    level: int
    text_at: int
    note_link: bool


@dataclass
class BlockReader:
    """Reads markup and collects its blocks.

    Attributes:
        rules: Rules for elements that are left out, by name.
        anchors: Ids of elements. ``read`` returns the positions of these elements among the blocks.
    """

    rules: Mapping[str, Omission]
    anchors: Collection[str] = ()
    language: str = ""
    items: list[TextBlock | AnchorMark] = field(default_factory=list)
    omitted: Counter[str] = field(default_factory=Counter)
    left_out: list[LeftOutPart] = field(default_factory=list)
    _skipped: str = ""  # first words of the front matter that is being left out
    _skipped_length: int = 0  # number of words in the skipped front matter
    _open: list[OpenElement] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _names: Counter[str] = field(default_factory=Counter)  # how many elements of each name are open

    def read(self, markup: str) -> list[TextBlock | AnchorMark]:
        for token in tokenize(markup):
            if token.kind == "text":
                if not (self._open and self._open[-1].skipped):
                    self._text.append(SPACES.sub(" ", token.value))
                else:
                    self._skipped_length += len(token.value.split())
                    self._skipped += token.value[: 2 * FIRST_WORDS] if len(self._skipped) < FIRST_WORDS else ""
            elif token.kind == "start":
                self._start(token)
            else:
                self._end(token.value)
        self._flush()
        self._close(0)
        return self.items

    def _start(self, token: MarkupToken) -> None:
        name, attributes = token.value, token.attributes
        if name in BOUNDARIES:
            self._flush()
            if self._open and self._open[-1].name in ("p", "li" if name == "li" else "p"):
                self._close(
                    len(self._open) - 1
                )  # in HTML, a block ends an open paragraph, and an item ends the item before it
        parent = self._open[-1] if self._open else OpenElement("", False, False, self.language, PARAGRAPH, 0, 0, False)
        identifier = attributes.get("id", "")
        if identifier and identifier in self.anchors:
            if name in BOUNDARIES or parent.kind != HEADING:  # an anchor within a heading marks the whole heading
                self._flush()
            self.items.append(AnchorMark(identifier))
        omission = None if parent.skipped else self._omission(name, attributes)
        if omission and name in BOUNDARIES:
            self._end_introduction()
        skipped = parent.skipped or omission is not None
        counted = omission or (TABLES if name == "table" and not skipped else "")
        self.omitted.update([counted] if counted else ())
        if name in VOID:
            if not skipped:
                self._void(name)
            return
        if len(self._open) >= MAX_DEPTH:
            raise UserError(f"its markup nests more than {MAX_DEPTH} elements, so it is damaged or not a book")
        language = attributes.get("xml:lang") or attributes.get("lang") or parent.language
        note_link = "footnotes" in self.rules and name == "a" and "#" in attributes.get("href", "")
        named = omission == "front-matter"
        if named:
            self._skipped, self._skipped_length = "", 0
        self._open.append(
            OpenElement(
                name,
                skipped,
                named,
                language[:35],
                KINDS.get(name, parent.kind),
                int(name[1]) if name in HEADINGS else parent.level,
                len(self._text),
                note_link,
            )
        )
        self._names[name] += 1

    def _void(self, name: str) -> None:
        if name == "hr":
            self.items.append(TextBlock(SCENE_BREAK))
        elif name == "br":
            if "".join(self._text[-2:]).rstrip(" ").endswith("\n"):  # an empty line
                self._flush()
            else:
                self._text.append("\n")

    def _end(self, name: str) -> None:
        if not self._names[name]:
            return
        depth = next(depth for depth in range(len(self._open) - 1, -1, -1) if self._open[depth].name == name)
        element = self._open[depth]
        if name in BOUNDARIES:
            self._flush()
        elif name in CELLS and not element.skipped:
            self._text.append(", ")
        elif name == "sup" and not element.skipped and not any(one.note_link for one in self._open[-9:]):
            self._raise(element.text_at)
        elif element.note_link and NOTE_MARK.fullmatch("".join(self._text[element.text_at :])):
            del self._text[element.text_at :]
            self.omitted["marks"] += 1
        self._close(depth)

    def _raise(self, start: int) -> None:
        """Write the text from piece ``start`` on as a power: 10<sup>6</sup> becomes 10⁶."""
        raised = "".join(self._text[start:]).strip()
        if POWER.fullmatch(raised) and POWER_BASE.search("".join(self._text[max(0, start - 3) : start])[-5:]):
            self._text[start:] = [raised.translate(SUPERSCRIPTS)]
        elif re.search("[-+/]", raised) and POWER_BASE.search("".join(self._text[max(0, start - 3) : start])[-5:]):
            self._text[start:] = [f"^({raised})"]

    def _close(self, depth: int) -> None:
        self._names.subtract(element.name for element in self._open[depth:])
        if any(element.named for element in self._open[depth:]):
            self.left_out.append(
                LeftOutPart(
                    "front-matter", words=first_words([TextBlock("", self._skipped)]), length=self._skipped_length
                )
            )
        del self._open[depth:]

    def _flush(self) -> None:
        """End the current block."""
        if self._skipped and len(self._skipped) < FIRST_WORDS:
            self._skipped += " "
        if not self._text:
            return
        element = self._open[-1] if self._open else OpenElement("", False, False, self.language, PARAGRAPH, 0, 0, False)
        text = "".join(self._text).strip().removesuffix(",")
        self._text.clear()
        block = text_block(element.kind, text, element.language, element.level if element.kind == HEADING else 0)
        if block is not None:
            self.items.append(block)

    def _end_introduction(self) -> None:
        """Let the last block end with a period if it ends with a colon, because what it introduces is left out."""
        last = self.items[-1] if self.items else None
        if isinstance(last, TextBlock) and last.text.endswith(":"):
            self.items[-1] = replace(last, text=f"{last.text[:-1]}.")

    def _omission(self, name: str, attributes: Mapping[str, str]) -> str | None:
        """Return why an element is left out, or ``None`` if it is read.

        The reason is the name of a rule, a value of ``UNSPEAKABLE``, or "" if the omission is not counted.
        """
        if name in UNSPEAKABLE:
            return UNSPEAKABLE[name]
        if name in NEVER_SPOKEN or "hidden" in attributes or attributes.get("aria-hidden") == "true":
            return ""
        if re.search(r"(?i)display\s{0,9}:\s{0,9}none", attributes.get("style", "")[:1000]):
            return ""
        types = {
            *attributes.get("epub:type", "").lower().split(),
            *(role.removeprefix("doc-") for role in attributes.get("role", "").lower().split()),
        }
        classes = set(attributes.get("class", "").lower().split())
        for rule_name, rule in self.rules.items():
            if name in rule.elements or types & rule.types or classes & rule.classes:
                return "marks" if rule_name == "footnotes" and (types | classes) & NOTE_MARKS else rule_name
        return None
