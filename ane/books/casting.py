"""Giving the quotations of a document their voices, and a report of who was found to speak each."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ane.books.document import HEADING, BookChapter, Document
from ane.text.attribution import NO_SPEECH, QuotedLine, attribute
from ane.text.cast import Cast


def cast_document(document: Document, cast: Cast | None) -> Document:
    """The document with marks of voices in its text, chapter by chapter; headings have none."""
    if cast is None:
        return document
    return replace(document, chapters=[cast_chapter(chapter, cast) for chapter in document.chapters])


def cast_chapter(chapter: BookChapter, cast: Cast) -> BookChapter:
    texts = cast.marked([block.text for block in chapter.blocks])
    return replace(chapter, blocks=[block if block.kind == HEADING else replace(block, text=text)
                                    for block, text in zip(chapter.blocks, texts, strict=True)])


@dataclass(frozen=True)
class CastReport:
    """Quotations by speaker ("": nobody is known), and those that are doubtful, each with its chapter from 1."""

    counts: dict[str, int]
    doubtful: list[tuple[int, QuotedLine]]


def cast_report(document: Document, cast: Cast | None) -> CastReport:
    """What the rules find; with a cast, by the names of its speakers."""
    known = cast or Cast()
    found = list(quotations(document, known))
    return CastReport(dict(Counter(line.speaker for _, line in found if line.rule != NO_SPEECH).most_common()),
                      [(chapter, line) for chapter, line in found if line.doubtful])


def quotations(document: Document, cast: Cast) -> Iterator[tuple[int, QuotedLine]]:
    for number, chapter in enumerate(document.chapters, 1):
        texts = [block.text if block.kind != HEADING else "" for block in chapter.blocks]
        for line in attribute(texts, cast.known, cast.lines):
            yield number, line
