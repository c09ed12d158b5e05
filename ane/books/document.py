"""Define a document, which has chapters of headings, paragraphs, list items, quotations and scene breaks."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from ane.audio.media import CoverImage
from ane.text.blocks import HEADING, LeftOutPart, TextBlock

# Limits for all formats of documents. A longer file is not a book, or somebody made it to fill the memory.
MAX_FILE = 512 << 20  # bytes of a PDF, or of an archive on standard input, with its pictures
MAX_TEXT = 16 << 20  # bytes of a text file or of a file in an archive, or characters of a PDF (the Bible has 4.5 MB)
MAX_TITLE = 200  # characters of a title
ABOUT = ("date", "publisher", "description", "series")  # facts about a book that become tags of its sound files


@dataclass
class BookChapter:
    """A chapter of a document, which is a list of blocks.

    Attributes:
        title: Title for tables of contents, or "" if the chapter has none. The title is spoken only if a block has it.
    """

    title: str = ""
    blocks: list[TextBlock] = field(default_factory=list)

    @property
    def has_text(self) -> bool:
        return any(block.text for block in self.blocks)


@dataclass
class Document:
    """A whole text to speak, and facts about it.

    Attributes:
        language: Language of the document. A block may be in another language.
        omitted: Number of omitted parts of the text, by kind (``ane.text.omissions.COUNTED`` lists the kinds).
        tables: Number of tables, if the format marks tables. A voice reads tables cell by cell.
        left_out: The omitted parts that may be the author's own text.
        about: Facts about the book. The keys are names of ``ABOUT``.
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
    """Divide blocks into chapters, for a text that has no table of contents.

    A chapter starts at each heading of the dividing level (see ``dividing_level``) or of a higher level.
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
    """Return the level of the headings that start chapters, or 0 if no heading does.

    Usually, this is the highest level with at least two headings, because a single h1 is the title of the book. If most
    headings of this level are directly followed by a lower heading, they are titles of parts, and the level below
    starts chapters.
    """
    levels = Counter(block.level for block in blocks if block.level)
    level = min((level for level, count in levels.items() if count > 1), default=0)
    while level:
        lower = [after.level for block, after in pairwise(blocks) if block.level == level and after.level > level]
        if 2 * len(lower) <= levels[level]:
            break
        level = min(lower)
    return level
