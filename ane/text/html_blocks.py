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
from ane.text.omissions import NOTE_MARK, NOTE_MARKS, NOTES_TITLE, TABLES, UNSPEAKABLE, Omission
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
NOTES = words("p li div aside blockquote dt dd tr")  # elements that can be a footnote without markup
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
class FragmentLink:
    """A link to an element, in this file or another.

    Attributes:
        before: The beginning of the text before the link in its block, without spaces around it.
        inside: Numbers of the headings and ``NOTES`` elements that contain the link, from the inside out.
    """

    href: str
    text: str
    before: str
    inside: tuple[int, ...]


@dataclass(frozen=True)
class OpenElement:
    """An element that has not ended yet.

    Attributes:
        number: Number of the start tag in the file.
        href: Reference of a link to an element, or "".
        text_at: Number of text pieces in the current block before the element.
    """

    name: str
    skipped: bool
    named: str  # the rule by which the part that begins with this element is left out, or ""
    language: str
    kind: str
    level: int
    text_at: int
    number: int = 0
    href: str = ""


@dataclass
class BlockReader:
    """Reads markup and collects its blocks.

    Attributes:
        rules: Rules for elements that are left out, by name.
        anchors: Ids of elements. ``read`` returns the positions of these elements among the blocks.
        notes: Numbers of the start tags of elements that are footnotes without markup (``ane.books.linked_notes``).
        links: The links to elements that were read.
        targets: For each id, the number of the block that has or contains it, if the block can be a note or a heading.
            Otherwise 0.
        titled: Numbers of the elements that contain a heading.
    """

    rules: Mapping[str, Omission]
    anchors: Collection[str] = ()
    language: str = ""
    notes: Collection[int] = ()
    links: list[FragmentLink] = field(default_factory=list)
    targets: dict[str, int] = field(default_factory=dict)
    titled: set[int] = field(default_factory=set)
    items: list[TextBlock | AnchorMark] = field(default_factory=list)
    omitted: Counter[str] = field(default_factory=Counter)
    left_out: list[LeftOutPart] = field(default_factory=list)
    _skipped: str = ""  # first words of the part that is being left out
    _skipped_length: int = 0  # number of words in this part
    _number: int = 0  # start tags so far
    _notes_at: set[int] = field(default_factory=set)  # indexes of items before which a footnote is left out
    _marked: set[int] = field(default_factory=set)  # indexes of items with a footnote's mark
    _term: bool = False  # whether the last <dt> is a footnote, so that the next <dd> is its text
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
        self._drop_note_titles()
        return self.items

    def _start(self, token: MarkupToken) -> None:
        name, attributes = token.value, token.attributes
        self._number += 1
        if name in BOUNDARIES:
            self._flush()
            if self._open and self._open[-1].name in ("p", "li" if name == "li" else "p"):
                self._close(
                    len(self._open) - 1
                )  # in HTML, a block ends an open paragraph, and an item ends the item before it
        parent = self._open[-1] if self._open else OpenElement("", False, "", self.language, PARAGRAPH, 0, 0)
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
        named = omission if omission in ("front-matter", "footnotes") else ""
        if named:
            self._skipped, self._skipped_length = "", 0
        if named == "footnotes":
            self._notes_at.add(len(self.items))
        href = attributes.get("href", "") if "footnotes" in self.rules and name == "a" else ""
        self._open.append(
            OpenElement(
                name,
                skipped,
                named,
                language[:35],
                KINDS.get(name, parent.kind),
                int(name[1]) if name in HEADINGS else parent.level,
                len(self._text),
                self._number,
                href if "#" in href else "",
            )
        )
        self._names[name] += 1
        if name in HEADINGS:
            self.titled.update(element.number for element in self._open[-20:])
        if identifier:
            block = next((element for element in reversed(self._open) if element.name in BOUNDARIES), None)
            self.targets[identifier] = block.number if block and block.name in NOTES | HEADINGS else 0

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
        elif name == "sup" and not element.skipped and not any(one.href for one in self._open[-9:]):
            self._raise(element.text_at)
        elif element.href and not element.skipped:
            text, before = "".join(self._text[element.text_at :]), "".join(self._text[: min(4, element.text_at)])
            inside = [one.number for one in self._open[-9:] if one.name in NOTES | HEADINGS]
            self.links.append(FragmentLink(element.href, text[:20].strip(), before[:40].strip(), (*inside[::-1],)))
            if NOTE_MARK.fullmatch(text):
                del self._text[element.text_at :]
                self.omitted["marks"] += 1
                self._marked.add(len(self.items))
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
        if named := next((element.named for element in self._open[depth:] if element.named), ""):
            self.left_out.append(
                LeftOutPart(named, words=first_words([TextBlock("", self._skipped)]), length=self._skipped_length)
            )
        del self._open[depth:]

    def _flush(self) -> None:
        """End the current block."""
        if self._skipped and len(self._skipped) < FIRST_WORDS:
            self._skipped += " "
        if not self._text:
            return
        element = self._open[-1] if self._open else OpenElement("", False, "", self.language, PARAGRAPH, 0, 0)
        text = "".join(self._text).strip().removesuffix(",")
        self._text.clear()
        block = text_block(element.kind, text, element.language, element.level if element.kind == HEADING else 0)
        if block is not None:
            self.items.append(block)

    def _drop_note_titles(self) -> None:
        """Remove the headings below which nothing but omitted footnotes stands, such as "Notes"."""
        notes, level = False, 0  # whether only footnotes follow, and the level of the last heading that was removed
        for index in range(len(self.items), -1, -1):
            item = self.items[index] if index < len(self.items) else None
            if isinstance(item, TextBlock):
                titles = item.kind == HEADING and (not level or item.level < level)
                notes = notes and index not in self._marked and (titles or NOTES_TITLE.fullmatch(item.text) is not None)
                if notes:
                    level = item.level
                    del self.items[index]
            if index in self._notes_at:
                notes, level = True, 0

    def _end_introduction(self) -> None:
        """Let the last block end with a period if it ends with a colon, because what it introduces is left out."""
        last = self.items[-1] if self.items else None
        if isinstance(last, TextBlock) and last.text.endswith(":"):
            self.items[-1] = replace(last, text=f"{last.text[:-1]}.")

    def _omission(self, name: str, attributes: Mapping[str, str]) -> str | None:
        """Return why an element is left out, or ``None`` if it is read.

        The reason is the name of a rule, a value of ``UNSPEAKABLE``, or "" if the omission is not counted.
        """
        if name == "dt":
            self._term = self._number in self.notes
        if (name == "dd" and self._term) or self._number in self.notes:
            return "footnotes" if name != "dt" else ""
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
