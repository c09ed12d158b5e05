"""Read cases of documents from .document files: what a book holds, its chapters, and what is left out of them.

A line is one of:

    NAME = TEXT              Before the first case: in all lines, $NAME stands for this text.
    # TITLE                  A case begins. A line that begins with ## is a comment.
    file: NAME CONTENT       The document is this file. Escapes stand for characters, as in tests/tables.py.
    page: NAME BODY          The document is an EPUB with this page and the other ones.
    word: STYLE | TEXT       The document is one of Word with this paragraph and the other ones. TEXT may be their XML.
    part: NAME XML           That document also has this part.
    member: NAME CONTENT     The archive of the EPUB also holds this file.
    contents: PLACE=TITLE; …   The EPUB has this table of contents. The case runs with each of its two forms.
    spine: XML               also guide:, metadata: and more_items: XML, for the package document
    keep: RULES              These rules leave nothing out.
    = TITLE | TEXT           A chapter. Those of a case are all that the document has.
    - KIND | TITLE | WORDS   A part that is left out. Those of a case are all that are named.
    omitted: TEXT            The line for the user counts this as left out.
    facts: TITLE | AUTHOR    The document has this title and author.
    kinds: KIND, KIND, …     These are the kinds of its blocks.
    keeps: RULES TEXT        This is read if these rules leave nothing out.
"""

import re
from pathlib import Path

from ane.books.document import Document
from tests.books.book_files import paragraph, run, write_book, write_docx
from tests.tables import unescaped

NAV = '<item id="nav" href="nav.xhtml" properties="nav" media-type="application/xhtml+xml"/>'
NCX = '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'


class DocumentCase(dict[str, list[str]]):
    """The lines of a case by their first word, each without it."""

    def pairs(self, word: str) -> list[list[str]]:
        """The first word and the rest of each line."""
        return [unescaped(line).split(" ", 1) for line in self.get(word, ())]

    def cells(self, word: str) -> list[tuple[str, ...]]:
        return [tuple(unescaped(line).split(" | ")) for line in self.get(word, ())]

    def text(self, word: str) -> str:
        return unescaped("".join(self.get(word, ())))

    def write(self, folder: Path, ncx: bool) -> Path:
        """Write the document; ``ncx``: with the older form of a table of contents."""
        for name, content in self.pairs("file:"):
            (folder / name).write_text(content, encoding="utf-8")
            return folder / name
        if "word:" in self:
            body = "".join(
                text if text[0] == "<" else paragraph(run(text), style) for style, text in self.cells("word:")
            )
            return write_docx(folder / "a.docx", body, **dict(self.pairs("part:")))
        options = {word: self.text(f"{word}:") for word in ("spine", "guide", "metadata") if f"{word}:" in self}
        files, listed = dict(self.pairs("member:")), dict(entry.split("=", 1) for entry in self.listed)
        write = write_listed if listed else write_book
        more = {"listed": listed, "ncx": ncx} if listed else {"more_items": self.text("more_items:"), "files": files}
        return write(folder / "a.epub", dict(self.pairs("page:")), **more, **options)

    @property
    def listed(self) -> list[str]:
        """The entries of the table of contents."""
        return [entry for entry in self.text("contents:").split("; ") if entry]


def write_listed(
    path: Path,
    documents: dict[str, str],
    listed: dict[str, str],
    ncx: bool = False,
    more: str = "",
    spine: str | None = None,
) -> Path:
    """A book whose contents list only some of its documents, by their path with a fragment or without."""
    links = "".join(f'<li><a href="{target}">{title}</a></li>' for target, title in listed.items())
    points = "".join(
        f'<navPoint><navLabel><text>{title}</text></navLabel><content src="{target}"/></navPoint>'
        for target, title in listed.items()
    )
    contents = (
        {"OEBPS/toc.ncx": f"<ncx><navMap>{points}</navMap></ncx>"}
        if ncx
        else {"OEBPS/nav.xhtml": f'<nav epub:type="toc"><ol>{links}</ol></nav>'}
    )
    return write_book(path, documents, (NCX if ncx else NAV) + more, contents, spine=spine)


def chapters(document: Document) -> list[tuple[str, str]]:
    return [(chapter.title, " ".join(block.text for block in chapter.blocks)) for chapter in document.chapters]


def named(document: Document) -> list[tuple[str, str, str]]:
    return [(part.kind, part.title, part.words) for part in document.left_out]


def document_cases(file: Path) -> dict[str, DocumentCase]:
    """The cases of a file by their titles."""
    start, *parts = re.split(r"^# ", file.read_text(encoding="utf-8"), flags=re.M)
    names, found = dict(line.split(" = ", 1) for line in start.split("\n") if line), {}
    for part in parts:
        title, *lines = re.sub(r"\$([A-Z]+)", lambda match: names[match[1]], part).split("\n")
        found[title] = case = DocumentCase()
        for word, _, rest in (line.partition(" ") for line in lines if line and not line.startswith("## ")):
            case.setdefault(word, []).append(rest)
    return found
