"""Read a PDF as chapters. The positions and sizes of its lines show which lines form paragraphs and headings.

A separate process with limits extracts the lines, because PDFium is written in C++.
"""

import importlib.util
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ane.books.document import MAX_FILE, MAX_TEXT, MAX_TITLE, Document, dividing_level, split_at_headings
from ane.books.front_matter import without_front_matter
from ane.books.plain_text import BARE_NUMBER, CONTENTS_LINE, NUMBERED_HEADING, heading_level, with_whole_titles
from ane.system.child_process import ChildProcess
from ane.system.errors import UserError
from ane.text.blocks import DIVIDER, HEADING, PARAGRAPH, LeftOutPart, TextBlock, left_out_part, text_block
from ane.text.hyphens import joined_lines, without_hyphens
from ane.text.omissions import OMISSIONS, PAGE_NUMBER, Omission, counted_omissions, is_front_title

MAX_PAGES = 5000
MAX_ANSWER = 128 << 20  # maximum bytes of JSON that the process may answer
MEMORY, CPU_SECONDS, SECONDS = 2 << 30, 120, 240  # limits of the process: bytes, CPU time, elapsed time
OPENING = ("“", "‘", '"', "«", "—", "–")
LARGER = 1.15  # minimum letter size of a heading, relative to the text
SMALLER = 0.92  # maximum letter size of a footnote, relative to the text
GAP = 1.35  # minimum gap between two paragraphs, relative to the gap between lines
REPEATED = 3  # a line at the edge of this many pages is a running head
NOTE_START = re.compile(r"[\[(]?(?:\d{1,3}|[*†‡])[\])]?[.:]?\s")
SENTENCE_END = re.compile(r"[.!?:…][\"'”’)\]]*$")
OUTER_NUMBER = re.compile(r"^(\d{1,4})\s+\S|\S\s+(\d{1,4})$")


class PdfLine(NamedTuple):
    """A line of text, with its position on the page in points.

    Attributes:
        last: Bottom of the line's last part. If the line ends with a divided word, this is the bottom of the next line.
        size: Height of its letters.
    """

    text: str
    left: float
    right: float
    bottom: float
    last: float
    size: float


def read_pdf(path: Path, rules: Mapping[str, Omission]) -> Document:
    """Read a PDF without the text that ``rules`` omit. Raises UserError if it is damaged, protected or has no text."""
    return document_of_lines(extracted(path), rules)


def document_of_lines(content: Mapping[str, Any], rules: Mapping[str, Omission] = OMISSIONS) -> Document:
    """Make a document from the answer of ``ane.books.pdf_lines``. Raises UserError if it contains no text."""
    pages = [[PdfLine(*line) for line in page] for page in content["pages"]]
    if not any(pages):
        raise UserError(
            f"it has {len(pages)} pages without text, so it may be scanned: recognise its text first, for example with "
            "ocrmypdf"
        )
    omitted = Counter[str](images=content["images"])
    sizes = Counter[float]()
    for page in pages:
        for line in page:
            sizes[line.size] += len(line.text)
    body = sizes.most_common(1)[0][0]
    if "page-numbers" in rules:
        pages = without_edges(pages, body, omitted)
    if "footnotes" in rules:
        pages = [without_notes(page, body, omitted) for page in pages]
    left_out: list[LeftOutPart] = []
    if "front-matter" in rules:
        dotted = [line.text for page in pages for line in page if CONTENTS_LINE.search(line.text[-100:])]
        pages = [[line for line in page if not CONTENTS_LINE.search(line.text[-100:])] for page in pages]
        left_out += [left_out_part("front-matter", [TextBlock(PARAGRAPH, "\n".join(dotted))])] if dotted else []
    groups = list(paragraphs(pages, body))
    texts, omitted["hyphens"] = without_hyphens([joined_lines([line.text for line in lines]) for lines in groups])
    omitted["front-matter"] += len(left_out)
    chapters = split_at_headings(with_whole_titles(blocks(texts, groups, body)))
    return Document(
        without_front_matter(chapters, rules, omitted, left_out),
        content["title"].strip(),
        content["author"].strip(),
        omitted=counted_omissions(omitted),
        left_out=left_out,
    )


