"""Plan how to speak a book: divide it into chunks, and give each chunk a voice, a key and the silence after it.

A chunk is the text of one request. Its key identifies its sound in a job.
"""

import difflib
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

MAX_SILENCE = 60.0  # maximum seconds of silence between two chunks
WITHIN_SENTENCE = 0.15  # seconds of silence after a chunk that ends within a sentence
MAX_PARAGRAPH = 50_000  # characters of a paragraph to divide together, to limit memory (books have shorter ones)
CHARACTERS_PER_SECOND = 15  # speed of English read aloud with pauses, about 160 words per minute


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
    """The facts that determine how a text sounds, apart from the text.

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
    """A text that is spoken in one request.

    Attributes:
        number: Position of the chunk in the book, from 1.
        key: Key of the chunk's sound: a digest of the ``SpeechIdentity``, of the text, and of the number of earlier
            chunks with the same text.
        chapter: Index of the chapter, from 0.
        kind: Kind of the block that contains the chunk.
        silence: Seconds of silence after the chunk.
        voice: Name of the chunk's voice in the text or the cast. "" means the voice of the book.
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
        """The text, with a mark that names the chunk's voice. Keys and digests are made from this marked text."""
        return with_voice_mark(self.text, self.voice)


@dataclass(frozen=True)
class PlannedBlock:
    """A block of the document, such as a paragraph. ``kind`` and ``level`` are as in ``TextBlock``.

    Attributes:
        first: Number of the block's first chunk. A scene break has the number of the chunk after it.
        cue: Start and end of the subtitle in seconds, if the block is a subtitle.
    """

    first: int
    kind: str
    level: int = 0
    cue: tuple[float, float] | None = None


@dataclass(frozen=True)
class BookPlan:
    """All chunks of a book, the titles of its chapters, and its blocks (such as paragraphs).

    Blocks do not change the sound.
    """

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
        """Return a plan with only a part of the book. The chunks keep the keys that they have in the whole book.

        Args:
            chapters: Numbers of the chapters to speak, from 1. An empty sequence means all chapters.
            seconds: Approximate length of the speech. ``None`` means no limit.

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
            chunks = [
                chunk
                for chunk, start in zip(chunks, before, strict=False)
                if not start or start + len(chunk.text) / CHARACTERS_PER_SECOND / 2 < seconds
            ]
        numbers = {chunk.number: number for number, chunk in enumerate(chunks, 1)}
        return BookPlan(
            tuple(replace(chunk, number=numbers[chunk.number]) for chunk in chunks),
            self.chapters,
            tuple(replace(block, first=numbers[block.first]) for block in self.blocks if block.first in numbers),
        )


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value as hexadecimal text."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()


def seed_of(key: str, take: int) -> int:
    """Return the seed for attempt ``take`` at a chunk. The seed does not depend on other chunks."""
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

    A chunk never spans two blocks. A job stores the sound of a chunk under the chunk's key. The key does not depend on
    the chunk's position, so an inserted paragraph does not change the keys of other chunks. If several chunks have the
    same text, each key also depends on how many of these chunks come before.

    Args:
        lengths: Desired and maximum number of characters per chunk. ``None`` makes every paragraph one chunk.
        spoken_as: Function that takes a chunk's marked text and the name of its voice. It returns a text that becomes
            part of the chunk's key. This text has everything else that changes the sound: the respelled words and the
            digest of the voice.
        cast: The cast that gives voices to quotations. Headings are narration. ``None`` means that there is no cast.

    Raises:
        UserError: There is nothing to say, or a chunk asks for more silence than a request may contain.
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
    return BookPlan(tuple(chunks), chapter_titles(document), tuple(blocks))


def parts_of(text: str, lengths: tuple[int, int] | None) -> list[str]:
    """Divide a paragraph into the texts of chunks. If ``lengths`` is ``None``, the paragraph is one chunk."""
    if lengths is None:
        return [" ".join(text.split())] if any(map(str.isalnum, text)) else []
    slices, start = [], 0
    while len(text) - start > MAX_PARAGRAPH:
        end = text.rfind(" ", start, start + MAX_PARAGRAPH)
        end = start + MAX_PARAGRAPH if end <= start else end
        slices.append(text[start:end])
        start = end
    return [part for piece in [*slices, text[start:]] for part in split(piece, *lengths) if any(map(str.isalnum, part))]


def chapter_titles(document: Document) -> tuple[str, ...]:
    return tuple(title_of(chapter, document, number) for number, chapter in enumerate(document.chapters, 1))


def title_of(chapter: BookChapter, document: Document, number: int) -> str:
    """Return the title of a chapter for tables of contents.

    The function returns the chapter's own title. If there is none, it returns the chapter's first heading. If there is
    no heading either, it returns the document's title for the first chapter, and otherwise a text like "Chapter 5".
    """
    heading = next(
        (without_commands(block.text).replace("\n", " ") for block in chapter.blocks if block.kind == HEADING), ""
    )
    title = chapter.title or heading or (document.title if number == 1 else "") or f"Chapter {number}"
    # control characters could give commands to a terminal
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "", title)[:MAX_TITLE]


def silence_after(block: TextBlock, following: TextBlock | None, silences: Silences) -> float:
    if following is None:
        return silences.chapter
    if SCENE_BREAK in (block.kind, following.kind) or HEADING in (block.kind, following.kind):
        return silences.heading
    return silences.paragraph


def silence_within(part: str, silences: Silences) -> float:
    """Return the seconds of silence between two chunks of a paragraph.

    The silence is shorter if the first chunk ends within a sentence.
    """
    whole = MARKS.search(without_commands(part).rstrip(CLOSING))
    return silences.sentence if whole else min(WITHIN_SENTENCE, silences.sentence)


def texts_but_headings(chapter: BookChapter) -> list[str]:
    """Return the text of every block in a chapter.

    The text of a heading is "", because only the narrator speaks headings.
    """
    return [block.text if block.kind != HEADING else "" for block in chapter.blocks]


@dataclass(frozen=True)
class CastReport:
    """The speakers of a document's quotations.

    Attributes:
        counts: Number of quotations of each speaker. "" is the key of quotations with an unknown speaker.
        doubtful: Quotations whose speaker is doubtful, each with the number of its chapter, from 1.
        absent: Speakers of the cast who never speak in the document, each with the most similar name among the
            document's speakers, or with "" if no name is similar.
    """

    counts: dict[str, int]
    doubtful: list[tuple[int, QuotedLine]]
    absent: dict[str, str]


def cast_report(document: Document, cast: Cast | None) -> CastReport:
    """Find out who speaks the quotations of a document.

    If there is a cast, the report has the speakers' names from the cast.
    """
    cast = cast or Cast()
    lines = [
        (number, line)
        for number, chapter in enumerate(document.chapters, 1)
        for line in attribute(texts_but_headings(chapter), cast.speaker_named, cast.lines)
    ]
    counts = dict(Counter(line.speaker for _, line in lines if line.rule != NO_SPEECH).most_common())
    others = [speaker for speaker in counts if speaker and speaker not in cast.speakers]
    texts = [block.text.casefold() for chapter in document.chapters for block in chapter.blocks]
    return CastReport(
        counts,
        [(chapter, line) for chapter, line in lines if line.doubtful],
        {
            name: next(iter(difflib.get_close_matches(name, others, 1)), "")
            for name in cast.speakers
            if name not in counts and not any(f"[voice:{name.casefold()}]" in text for text in texts)
        },
    )
