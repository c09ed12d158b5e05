"""What a book is spoken as: the voices of its quotations; chunks in order, each with the key of its sound and the
silence after it.
"""

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
from ane.speech.request import TextLimits
from ane.system.errors import UserError
from ane.text import shorten, split
from ane.text.attribution import NO_SPEECH, QuotedLine, attribute
from ane.text.blocks import HEADING, SCENE_BREAK, TextBlock
from ane.text.cast import Cast
from ane.text.passages import read_pauses, with_voice_mark, without_commands
from ane.text.splitter import CLOSING, MARKS

MAX_SILENCE = 60.0  # seconds
WITHIN_SENTENCE = 0.15  # seconds of silence where a long sentence is divided: a breath
MAX_PARAGRAPH = 50_000  # characters that are divided at a time, to bound memory: no paragraph of a book is so long
CHARACTERS_A_SECOND = 15  # of English read aloud at about 160 words a minute, with pauses


@dataclass(frozen=True)
class Silences:
    """Seconds of silence between two chunks, from the end of speech to its beginning; from 0 to ``MAX_SILENCE``."""

    sentence: float = 0.35  # between sentences of a paragraph
    paragraph: float = 0.75  # between paragraphs, list items and quotations
    heading: float = 1.2  # before and after a heading, and at a scene break
    chapter: float = 2.0  # after a chapter

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and 0 <= value <= MAX_SILENCE):
                raise UserError(
                    f"{name}_silence must be from 0 to {MAX_SILENCE:g} seconds, got {value:g}", f"{name}_silence"
                )


@dataclass(frozen=True)
class SpeechIdentity:
    """All that determines the sound of a text beside the text."""

    model: str  # a digest, and so is the next one
    voice: str
    settings: Mapping[str, Any]  # those that change the sound
    seed: int

    @property
    def digest(self) -> str:
        return digest_of([self.model, self.voice, dict(self.settings), self.seed])


@dataclass
class PlannedChunk:
    """A piece of text spoken in one request."""

    number: int  # position in the book, from 1
    key: str  # of its sound: digest of the text, of its occurrence, and of the ``SpeechIdentity``
    text: str
    chapter: int  # index of its chapter
    kind: str  # of its block
    language: str
    silence: float  # seconds after it
    voice: str = ""  # the name that the text or its cast gives it; "": the voice of the book

    @property
    def marked(self) -> str:
        """The text with its voice, as keys and digests have it."""
        return with_voice_mark(self.text, self.voice)


@dataclass(frozen=True)
class PlannedBlock:
    """A block of the document, as a ``TextBlock``."""

    first: int  # number of its first chunk; of a scene break: of the chunk after it
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
        return digest_of(
            [
                [chunk.number, chunk.key, chunk.marked, chunk.chapter, chunk.kind, chunk.language, chunk.silence]
                for chunk in self.chunks
            ]
            + [list(self.chapters)]
        )

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
        return BookPlan(
            tuple(replace(chunk, number=numbers[chunk.number]) for chunk in chunks),
            self.chapters,
            tuple(replace(block, first=numbers[block.first]) for block in self.blocks if block.first in numbers),
        )


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()


def seed_of(key: str, take: int) -> int:
    """The seed with which a chunk is spoken for the ``take``th time: it depends on no other chunk."""
    return int(digest_of([key, take])[:8], 16)


def plan_book(
    document: Document,
    identity: SpeechIdentity,
    silences: Silences,
    lengths: tuple[int, int] | None,
    spoken_as: Callable[[str, str], str] = lambda marked, voice: marked,
    cast: Cast | None = None,
) -> BookPlan:
    """Divide a document into chunks of about ``lengths[0]`` and at most ``lengths[1]`` characters; None: paragraphs.

    A chunk never spans two blocks. Equal texts differ in their occurrence (the first, the second, …), not by
    their position: an inserted paragraph changes no other chunk.

    Args:
        spoken_as: Takes a chunk's marked text and the name of its voice. Returns the text with everything else that
            the chunk's key depends on: respellings and the digest of its voice.
        cast: Who speaks the quotations. Headings are narration.

    Raises:
        UserError: there is nothing to say, or more silence after a chunk than a request may ask for.
    """
    base, seen = identity.digest, Counter[str]()
    chunks: list[PlannedChunk] = []
    blocks: list[PlannedBlock] = []
    for number, chapter in enumerate(document.chapters):
        quotations = (cast or Cast()).quotations_of(texts_but_headings(chapter))
        for block, quoted, following in zip(chapter.blocks, quotations, [*chapter.blocks[1:], None], strict=True):
            first = len(chunks)
            for passage in read_pauses(block.text, strict=False, quotations=quoted):
                for text in parts_of(passage.text, lengths):
                    chunk = PlannedChunk(
                        len(chunks) + 1, "", text, number, block.kind, block.language, 0.0, passage.voice
                    )
                    seen[chunk.marked] += 1
                    spoken = spoken_as(chunk.marked, chunk.voice)
                    chunk.key = digest_of(
                        [base, chunk.marked, seen[chunk.marked], *([spoken] if spoken != chunk.marked else [])]
                    )
                    chunks.append(chunk)
                if chunks:
                    chunks[-1].silence += passage.silence
            for chunk in chunks[first:-1]:
                chunk.silence = chunk.silence or silence_within(chunk.text, silences)
            if len(chunks) > first:
                chunks[-1].silence += silence_after(block, following, silences)
            if len(chunks) > first or block.kind == SCENE_BREAK:
                blocks.append(PlannedBlock(first + 1, block.kind, block.level, block.cue))
    for chunk in chunks:
        if chunk.silence > TextLimits().silence + MAX_SILENCE:
            raise UserError(
                f"after {shorten(chunk.text)!r} the text asks for {chunk.silence:g} s of silence, at most "
                f"{TextLimits().silence:g} s can be made at a time: shorten its pauses"
            )
    if not chunks:
        raise UserError("there is nothing to say: the document has no letter or digit")
    return BookPlan(
        tuple(chunks),
        tuple(title_of(chapter, document, number) for number, chapter in enumerate(document.chapters, 1)),
        tuple(blocks),
    )


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
    return [part for piece in [*slices, text[start:]] for part in split(piece, *lengths) if any(map(str.isalnum, part))]


def title_of(chapter: BookChapter, document: Document, number: int) -> str:
    """The title of a chapter for tables of contents: its own, its first heading, the document's before the first, or
    "Chapter 5".
    """
    heading = next(
        (without_commands(block.text).replace("\n", " ") for block in chapter.blocks if block.kind == HEADING), ""
    )
    title = chapter.title or heading or (document.title if number == 1 else "") or f"Chapter {number}"
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "", title)[:MAX_TITLE]  # a terminal would obey control characters


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
    lines = [
        (number, line)
        for number, chapter in enumerate(document.chapters, 1)
        for line in attribute(texts_but_headings(chapter), cast.speaker_named, cast.lines)
    ]
    return CastReport(
        dict(Counter(line.speaker for _, line in lines if line.rule != NO_SPEECH).most_common()),
        [(chapter, line) for chapter, line in lines if line.doubtful],
    )
