"""Define the blocks of a structured text: headings, paragraphs, list items, quotations and scene breaks."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

HEADING, PARAGRAPH, ITEM, QUOTATION, SCENE_BREAK = "heading", "paragraph", "item", "quotation", "scene break"
FIRST_WORDS = 80  # characters that show what a part is about

# A paragraph of nothing but these signs separates two scenes: "* * *", "---", "~", "⁂".
DIVIDER = re.compile(r"[\s*#~=_•·⁂☙❦❧◆◇●○—–-]{1,40}")
INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]")  # soft hyphens and the like, which would divide a word


@dataclass(frozen=True)
class TextBlock:
    """A part of a chapter that is read without interruption."""

    kind: str  # ``HEADING``, ``PARAGRAPH``, ``ITEM`` of a list, ``QUOTATION``; ``SCENE_BREAK``: no text
    text: str = ""  # with single spaces; a line break of the source that matters (a verse) is "\n"
    language: str = ""  # BCP 47 tag that the source states for it
    level: int = 0  # of a heading, from 1
    cue: tuple[float, float] | None = None  # seconds at which a subtitle begins and ends, if they are known


@dataclass(frozen=True)
class LeftOutPart:
    """A part of a document that is not read aloud, with enough of it for a person to tell whether it should be."""

    kind: str  # of ``ane.text.omissions.COUNTED``
    title: str = ""  # the part's title, or the name of its file
    words: str = ""  # the beginning of its text
    length: int = 0  # in words, or 0 if nobody counted them


def text_block(kind: str, text: str, language: str = "", level: int = 0) -> TextBlock | None:
    """Build a block with normalised whitespace. A divider becomes a scene break, and empty text ``None``."""
    lines = [" ".join(line.split()) for line in INVISIBLE.sub("", text).split("\n")]
    text = "\n".join(line for line in lines if line)
    if not text:
        return None
    return TextBlock(SCENE_BREAK) if DIVIDER.fullmatch(text) else TextBlock(kind, text, language, level)


def left_out_part(kind: str, blocks: Iterable[TextBlock], title: str = "") -> LeftOutPart:
    """Describe a part that is made of blocks: its title, its first words and its length."""
    blocks = list(blocks)
    return LeftOutPart(kind, title, first_words(blocks), sum(len(block.text.split()) for block in blocks))


def first_words(blocks: Iterable[TextBlock]) -> str:
    """Return the beginning of a text, on one line."""
    words = ""
    for block in blocks:
        words = f"{words} {block.text[: 2 * FIRST_WORDS]}".strip()
        if len(words) > FIRST_WORDS:
            return " ".join(words.split())[: FIRST_WORDS - 1].rstrip() + "…"
    return " ".join(words.split())