def extracted(path: Path) -> dict[str, Any]:
    """Extract the lines of a PDF in a separate process, and return its answer.

    Raises:
        UserError: The answer is an error, or the process exceeds a limit.
    """
    if importlib.util.find_spec("pypdfium2") is None:
        raise UserError("it is a PDF, which needs pypdfium2: pip install '.[books]', or convert it to EPUB")
    if path.stat().st_size > MAX_FILE:
        raise UserError(f"it has more than {MAX_FILE >> 20} MB, more than any book: divide it")
    with tempfile.TemporaryFile() as answer:
        process = ChildProcess(
            "ane.books.pdf_lines",
            (str(path), str(MAX_PAGES), str(MAX_TEXT)),
            stdout=answer,
            stderr=subprocess.DEVNULL,
            memory=MEMORY,
            cpu_seconds=CPU_SECONDS,
            file_bytes=MAX_ANSWER,
        )
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            status = 1
        finally:
            process.kill()  # has no effect on a process that has ended
            process.wait()
        if status:
            raise UserError(
                "it is a PDF that cannot be read within the limits of time and memory: convert it to EPUB "
                "first, for example with Calibre"
            )
        answer.seek(0)
        content: dict[str, Any] = json.load(answer)
    if "error" in content:
        raise UserError(content["error"])
    return content


def without_edges(pages: Sequence[Sequence[PdfLine]], body: float, omitted: Counter[str]) -> list[list[PdfLine]]:
    """Remove page numbers, and lines that several pages have at their top or bottom."""
    heads = Counter(page[index].text for page in pages for index in edges(page))
    offsets = Counter(
        offset
        for number, page in enumerate(pages)
        for offset in {page_offset(page[index], number) for index in edges(page)} - {None}
    )
    result = []
    for number, page in enumerate(pages):
        removed = set[int]()
        for index in edges(page):
            line = page[index]
            if line.size >= LARGER * body:
                continue
            bare = BARE_NUMBER.fullmatch(line.text.upper()) and (index or len(page) == 1 or line.text.isdigit())
            if bare or PAGE_NUMBER.fullmatch(line.text):
                omitted["page-numbers"] += 1
            elif max(heads[line.text], offsets[page_offset(line, number)]) >= REPEATED:
                omitted["running-heads"] += 1
            else:
                continue
            removed.add(index)
        result.append([line for index, line in enumerate(page) if index not in removed])
    return result


def edges(page: Sequence[PdfLine]) -> list[int]:
    """Return the indices of the lines at the top and at the bottom of a page."""
    bottoms = [round(line.bottom) for line in page]
    outer = {min(bottoms), max(bottoms)} if bottoms else set()
    return [index for index, bottom in enumerate(bottoms) if bottom in outer]


def page_offset(line: PdfLine, page: int) -> int | None:
    """Return the number at an end of a line minus the page's index, or ``None`` if there is no number.

    For page numbers, the difference is the same on all pages.
    """
    number = OUTER_NUMBER.search(line.text)
    if number is None:
        return None
    place = 1 if number[1] else 2
    rest = (line.text[: number.start(place)] + line.text[number.end(place) :]).strip()
    if NUMBERED_HEADING.fullmatch(line.text) and not NUMBERED_HEADING.fullmatch(rest):  # the line is a chapter's title
        return None
    return int(number[place]) - page


def without_notes(page: list[PdfLine], body: float, omitted: Counter[str]) -> list[PdfLine]:
    """Remove the lines at the end of a page that are small and start like footnotes."""
    end = len(page)
    while end and page[end - 1].size < SMALLER * body:
        end -= 1
    notes = page[end:]
    if not notes or not NOTE_START.match(notes[0].text):
        return page
    omitted["footnotes"] += sum(NOTE_START.match(line.text) is not None for line in notes)
    return page[:end]


