"""Plan how to speak a book: its chunks in order, their voices, the keys of their sounds and the silences between."""

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
WITHIN_SENTENCE = 0.15  # seconds of silence between the parts of a divided sentence
MAX_PARAGRAPH = 50_000  # characters that are divided in one call, to limit memory (paragraphs of books are shorter)
CHARACTERS_PER_SECOND = 15  # English read aloud with pauses, at about 160 words per minute


@dataclass(frozen=True)
class Silences:
    """Seconds of silence between the speech of two chunks, from 0 to ``MAX_SILENCE``.

    Attributes:
        sentence: Silence between sentences of a paragraph.
        paragraph: Silence between paragraphs, list items and quotations.
        heading: Silence before and after a heading, and at a scene break.
        chapter: Silence after a chapter.
    """

    sentence: float = 0.35
    paragraph: float = 0.75
    heading: float = 1.2
    chapter: float = 2.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and 0 <= value <= MAX_SILENCE):
                raise UserError(
                    f"{name}_silence must be from 0 to {MAX_SILENCE:g} seconds, got {value:g}", f"{name}_silence"
                )


@dataclass(frozen=True)
class SpeechIdentity:
    """Everything except the text that determines the sound of a text.

    Attributes:
        model: Digest of the model.
        voice: Digest of the voice.
        settings: The settings that change the sound.
    """

    model: str
    voice: str
    settings: Mapping[str, Any]
    seed: int

    @property
    def digest(self) -> str:
        return digest_of([self.model, self.voice, dict(self.settings), self.seed])


@dataclass
class PlannedChunk:
    """A piece of text that is spoken in one request.

    Attributes:
        number: Position in the book, from 1.
        key: Key of its sound: a digest of its text, the occurrence of that text, and the ``SpeechIdentity``.
        chapter: Index of its chapter, from 0.
        kind: Kind of its block.
        silence: Seconds of silence after it.
        voice: Name of its voice in the text or the cast. "" means the voice of the book.
    """

    number: int
    key: str
    text: str
    chapter: int
    kind: str
    language: str
    silence: float
    voice: str = ""

    @property
    def marked(self) -> str:
        """The text with a mark for its voice, for keys and digests."""
        return with_voice_mark(self.text, self.voice)


@dataclass(frozen=True)
class PlannedBlock:
    """A block of the document, like a ``TextBlock``.

    Attributes:
        first: Number of its first chunk. For a scene break, the number of the chunk after it.
        cue: Start and end of a subtitle in seconds.
    """

    first: int
    kind: str
    level: int = 0
    cue: tuple[float, float] | None = None


@dataclass(frozen=True)
class BookPlan:
    """All chunks of a book, the titles of its chapters, and its blocks, which do not change the sound."""

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
        """Return a plan for a part of the book. Its chunks have the same keys as in the whole book.

        Args:
            chapters: Numbers of the chapters, from 1. Empty means all chapters.
            seconds: Approximate length. ``None`` means no limit.

        Raises:
            UserError: There is no such chapter, or it has nothing to say.
        """
        if wrong := [number for number in chapters if not 1 <= number <= len(self.chapters)]:
            raise UserError(f"chapters must name chapters from 1 to {len(self.chapters)}, got {wrong[0]}", "chapters")
        chunks = [chunk for chunk in self.chunks if not chapters or chunk.chapter + 1 in chapters]
        if not chunks:
            raise UserError("chapters must name a chapter that has a letter or digit to say", "chapters")
        if seconds is not None:
            before = accumulate((len(chunk.text) / CHARACTERS_PER_SECOND for chunk in chunks), initial=0.0)
            chunks = [chunk for chunk, start in zip(chunks, before, strict=False) if start < seconds]
        numbers = {chunk.number: number for number, chunk in enumerate(chunks, 1)}
        return BookPlan(
            tuple(replace(chunk, number=numbers[chunk.number]) for chunk in chunks),
            self.chapters,
            tuple(replace(block, first=numbers[block.first]) for block in self.blocks if block.first in numbers),
        )


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()


def seed_of(key: str, take: int) -> int:
    """Return the seed for the ``take``-th attempt at a chunk. It does not depend on other chunks."""
    return int(digest_of([key, take])[:8], 16)


def plan_book(
    document: Document,
    identity: SpeechIdentity,
    silences: Silences,
    lengths: tuple[int, int] | None,
    spoken_as: Callable[[str, str], str] = lambda marked, voice: marked,
    cast: Cast | None = None,
) -> BookPlan:
    """Divide a document into chunks.

    A chunk never spans two blocks. The key of a repeated text depends on the number of its occurrence, but not on its
    position, so that an inserted paragraph does not change other chunks.

    Args:
        lengths: Desired and maximum number of characters per chunk. ``None`` means one chunk per paragraph.
        spoken_as: Function that takes a chunk's marked text and the name of its voice. It returns the text with
            everything else that the chunk's key depends on: respellings and the digest of its voice.
        cast: The voices of the quotations. Headings are narration. ``None`` means that there is no cast.

    Raises:
        UserError: There is nothing to say, or the silence after a chunk is longer than a request may ask for.
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
                f"after {shorten(chunk.text)!r} the text asks for {chunk.silence:g} s of silence, but at most "
                f"{TextLimits().silence:g} s are possible: shorten its pauses"
            )
    if not chunks:
        raise UserError("there is nothing to say, because the document has no letter or digit: choose another one")
    return BookPlan(
        tuple(chunks),
        tuple(title_of(chapter, document, number) for number, chapter in enumerate(document.chapters, 1)),
        tuple(blocks),
    )


def parts_of(text: str, lengths: tuple[int, int] | None) -> list[str]:
    """Divide a paragraph into chunks. If ``lengths`` is ``None``, it is one chunk."""
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
    """Return the title of a chapter for tables of contents.

    It is the chapter's title, its first heading, the title of the document if it is the first chapter, or "Chapter 5".
    """
    heading = next(
        (without_commands(block.text).replace("\n", " ") for block in chapter.blocks if block.kind == HEADING), ""
    )
    title = chapter.title or heading or (document.title if number == 1 else "") or f"Chapter {number}"
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "", title)[:MAX_TITLE]  # control characters could command a terminal


def silence_after(block: TextBlock, following: TextBlock | None, silences: Silences) -> float:
    if following is None:
        return silences.chapter
    if SCENE_BREAK in (block.kind, following.kind) or HEADING in (block.kind, following.kind):
        return silences.heading
    return silences.paragraph


def silence_within(part: str, silences: Silences) -> float:
    """Return the silence after a part of a paragraph, which is shorter within a sentence."""
    whole = MARKS.search(without_commands(part).rstrip(CLOSING))
    return silences.sentence if whole else min(WITHIN_SENTENCE, silences.sentence)


def texts_but_headings(chapter: BookChapter) -> list[str]:
    """Return the text of each block, and "" for headings, which are narration."""
    return [block.text if block.kind != HEADING else "" for block in chapter.blocks]


@dataclass(frozen=True)
class CastReport:
    """The quotations of a document.

    Attributes:
        counts: Number of quotations by speaker. "" means that the speaker is not known.
        doubtful: Quotations with a doubtful speaker, with the number of their chapter, from 1.
    """

    counts: dict[str, int]
    doubtful: list[tuple[int, QuotedLine]]


def cast_report(document: Document, cast: Cast | None) -> CastReport:
    """Report who speaks the quotations of a document, by the names of the cast if there is one."""
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
