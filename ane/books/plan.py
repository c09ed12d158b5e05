"""What a book is spoken as: the voices of its quotations; chunks in order, each with the key of its sound and the
silence after it."""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from ane.books.document import MAX_TITLE, BookChapter, Document
from ane.speech.request import Budget
from ane.system.errors import UserError
from ane.text import shorten, split
from ane.text.attribution import NO_SPEECH, QuotedLine, attribute
from ane.text.blocks import HEADING, SCENE_BREAK, TextBlock
from ane.text.cast import Cast
from ane.text.passages import read_pauses, with_voice_mark, without_commands
from ane.text.splitter import CLOSING, MARKS

MAX_SILENCE = 60.0      # seconds
WITHIN_SENTENCE = 0.15  # seconds of silence where a long sentence is divided: a breath
MAX_PARAGRAPH = 50_000  # characters that are divided at a time, to bound memory: no paragraph of a book is so long
CHARACTERS_A_SECOND = 15     # of English read aloud at about 160 words a minute, with pauses


@dataclass(frozen=True)
class Silences:
    """Seconds of silence between two chunks, from the end of speech to its beginning; from 0 to ``MAX_SILENCE``."""

    sentence: float = 0.35      # between sentences of a paragraph
    paragraph: float = 0.75     # between paragraphs, list items and quotations
    heading: float = 1.2        # before and after a heading, and at a scene break
    chapter: float = 2.0        # after a chapter

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and 0 <= value <= MAX_SILENCE):
                raise UserError(f"{name}_silence must be from 0 to {MAX_SILENCE:g} seconds, got {value:g}",
                                f"{name}_silence")


@dataclass(frozen=True)
class SpeechIdentity:
    """All that determines the sound of a text beside the text."""

    model: str          # a digest, and so is the next one
    voice: str
    settings: Mapping[str, Any]         # those that change the sound
    seed: int

    @property
    def digest(self) -> str:
        return digest_of([self.model, self.voice, dict(self.settings), self.seed])


@dataclass(frozen=True)
class PlannedChunk:
    """A piece of text spoken in one request."""

    number: int         # position in the book, from 1
    key: str            # of its sound: digest of the text, of its occurrence, and of the ``SpeechIdentity``
    text: str
    chapter: int        # index of its chapter
    kind: str           # of its block
    language: str
    silence: float      # seconds after it


@dataclass(frozen=True)
class PlannedBlock:
    """A block of the document, as a ``TextBlock``."""

    first: int          # number of its first chunk; of a scene break: of the chunk after it
    kind: str
    level: int = 0
    cue: tuple[float, float] | None = None


@dataclass(frozen=True)
class BookPlan:
    """All chunks of a book, the titles of its chapters, and its blocks, which change no sound."""

    chunks: tuple[PlannedChunk, ...]
    chapters: tuple[str, ...]
    blocks: tuple[PlannedBlock, ...] = ()

    @property
    def digest(self) -> str:
        return digest_of([[*vars(chunk).values()] for chunk in self.chunks] + [list(self.chapters)])

    def chosen(self, chapters: Collection[int] = (), seconds: float | None = None) -> "BookPlan":
        """The chunks of some chapters, numbered from 1, or of all; of these the first, of about so many seconds. Their
        sounds are those of the whole book.

        Raises:
            UserError: no such chapter, or nothing to say in it.
        """
        if wrong := [number for number in chapters if not 1 <= number <= len(self.chapters)]:
            raise UserError(f"chapters must name chapters from 1 to {len(self.chapters)}, got {wrong[0]}", "chapters")
        chunks = [chunk for chunk in self.chunks if not chapters or chunk.chapter + 1 in chapters]
        if not chunks:
            raise UserError("chapters names chapters without a letter or digit to say", "chapters")
        if seconds is not None:
            before = accumulate((len(chunk.text) / CHARACTERS_A_SECOND for chunk in chunks), initial=0.0)
            chunks = [chunk for chunk, start in zip(chunks, before, strict=False) if start < seconds]
        numbers = {chunk.number: number for number, chunk in enumerate(chunks, 1)}
        return BookPlan(tuple(replace(chunk, number=numbers[chunk.number]) for chunk in chunks), self.chapters,
                        tuple(replace(block, first=numbers[block.first]) for block in self.blocks
                              if block.first in numbers))


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()


def seed_of(key: str, take: int) -> int:
    """The seed with which a chunk is spoken for the ``take``th time: it depends on no other chunk."""
    return int(digest_of([key, take])[:8], 16)


