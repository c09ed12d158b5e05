"""Read plain text and subtitles as chapters. The wording of lines shows headings, lists and scene breaks."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import unescape

from ane.books.document import BookChapter, Document, split_at_headings
from ane.books.front_matter import are_entries, without_front_matter
from ane.books.printed_pages import without_printed_pages
from ane.system.errors import UserError
from ane.text.blocks import (
    DIVIDER,
    HEADING,
    ITEM,
    PARAGRAPH,
    SCENE_BREAK,
    LeftOutPart,
    TextBlock,
    left_out_part,
    text_block,
)
from ane.text.hyphens import joined_lines, without_hyphens
from ane.text.omissions import BRACKETED_MARK, NOTE_PARAGRAPH, PAGE_NUMBER, Omission, counted_omissions, is_front_title

# lines that Project Gutenberg puts before and after a text
BOILERPLATE = re.compile(r"(?m)^\*{3} ?(START|END) OF TH[EI]S? PROJECT GUTENBERG EBOOK.*$")
NUMBER_WORDS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|"
    "seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|first|second|third|fourth|fifth|last"
)
NUMBER = rf"(?:the\s+)?(?:\d{{1,4}}|[ivxlcdm]{{1,10}}|(?:{NUMBER_WORDS})(?:[- ](?:{NUMBER_WORDS}))?)"
LARGE_PARTS, SMALL_PARTS = "chapter|part|book|volume|canto", "act|scene|letter|section"
NAMES = "prologue|epilogue|preface|foreword|introduction|afterword|interlude|appendix|conclusion"
NUMBERED_HEADING = re.compile(rf"(?i)(?:{LARGE_PARTS}|{SMALL_PARTS})\s+{NUMBER}\b.*")
NAMED_HEADING = re.compile(
    rf"(?i)(?:{NAMES}|dedication|acknowledg[e]?ments|(?:table of )?contents|copyright)\b[^.!?,;]{{0,60}}[.:]?"
)
# a heading with a title, which may end as a sentence does
TITLED_HEADING = re.compile(
    rf"(?i:(?P<large>(?:{LARGE_PARTS})\s+{NUMBER})|(?:{SMALL_PARTS})\s+{NUMBER}|{NAMES})"
    r"\s?[.:—–-]\s*(?P<title>[“‘\"']?[A-Z\d].*)"
)
# lines in capitals that are not titles: the end of a book, an author's initials, lines about rights, and tables of
# contents
NO_TITLE = re.compile(
    r"(?:the end|fin|finis|end of (?:the |book |part |volume ).*)\W*|"
    r"(?:by )?(?:[a-z]\.\s?){2,4}[a-z].*|"
    r".*\bisbn\b.*|.*©.*|.*(?:\s?\.){4,}\s*\w{1,6}",
    re.IGNORECASE,
)
BARE_NUMBER = re.compile(r"(?:[IVXLC]{1,8}|\d{1,3})\.?")
NUMBER_ALONE = re.compile(rf"(?i)(?:(?:{LARGE_PARTS}|{SMALL_PARTS})\s+)?{NUMBER}[.:]?")
SMALL_WORD = re.compile(r"\b[a-z]\w{3,}")  # a word that has a capital in a title
CONTENTS_LINE = re.compile(r"(?:\s?\.){4,}\s*\w{1,6}$")  # the dots and the page number after a title
LIST_ITEM = re.compile(r"[ \t]*(?:[-*+•–][ \t]+|\(?\d{1,3}[.)][ \t]+(?=\S))")
MAX_HEADING = 90  # maximum characters of a heading
LEVELS = {"part": 1, "book": 1, "volume": 1}

CUE_TIME = r"(?:(\d{1,3}):)?(\d\d):(\d\d)[,.](\d{1,3})"
CUE_TIMES = re.compile(rf"{CUE_TIME}[ \t]*-->[ \t]*{CUE_TIME}.*")
NOT_SPOKEN = re.compile(r"(?:WEBVTT|NOTE|STYLE|REGION)\b")  # blocks of WebVTT that are not subtitles
CUE_MARKUP = re.compile(r"</?[a-zA-Z\d][^<>\n]{0,100}>|\{\\[^{}\n]{0,100}\}")
CUE_PAUSE = 2.0  # seconds without a subtitle after which a new paragraph starts


def read_plain_text(text: str, rules: Mapping[str, Omission]) -> Document:
    """Read plain text, leaving out the text that ``rules`` omit.

    Empty lines separate paragraphs. If the text has no empty lines, every line is a paragraph.
    """
    omitted, left_out = Counter[str](), list[LeftOutPart]()
    if "front-matter" in rules and (inner := without_boilerplate(text)) != text:
        omitted["front-matter"] += 1
        left_out.append(
            LeftOutPart(
                "front-matter", "notes and licence of Project Gutenberg", length=len(text.split()) - len(inner.split())
            )
        )
        text = inner
    if "page-numbers" in rules:
        text = without_printed_pages(text, omitted)
    parts = re.split(r"\n(?:[ \t]*\n)+", text)
    if len(parts) == 1 and text.count("\n") > 1:
        parts = text.split("\n")
    blocks: list[TextBlock] = []
    listing = False  # whether the paragraph before is in a table of contents
    dotted: list[str] = []  # lines of a table of contents that has no title
    for part in parts:
        lines = spoken_lines(part, rules, omitted)
        if "front-matter" in rules and not listing and not is_front_title("".join(lines[:1]).strip()):
            dotted += [line for line in lines if CONTENTS_LINE.search(line[-100:])]
            lines = [line for line in lines if not CONTENTS_LINE.search(line[-100:])]
        if len(lines) > 1 and is_front_title(lines[0].strip()) and are_entries(lines[1:]):
            blocks += _blocks(lines[:1], rules)
            lines, listing = lines[1:], True
        listing = listing and (not lines or are_entries(lines))
        if listing and len(lines) > 1:
            blocks += [block for block in [text_block(PARAGRAPH, "\n".join(lines))] if block]
        elif lines:
            new = _blocks(lines, rules)
            blocks += new
            listing = listing or any(block.kind == HEADING and is_front_title(block.text) for block in new)
    if dotted:
        omitted["front-matter"] += 1
        left_out.append(left_out_part("front-matter", [TextBlock(PARAGRAPH, "\n".join(dotted))]))
    texts, omitted["hyphens"] = without_hyphens([block.text for block in blocks])
    blocks = [replace(block, text=text) for block, text in zip(blocks, texts, strict=True)]
    chapters = without_front_matter(split_at_headings(with_whole_titles(blocks)), rules, omitted, left_out)
    return Document(chapters, omitted=counted_omissions(omitted), left_out=left_out)


def without_boilerplate(text: str) -> str:
    """Return the text between the lines with which Project Gutenberg marks its start and end."""
    marks = {mark[1]: mark for mark in BOILERPLATE.finditer(text)}
    start = marks["START"].end() if "START" in marks else 0
    end = marks["END"].start() if "END" in marks else len(text)
    return text[start:end] if start < end else text


def spoken_lines(part: str, rules: Mapping[str, Omission], omitted: Counter[str]) -> list[str]:
    """Return a paragraph's lines without page numbers. If ``rules`` omit the paragraph as a footnote, return []."""
    lines = [line for line in part.split("\n") if line.strip()]
    if "page-numbers" in rules:
        text_lines = [line for line in lines if not PAGE_NUMBER.fullmatch(line.strip())]
        omitted["page-numbers"] += len(lines) - len(text_lines)
        lines = text_lines
    if lines and "footnotes" in rules:
        if NOTE_PARAGRAPH.fullmatch(lines[0].strip()):
            omitted["footnotes"] += 1
            return []
        omitted["marks"] += sum(len(BRACKETED_MARK.findall(line)) for line in lines)
    return lines


