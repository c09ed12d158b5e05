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
    texts = cast.marked(texts_but_headings(chapter))
    return replace(chapter, blocks=[block if block.kind == HEADING else replace(block, text=text)
                                    for block, text in zip(chapter.blocks, texts, strict=True)])


def texts_but_headings(chapter: BookChapter) -> list[str]:
    """The text of each block, "" of headings: they are narration."""
    return [block.text if block.kind != HEADING else "" for block in chapter.blocks]


@dataclass(frozen=True)
class CastReport:
    """Quotations by speaker ("": nobody is known), and those that are doubtful, each with its chapter from 1."""

    counts: dict[str, int]
    doubtful: list[tuple[int, QuotedLine]]


def cast_report(document: Document, cast: Cast | None) -> CastReport:
    """What the rules find; with a cast, by the names of its speakers."""
    lines = list(quotations(document, cast or Cast()))
    return CastReport(dict(Counter(line.speaker for _, line in lines if line.rule != NO_SPEECH).most_common()),
                      [(chapter, line) for chapter, line in lines if line.doubtful])


def quotations(document: Document, cast: Cast) -> Iterator[tuple[int, QuotedLine]]:
    for number, chapter in enumerate(document.chapters, 1):
        for line in attribute(texts_but_headings(chapter), cast.speaker_named, cast.lines):
            yield number, line