def plan_book(document: Document, identity: SpeechIdentity, silences: Silences,
              lengths: tuple[int, int] | None, respell: Callable[[str], str] = str) -> BookPlan:
    """Divide a document into chunks of about ``lengths[0]`` and at most ``lengths[1]`` characters; None: paragraphs.

    A chunk never spans two blocks. Equal texts differ in their occurrence (the first, the second, …), not by
    their position: an inserted paragraph changes no other chunk. ``respell``: a lexicon, which changes those chunks
    alone that it respells.

    Raises:
        UserError: there is nothing to say, or more silence after a chunk than a request may ask for.
    """
    base, seen = identity.digest, Counter[str]()
    chunks: list[PlannedChunk] = []
    blocks: list[PlannedBlock] = []
    for number, chapter in enumerate(document.chapters):
        for block, following in zip(chapter.blocks, [*chapter.blocks[1:], None], strict=True):
            before, parts = parts_with_pauses(block.text, lengths)
            blocks += [PlannedBlock(len(chunks) + 1, block.kind, block.level, block.cue)] * (
                bool(parts) or block.kind == SCENE_BREAK)
            if before and chunks:
                chunks[-1] = replace(chunks[-1], silence=chunks[-1].silence + before)
            for index, (part, pause) in enumerate(parts, 1):
                seen[part] += 1
                respelled = respell(part)
                key = digest_of([base, part, seen[part], *([respelled] if respelled != part else [])])
                silence = (silence_after(block, following, silences) + pause if index == len(parts) else
                           pause or silence_within(part, silences))
                chunks.append(PlannedChunk(len(chunks) + 1, key, part, number, block.kind, block.language, silence))
    for chunk in chunks:
        if chunk.silence > Budget().silence + MAX_SILENCE:
            raise UserError(f"after {shorten(chunk.text)!r} the text asks for {chunk.silence:g} s of silence, at most "
                            f"{Budget().silence:g} s can be made at a time: shorten its pauses")
    if not chunks:
        raise UserError("there is nothing to say: the document has no letter or digit")
    return BookPlan(tuple(chunks), tuple(title_of(chapter, document, number)
                                         for number, chapter in enumerate(document.chapters, 1)), tuple(blocks))


def parts_with_pauses(text: str, lengths: tuple[int, int] | None) -> tuple[float, list[tuple[str, float]]]:
    """The chunks of a paragraph, and the seconds of pause that it asks for before the first and after each."""
    before, parts = 0.0, list[tuple[str, float]]()
    for passage in read_pauses(text, strict=False):
        parts += [(with_voice_mark(part, passage.voice), 0.0) for part in parts_of(passage.text, lengths)]
        if parts:
            parts[-1] = parts[-1][0], parts[-1][1] + passage.silence
        else:
            before += passage.silence
    return before, parts


def parts_of(text: str, lengths: tuple[int, int] | None) -> list[str]:
    """The chunks of a paragraph; None: the paragraph is one."""
    if lengths is None:
        return [" ".join(text.split())] if any(map(str.isalnum, text)) else []
    slices, start = [], 0
    while len(text) - start > MAX_PARAGRAPH:
        end = text.rfind(" ", start, start + MAX_PARAGRAPH)
        end = start + MAX_PARAGRAPH if end <= start else end
        slices.append(text[start:end])
        start = end
    return [part for piece in [*slices, text[start:]] for part in split(piece, *lengths)
            if any(map(str.isalnum, part))]


def title_of(chapter: BookChapter, document: Document, number: int) -> str:
    """The title of a chapter for tables of contents: its own, its first heading, the document's before the first, or
    "Chapter 5"."""
    heading = next((without_commands(block.text).replace("\n", " ") for block in chapter.blocks
                    if block.kind == HEADING), "")
    title = chapter.title or heading or (document.title if number == 1 else "") or f"Chapter {number}"
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "", title)[:MAX_TITLE]      # a terminal would obey control characters


def silence_after(block: TextBlock, following: TextBlock | None, silences: Silences) -> float:
    if following is None:
        return silences.chapter
    if SCENE_BREAK in (block.kind, following.kind) or HEADING in (block.kind, following.kind):
        return silences.heading
    return silences.paragraph


def silence_within(part: str, silences: Silences) -> float:
    """After a part of a paragraph: less where it ends within a sentence."""
    whole = MARKS.search(without_commands(part).rstrip(CLOSING))
    return silences.sentence if whole else min(WITHIN_SENTENCE, silences.sentence)


def cast_document(document: Document, cast: Cast | None) -> Document:
    """The document with marks of voices in its text, chapter by chapter; headings have none."""
    if cast is None:
        return document
    return replace(document, chapters=[
        replace(chapter, blocks=[block if block.kind == HEADING else replace(block, text=text) for block, text in
                                 zip(chapter.blocks, cast.marked(texts_but_headings(chapter)), strict=True)])
        for chapter in document.chapters])


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
    cast = cast or Cast()
    lines = [(number, line) for number, chapter in enumerate(document.chapters, 1)
             for line in attribute(texts_but_headings(chapter), cast.speaker_named, cast.lines)]
    return CastReport(dict(Counter(line.speaker for _, line in lines if line.rule != NO_SPEECH).most_common()),
                      [(chapter, line) for chapter, line in lines if line.doubtful])