def paragraphs(pages: Sequence[Sequence[PdfLine]], body: float) -> Iterator[list[PdfLine]]:
    """Yield the lines of each paragraph or heading. A paragraph may continue on the next page."""
    gaps = [
        above.last - below.bottom
        for page in pages
        for above, below in pairwise(page)
        if above.size == below.size == body
    ]
    usual = median(gaps) if gaps else 2 * body
    held: list[PdfLine] = []
    bodies = [[line for line in page if line.size == body] or page for page in pages]
    ends = [max((line.right for line in texts), default=0.0) for texts in bodies]
    margins = [margin_of(texts, end) if texts else 0 for texts, end in zip(bodies, ends, strict=True)]
    indent = first_line_indent(bodies, margins)
    for page, end, most in zip(pages, ends, margins, strict=True):
        # Most lines on a page of dialogue are first lines of paragraphs
        margin = most - indent if most - indent in margins else most
        for index, line in enumerate(page):
            if held:
                above = held[-1]
                short = above.right < end - 0.25 * (end - margin)
                far = index > 0 and above.last - line.bottom > GAP * usual * line.size / body
                indented = line.left > margin + 0.7 * line.size and above.left < line.left - 0.7 * line.size
                first = indent > 0 and abs(line.left - margin - indent) < 0.3 * line.size
                ended = SENTENCE_END.search(above.text) and (
                    short or first or heading_level(line.text) or begins_dialogue(above, line, margin, end)
                )
                alone = is_front_title(held[0].text) or any(DIVIDER.fullmatch(one.text) for one in (above, line))
                if abs(above.size - line.size) > 0.06 * body or far or indented or ended or alone:
                    yield held
                    held = []
            held.append(line)
    if held:
        yield held


def first_line_indent(pages: Sequence[Sequence[PdfLine]], margins: Sequence[int]) -> int:
    """Return by how many points the first lines of most paragraphs are indented, or 0 if they are not.

    A first line is between two lines at the margin.
    """
    offsets = Counter(
        round(line.left) - margin
        for page, margin in zip(pages, margins, strict=True)
        for above, line, below in zip(page, page[1:], page[2:], strict=False)
        if round(above.left) == round(below.left) == margin and line.left > margin + 0.7 * line.size
    )
    return offsets.most_common(1)[0][0] if offsets else 0


def margin_of(texts: Sequence[PdfLine], end: float) -> int:
    """Return the left margin of a page, where most lines start.

    If these lines are indented, the margin is farther left.
    """
    most = Counter(round(line.left) for line in texts).most_common(1)[0][0]
    return min(
        [
            most,
            *(
                round(line.left)
                for above, line in pairwise(texts)
                if round(above.left) == most
                and line.left < most - 0.7 * line.size
                and above.right > end - 0.25 * (end - most)
                and not SENTENCE_END.search(above.text)
            ),
        ]
    )


def begins_dialogue(above: PdfLine, line: PdfLine, margin: float, end: float) -> bool:
    """Return whether a line starts a paragraph, as in dialogue, although the line above has the same indent.

    The line starts a paragraph if it begins with a quotation, or if its first word would have fitted into the line
    above.
    """
    if abs(above.left - line.left) > 0.3 * line.size or line.left <= margin + 0.7 * line.size:
        return False
    letter = (line.right - line.left) / max(1, len(line.text))
    return line.text.startswith(OPENING) or above.right + (len(line.text.split(maxsplit=1)[0]) + 2) * letter < end


def blocks(texts: Sequence[str], groups: Sequence[Sequence[PdfLine]], body: float) -> list[TextBlock]:
    """Decide which texts of a PDF are headings and which are paragraphs. ``groups`` has the lines of each text.

    Headings are larger than the body text, and the largest headings have the highest level. If all lines are equally
    large, the words of a line decide whether it is a heading. A title such as "Contents" is always a heading.
    """
    sizes = [
        round(lines[0].size) if lines[0].size >= LARGER * body and len(text) <= MAX_TITLE else 0
        for text, lines in zip(texts, groups, strict=True)
    ]
    ranks = {size: min(rank, 6) for rank, size in enumerate(sorted({*sizes} - {0}, reverse=True), 1)}
    result = []
    for text, lines, size in zip(texts, groups, sizes, strict=True):
        level = ranks.get(size, 0) if ranks else heading_level(text, len(lines))
        result.append(text_block(HEADING if level else PARAGRAPH, text, level=level))
    found = [block for block in result if block]
    level = max(1, dividing_level(found))
    return [
        replace(block, kind=HEADING, level=level)
        if is_front_title(block.text) and not 0 < block.level < level
        else block
        for block in found
    ]
