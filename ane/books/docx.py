"""Read a Word document (DOCX) as chapters. The names of paragraph styles show which paragraphs are headings.

A DOCX is a ZIP archive of XML. The same limits apply as for an EPUB, and nothing in the XML can expand entities or load
other files.
"""

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ane.books.archive import BookArchive, resolve
from ane.books.document import MAX_TITLE, Document, split_at_headings
from ane.books.front_matter import without_front_matter, without_title_page
from ane.system.errors import UserError
from ane.text.blocks import HEADING, ITEM, PARAGRAPH, QUOTATION, LeftOutPart, TextBlock, text_block
from ane.text.omissions import TABLES, Omission, counted_omissions
from ane.text.tags import MarkupToken, element_texts, tokenize

CONTENT_TYPES = "[Content_Types].xml"
RELATIONS, PROPERTIES = "_rels/.rels", "docProps/core.xml"
# elements of Word's XML whose text is not read → the kind of omission (a fallback repeats the element before it)
SKIPPED = {
    "drawing": "images",
    "pict": "images",
    "object": "images",
    "omath": "formulas",
    "fallback": "",
    "movefrom": "",
}
WITHIN = {"tab": " ", "br": "\n", "cr": "\n", "nobreakhyphen": "-"}
NOTES = {"footnotereference": "footnotes.xml", "endnotereference": "endnotes.xml"}
MAX_BASES = 20  # maximum length of a chain of styles in which each style is based on the next
HEADING_NAME = re.compile(r"heading (\d)")


@dataclass
class ParagraphStyle:
    """A paragraph style of Word.

    Attributes:
        name: Name of the style, in English and lower case.
        level: Level of the heading: 1 for a title, 0 for text.
        base: Id of the style that this style is based on.
    """

    name: str = ""
    level: int = 0
    base: str = ""


@dataclass
class WordParagraph:
    """A paragraph while it is being read.

    Attributes:
        notes: The footnotes and endnotes that the paragraph refers to, as (file, id).
    """

    text: list[str] = field(default_factory=list)
    style: str = ""
    level: int = 0
    listed: bool = False
    notes: list[tuple[str, str]] = field(default_factory=list)


def read_docx(archive: BookArchive, rules: Mapping[str, Omission]) -> Document:
    """Read a document, leaving out the text that ``rules`` omit. Raises UserError if it is damaged or not from Word."""
    main = main_part(archive)
    folder = posixpath.dirname(main)
    styles, language = read_styles(archive, posixpath.join(folder, "styles.xml"))
    omitted = Counter[str]()
    notes = {} if "footnotes" in rules else read_notes(archive, folder)
    blocks: list[TextBlock | None] = []
    title = ""  # first paragraph with Word's style for titles
    for paragraph in read_paragraphs(archive, main, omitted):
        kind, level, style = kind_of(paragraph, styles)
        text = "".join(paragraph.text)
        title = title or " ".join(text.split())[:MAX_TITLE] * (style == "title")
        if "navigation" in rules and re.match(r"toc( \d| heading)", style):
            omitted["contents"] += 1
        elif "code" in rules and re.search(r"\bcode\b|preformatted", style):
            omitted["code"] += bool(text.strip())
        else:
            blocks.append(text_block(kind, text, level=level))
        blocks += [text_block(PARAGRAPH, notes[note]) for note in paragraph.notes if note in notes]
        omitted["footnotes"] += len(paragraph.notes) if "footnotes" in rules else 0
    left_out: list[LeftOutPart] = []
    chapters = without_front_matter(split_at_headings([block for block in blocks if block]), rules, omitted, left_out)
    omitted["front-matter"] += "front-matter" in rules and omitted["contents"] > 0
    titles, authors = element_texts(
        archive.text(PROPERTIES, "its title") if PROPERTIES in archive.names else "", "title", "creator"
    )
    document = Document(
        chapters,
        "".join(titles[:1]) or title,
        "".join(authors[:1]),
        language,
        omitted=counted_omissions(omitted),
        tables=omitted[TABLES],
        left_out=left_out,
    )
    titled = {"front-matter", "title-page"} <= rules.keys()
    return without_title_page(document, document.title, document.author) if titled else document


def main_part(archive: BookArchive) -> str:
    """Return the path of the file with the document's text. Raises UserError if the archive names no such file."""
    for token in tokenize(archive.text(RELATIONS, "which names its parts")):
        if token.value == "relationship" and token.attributes.get("type", "").endswith("/officeDocument"):
            path = resolve("", token.attributes.get("target", "").lstrip("/"))[0]
            if path.endswith((".xml", ".XML")) and "document" in path:
                return path
    raise UserError("it is an archive without a Word text: save it as DOCX or EPUB")