def _blocks(lines: Sequence[str], rules: Mapping[str, Omission]) -> list[TextBlock]:
    """Return the blocks of a paragraph: one block, or one per item if the paragraph is a list."""
    if all(DIVIDER.fullmatch(line) for line in lines):
        return [TextBlock(SCENE_BREAK)]
    if LIST_ITEM.match(lines[0]) and (len(lines) > 1 or not BARE_NUMBER.fullmatch(lines[0].strip())):
        items: list[str] = []
        for line in lines:
            if LIST_ITEM.match(line) or not items:
                items.append(LIST_ITEM.sub("", line, count=1))
            else:
                items[-1] = joined_lines([items[-1], line.lstrip()])
        return [block for item in items if (block := text_block(ITEM, _spoken(item, rules)))]
    text = _spoken(joined_lines([line.strip() for line in lines]), rules)
    level = heading_level(" ".join(text.split()), len(lines))
    block = text_block(HEADING if level else PARAGRAPH, text, level=level)
    return [block] if block else []


def heading_level(line: str, lines: int = 1) -> int:
    """Return the level of a title: 1 for the title of a part, 2 for a chapter, and 0 for text that is not a title."""
    if len(line) > MAX_HEADING or lines > 2:
        return 0
    titled = TITLED_HEADING.fullmatch(line)
    word = line.split()[0].lower() if line else ""
    if titled and not CONTENTS_LINE.search(line) and (titled["large"] or not SMALL_WORD.search(titled["title"])):
        return LEVELS.get(word, 2)
    if NUMBERED_HEADING.fullmatch(line) and not CONTENTS_LINE.search(line):
        ends_as_text = line.endswith((".", ",", ";")) and not line.isupper() and len(line.split()) > 4
        return 0 if ends_as_text else LEVELS.get(word, 2)
    if NAMED_HEADING.fullmatch(line) or BARE_NUMBER.fullmatch(line):
        return 2
    if NO_TITLE.fullmatch(line):
        return 0
    letters = sum(map(str.isalpha, line))
    return 2 if lines == 1 and letters > 3 and line.isupper() and not line.endswith(("!", "?", ",", ";")) else 0


