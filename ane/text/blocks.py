"""Define the blocks of a structured text: headings, paragraphs, list items, quotations and scene breaks."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

HEADING, PARAGRAPH, ITEM, QUOTATION, SCENE_BREAK = "heading", "paragraph", "item", "quotation", "scene break"
FIRST_WORDS = 80  # number of characters that show a person what a part is about

# A paragraph of nothing but these signs separates two scenes: "* * *", "---", "~", "⁂".
DIVIDER = re.compile(r"[\s*#~=_•·⁂☙❦❧◆◇●○—–-]{1,40}")
INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]")  # soft hyphens and other characters that would divide a word


@dataclass(frozen=True)
class TextBlock:
    """A heading, a paragraph, a list item, a quotation or a scene break of a chapter."""

    kind: str  # ``HEADING``, ``PARAGRAPH``, ``ITEM``, ``QUOTATION`` or ``SCENE_BREAK``, which has no text
    text: str = ""  # words with single spaces between them; "\n" is a line break that matters, as in a verse
    language: str = ""  # BCP 47 tag of the block in the source; "" if there is none
    level: int = 0  # level of a heading, from 1
    cue: tuple[float, float] | None = None  # for a subtitle: the seconds at which it begins and ends


@dataclass(frozen=True)
class LeftOutPart:
    """A part of a document that is not read aloud. Its description lets a person judge whether it should be read."""

    kind: str  # reason, a key of ``ane.text.omissions.COUNTED``
    title: str = ""  # the part's title, or the name of its file
    words: str = ""  # the beginning of its text
    length: int = 0  # number of words, or 0 if they were not counted


def text_block(kind: str, text: str, language: str = "", level: int = 0) -> TextBlock | None:
    """Build a block with normalised whitespace. Returns a scene break for a divider, and ``None`` for empty text."""
    lines = [" ".join(line.split()) for line in INVISIBLE.sub("", text).split("\n")]
    text = "\n".join(line for line in lines if line)
    if not text:
        return None
    return TextBlock(SCENE_BREAK) if DIVIDER.fullmatch(text) else TextBlock(kind, text, language, level)


def left_out_part(kind: str, blocks: Iterable[TextBlock], title: str = "") -> LeftOutPart:
    """Describe a part that is left out, by its title, its first words and its length."""
    blocks = list(blocks)
    return LeftOutPart(kind, title, first_words(blocks), sum(len(block.text.split()) for block in blocks))


def first_words(blocks: Iterable[TextBlock]) -> str:
    """Return the beginning of the blocks' text, on one line."""
    words = ""
    for block in blocks:
        words = f"{words} {block.text[: 2 * FIRST_WORDS]}".strip()
        if len(words) > FIRST_WORDS:
            return " ".join(words.split())[: FIRST_WORDS - 1].rstrip() + "…"
    return " ".join(words.split())