def read_paragraphs(archive: BookArchive, path: str, omitted: Counter[str]) -> Iterator[WordParagraph]:
    """Yield the paragraphs of a document, and count in ``omitted`` the text that is not read."""
    paragraph, inside, reading = WordParagraph(), 0, False
    for token in tokenize(archive.text(path, "its text")):
        if token.kind == "text":
            if reading and not inside:
                paragraph.text.append(token.value)
        elif token.value in SKIPPED:
            omitted[SKIPPED[token.value]] += token.kind == "start" and not inside
            inside = max(0, inside + (1 if token.kind == "start" else -1))
        elif token.value == "t":
            reading = token.kind == "start"
        elif inside:
            continue
        elif token.value == "p":
            if paragraph.text or paragraph.notes:
                yield paragraph
            paragraph = WordParagraph()
        elif token.kind == "start":
            omitted[TABLES] += token.value == "tbl"
            note_property(paragraph, token)
    yield paragraph


def note_property(paragraph: WordParagraph, token: MarkupToken) -> None:
    """Update a paragraph from one of its elements: set a property, or add the character that the element stands for."""
    value = token.attributes.get("w:val", "")
    if token.value in WITHIN:
        paragraph.text.append(" " if token.attributes.get("w:type") in ("page", "column") else WITHIN[token.value])
    elif token.value == "pstyle":
        paragraph.style = value
    elif token.value == "outlinelvl":
        paragraph.level = outline_level(value)
    elif token.value == "numid":
        paragraph.listed = value != "0"
    elif token.value in NOTES:
        paragraph.notes.append((NOTES[token.value], token.attributes.get("w:id", "")))


def outline_level(value: str) -> int:
    """Convert an outline level of Word, from 0 to 9, to the level of a heading. Word's 9 means text, and becomes 0."""
    return int(value) + 2 if value in ("0", "1", "2", "3", "4", "5", "6", "7", "8") else 0


def kind_of(paragraph: WordParagraph, styles: Mapping[str, ParagraphStyle]) -> tuple[str, int, str]:
    """Return a paragraph's kind (heading or other text), its level if it is a heading, and the name of its style."""
    level, identifier, names = paragraph.level, paragraph.style, list[str]()
    while identifier in styles and len(names) < MAX_BASES:
        style = styles[identifier]
        names.append(style.name)
        level, identifier = level or style.level, style.base
    name = names[0] if names else ""
    if level:
        return HEADING, level, name
    if "quot" in name:
        return QUOTATION, 0, name
    return ITEM if paragraph.listed or name.startswith("list ") else PARAGRAPH, 0, name


def read_styles(archive: BookArchive, path: str) -> tuple[dict[str, ParagraphStyle], str]:
    """Return the paragraph styles by id, and the language of the document."""
    styles: dict[str, ParagraphStyle] = {}
    style, language = ParagraphStyle(), ""
    if path not in archive.names:
        return styles, language
    for token in tokenize(archive.text(path, "its styles")):
        if token.kind != "start":
            continue
        value = token.attributes.get("w:val", "")
        if token.value == "style":
            style = styles[token.attributes.get("w:styleid", "")] = ParagraphStyle()
        elif token.value == "name":
            style.name = value.lower()
            heading = HEADING_NAME.match(style.name)
            style.level = int(heading[1]) + 1 if heading else int(style.name == "title")
        elif token.value == "outlinelvl":
            style.level = style.level or outline_level(value)
        elif token.value == "basedon":
            style.base = value
        elif token.value == "lang":
            language = language or value[:35]
    return styles, language


def read_notes(archive: BookArchive, folder: str) -> dict[tuple[str, str], str]:
    """Return the text of every footnote and endnote, by (file, id)."""
    notes: dict[tuple[str, str], list[str]] = {}
    for part in NOTES.values():
        path, key, reading = posixpath.join(folder, part), ("", ""), False
        for token in tokenize(archive.text(path, "its notes")) if path in archive.names else ():
            if token.kind == "text":
                notes.setdefault(key, []).extend([token.value] if reading else ())
            elif token.value in ("footnote", "endnote") and token.kind == "start":
                key = part, token.attributes.get("w:id", "")
            elif token.value == "t":
                reading = token.kind == "start"
    return {key: "".join(text) for key, text in notes.items()}