def with_whole_titles(blocks: Sequence[TextBlock]) -> list[TextBlock]:
    """Join a heading that is only a number with the heading directly after it, which is the title."""
    result: list[TextBlock] = []
    for block in blocks:
        above = result[-1] if result and result[-1].kind == block.kind == HEADING else None
        if (
            above
            and NUMBER_ALONE.fullmatch(above.text)
            and not (
                NUMBERED_HEADING.fullmatch(block.text)
                or NUMBER_ALONE.fullmatch(block.text)
                or NAMED_HEADING.fullmatch(block.text)
            )
        ):
            result[-1] = replace(above, text=f"{above.text}\n{block.text}", level=min(above.level, block.level))
        else:
            result.append(block)
    return result


def _spoken(text: str, rules: Mapping[str, Omission]) -> str:
    return BRACKETED_MARK.sub("", text) if "footnotes" in rules else text


def read_subtitles(text: str, keep_timing: bool = False) -> Document:
    """Read subtitles (SubRip or WebVTT), and join them to paragraphs.

    A paragraph ends if no subtitle is shown for more than ``CUE_PAUSE`` seconds.

    Args:
        keep_timing: Whether every subtitle becomes a separate paragraph that keeps its times.

    Raises:
        UserError: No line has the times of a subtitle.
    """
    paragraphs: list[tuple[float, float, list[str]]] = []  # start, end, lines
    web = text.startswith("WEBVTT")
    for cue in re.split(r"\n(?:[ \t]*\n)+", text.strip()):
        lines = cue.split("\n")
        times = next((index for index, line in enumerate(lines[:2]) if CUE_TIMES.fullmatch(line.strip())), None)
        if times is None:
            if paragraphs and not (web and NOT_SPOKEN.match(cue)):  # an empty line divides one subtitle
                paragraphs[-1][2].extend(lines)
            continue
        match = CUE_TIMES.fullmatch(lines[times].strip())
        start, end = (_seconds(*match.groups("0")[at : at + 4]) for at in (0, 4))  # type: ignore[union-attr]
        if paragraphs and not keep_timing and start - paragraphs[-1][1] <= CUE_PAUSE:
            begun, _, before = paragraphs.pop()
            before.extend(lines[times + 1 :])
            paragraphs.append((begun, end, before))
        else:
            paragraphs.append((start, end, lines[times + 1 :]))
    if not paragraphs:
        raise UserError("it has no line with times such as 00:00:01,000 --> 00:00:02,500")
    blocks = []
    for start, end, lines in sorted(paragraphs, key=lambda paragraph: paragraph[0]) if keep_timing else paragraphs:
        spoken = CUE_MARKUP.sub("", " ".join(lines))
        block = text_block(PARAGRAPH, unescape(spoken) if web else spoken)
        if block and block.text:
            blocks.append(replace(block, cue=(start, end)) if keep_timing else block)
    return Document([BookChapter("", blocks)])


def _seconds(hours: str, minutes: str, seconds: str, fraction: str) -> float:
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds) + int(fraction.ljust(3, "0")) / 1000
