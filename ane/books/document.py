"""A text with its structure: chapters of headings, paragraphs, list items, quotations and scene breaks."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from ane.audio.media import CoverImage
from ane.text.blocks import HEADING, LeftOutPart, TextBlock

# Limits of every format: what is longer is no book, or made to fill the memory.
MAX_FILE = 512 << 20  # bytes of a PDF, and of an archive that is piped in, with its pictures
MAX_TEXT = 16 << 20  # bytes of a text or of a part of an archive, characters of a PDF; the Bible has 4.5 MB
MAX_TITLE = 200  # characters
ABOUT = ("date", "publisher", "description", "series")  # facts for tags that a document may state of itself


@dataclass
class BookChapter:
    """A chapter. ``title``: for tables of contents, "" where there is none; it is spoken only if a block has it too."""

    title: str = ""
    blocks: list[TextBlock] = field(default_factory=list)

    @property
    def has_text(self) -> bool:
        return any(block.text for block in self.blocks)


@dataclass
class Document:
    """A whole text. ``language`` is that of the document; a block may have another.

    ``omitted``: how many parts of each kind (``ane.text.omissions.COUNTED``) are not in it. ``left_out`` names the
    parts that may hold an author's text. ``tables``: how many are in it, where its format marks them. They are read
    cell by cell. ``about``: texts by the names of ``ABOUT``.
    """

    chapters: list[BookChapter]
    title: str = ""
    author: str = ""
    language: str = ""
    cover: CoverImage | None = None
    omitted: dict[str, int] = field(default_factory=dict)
    tables: int = 0
    left_out: list[LeftOutPart] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)

    @property
    def has_text(self) -> bool:
        return any(chapter.has_text for chapter in self.chapters)


def split_at_headings(blocks: list[TextBlock]) -> list[BookChapter]:
    """Chapters of blocks without a table of contents: each begins at a heading of the level that divides the text, or
    of a higher one.
    """
    dividing = dividing_level(blocks)
    chapters = [BookChapter()]
    for block in blocks:
        if block.kind == HEADING and 0 < block.level <= dividing and chapters[-1].blocks:
            chapters.append(BookChapter())
        if not chapters[-1].title and block.kind == HEADING and not chapters[-1].has_text:
            chapters[-1].title = block.text.replace("\n", " ")
        chapters[-1].blocks.append(block)
    return [chapter for chapter in chapters if chapter.has_text]


def dividing_level(blocks: list[TextBlock]) -> int:
    """The highest level with two headings or more (a single h1 is the title of the book), or the one below it when most
    of them are titles of parts: followed at once by a lower heading. 0 without any.
    """
    levels = Counter(block.level for block in blocks if block.level)
    level = min((level for level, count in levels.items() if count > 1), default=0)
    while level:
        lower = [after.level for block, after in pairwise(blocks) if block.level == level and after.level > level]
        if 2 * len(lower) <= levels[level]:
            break
        level = min(lower)
    return level
