"""Test that the time for reading documents and dividing them into chunks grows no faster than their length.

    python -m tools.campaigns growth [--cases NAME,NAME] [--scale 1] [-o FILE.json]

Every document is made at a quarter, at half and at the whole of a size. A doubled length may take ``MOST`` times as
long, and the whole size may take ``SECONDS``. Times are CPU seconds of this process and its children. A high time is
measured twice, and the lower time counts. The exit status is 1 if a case is slower. ``--scale`` multiplies all sizes.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ane.books.document import BookChapter, Document, dividing_level
from ane.books.pdf import PdfLine, document_of_lines
from ane.books.plan import Silences, SpeechIdentity, cast_report, plan_book
from ane.books.reading import read_document
from ane.system.errors import UserError
from ane.system.files import write_json
from ane.text import read_passages
from ane.text.blocks import HEADING, PARAGRAPH, TextBlock
from ane.text.cast import Cast
from ane.text.markdown import MarkdownFeed
from ane.text.passages import read_pauses
from tests.books.book_files import paragraph, run, write_book, write_docx, write_pdf

MOST = 3.0  # maximum ratio of times for a doubled length: 2, with room for noise from other programs
SECONDS = 60.0
NOISE = 0.05  # seconds below which a time is not compared
LENGTHS = (200, 300)  # desired and maximum characters of a chunk
RESULT = Path(__file__).parent / "results" / "growth.json"
NAV = '<item id="nav" href="nav.xhtml" properties="nav" media-type="application/xhtml+xml"/>'
DIALOGUE = (
    "“Come here,” said Anna. “Why?” asked Ben, smiling. “I said so.” She laughed. “He said: ‘No.’” ",
    "“Yes,” groaned the old man. ",
    "‘Well,’ the cook whispered, ‘who knows…’ ",
)


class Growth(NamedTuple):
    """A kind of document and its largest size.

    Attributes:
        size: Size of the largest document.
        write: Function that makes a document of a size. It takes a folder and the size.
        read: Function that reads the result of ``write``.
    """

    size: int
    write: Callable[[Path, int], Any]
    read: Callable[[Any], object]


def planned(document: Document, cast: Cast | None = None) -> None:
    plan_book(document, SpeechIdentity("model", "voice", {}, 1), Silences(), LENGTHS, cast=cast)


def whole(path: Path) -> None:
    """Read a document, and divide it into chunks."""
    planned(read_document(path))


def text(name: str, content: Callable[[int], str]) -> Callable[[Path, int], Path]:
    def write(folder: Path, size: int) -> Path:
        (folder / name).write_text(content(size), encoding="utf-8")
        return folder / name

    return write


def copyrights(folder: Path, size: int) -> Path:
    """Write a book of files titled Copyright, which are all in the contents, and one other file."""
    documents = {f"{number}.xhtml": "<h1>Copyright</h1><p>A.</p>" for number in range(size)} | {"z.xhtml": "<p>B.</p>"}
    links = "".join(f'<li><a href="{number}.xhtml">Copyright</a></li>' for number in range(size))
    return write_book(folder / "a.epub", documents, NAV, {"OEBPS/nav.xhtml": f"<nav><ol>{links}</ol></nav>"})


def manifest(folder: Path, size: int) -> Path:
    """Write a book with 25 files in its manifest for every text."""
    items = "".join(f'<item id="x{n}" href="x{n}.png" media-type="image/png"/>' for n in range(25 * size))
    return write_book(folder / "a.epub", {f"{number}.xhtml": "<p>A.</p>" for number in range(size)}, items)


def fallbacks(folder: Path, size: int) -> Path:
    """Write a chain of fallbacks that leads to one text. The spine contains every file of the chain."""
    items = "".join(
        f'<item id="x{number}" href="x{number}.png" media-type="image/png" '
        f'fallback="{f"x{number + 1}" if number + 1 < size else "d0"}"/>'
        for number in range(size)
    )
    return write_book(
        folder / "a.epub",
        {"a.xhtml": "<p>A.</p>"},
        items,
        spine="".join(f'<itemref idref="x{number}"/>' for number in range(size)),
    )


def anchors(folder: Path, size: int) -> Path:
    """Write a file with many anchors, each of which is an entry of the contents."""
    links = "".join(f'<li><a href="a.xhtml#n{n}">{"Copyright" if n else "A"}</a></li>' for n in range(size))
    body = "".join(f'<h2 id="n{n}">A</h2><p>B.</p>' for n in range(size))
    return write_book(folder / "a.epub", {"a.xhtml": body}, NAV, {"OEBPS/nav.xhtml": f"<nav><ol>{links}</ol></nav>"})


def pdf_lines(words: str) -> Callable[[Path, int], Any]:
    """Make lines of a PDF, 40 per page."""

    def write(folder: Path, size: int) -> Any:
        return [
            [
                PdfLine(
                    words.format(number + 40 * page),
                    50.0 + 20 * (number % 4 == 0),
                    300.0,
                    550.0 - 12 * number,
                    550.0 - 12 * number,
                    11.0,
                )
                for number in range(40)
            ]
            for page in range(size // 40)
        ]

    return write


def of_lines(pages: Any) -> None:
    document_of_lines({"pages": pages, "images": 0, "title": "", "author": ""})


def pdf_file(folder: Path, size: int) -> Path:
    """Write a PDF with pages of 200 small lines."""
    return write_pdf(
        folder / "a.pdf",
        [[(50, 590 - 2.9 * number, 2.5, f"line {number}.") for number in range(200)] for _ in range(size // 200)],
    )


def pdf_word(folder: Path, size: int) -> Path:
    """Write a PDF with one word, which it draws 1000 letters at a time."""
    path = write_pdf(folder / "a.pdf", [[(50, 500, 11, "^^^^^^".join(["a" * 1000] * (size // 1000)))]])
    path.write_bytes(path.read_bytes().replace(b"^^^^^^", b")Tj  ("))
    return path


def fed_markdown(written: str) -> None:
    """Feed a text ten characters at a time."""
    reader = MarkdownFeed()
    for at in range(0, len(written), 10):
        reader.feed(written[at : at + 10])
    reader.finish()


def cast_lines(document: Document) -> None:
    """Find who speaks each quotation, and mark the voices."""
    cast = Cast(speakers={"Anna": "a", "Ben": "b"}, quotations="c")
    cast_report(document, cast)
    planned(document, cast)


def quoted(one_paragraph: bool) -> Callable[[Path, int], Document]:
    def write(folder: Path, size: int) -> Document:
        texts = [DIALOGUE[number % 3] for number in range(size)]
        blocks = [TextBlock(PARAGRAPH, part) for part in (["".join(texts)] if one_paragraph else texts)]
        return Document([BookChapter("", blocks)])

    return write


def docx_paragraphs(folder: Path, size: int) -> Path:
    body = "".join(paragraph(run(f"Text {number}."), "H" if number % 2 else "") for number in range(size))
    return write_docx(
        folder / "a.docx",
        body,
        styles='<w:styles><w:style w:styleId="H"><w:name w:val="heading 1"/></w:style></w:styles>',
    )


WORD = 16_000_000
CASES = {
    "levels of headings": Growth(
        400_000, lambda folder, size: [TextBlock(HEADING, "A", level=1)] * size, dividing_level
    ),
    "headings of Markdown": Growth(80_000, text("a.md", lambda size: "# A\n\n" * size + "Text."), whole),
    "headings in levels": Growth(
        80_000,
        text(
            "a.html",
            lambda size: "".join(f"<h{number % 6 + 1}>A</h{number % 6 + 1}>" for number in range(size)) + "<p>Text.",
        ),
        whole,
    ),
    "headings of text": Growth(
        80_000,
        text("a.txt", lambda size: "".join(f"CHAPTER {number % 1000}\n\nText.\n\n" for number in range(size))),
        whole,
    ),
    "contents of text": Growth(80_000, text("a.txt", lambda size: "CONTENTS\n\nOne\n\nText.\n\n" * size), whole),
    "paragraphs": Growth(200_000, text("a.txt", lambda size: "It rained.\n\n" * size), whole),
    "front matter in elements": Growth(80_000, text("a.html", lambda size: "<p class=copyright>A</p>B." * size), whole),
    "chapters titled Copyright": Growth(19_000, copyrights, whole),
    "parts and manifest": Growth(2000, manifest, whole),
    "fallbacks": Growth(60_000, fallbacks, whole),
    "places in a file": Growth(60_000, anchors, whole),
    "paragraphs of Word": Growth(60_000, docx_paragraphs, whole),
    "subtitles": Growth(
        80_000,
        text(
            "a.srt",
            lambda size: "".join(
                f"{n}\n{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02},000 --> "
                f"{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02},500\nHello.\n\n"
                for n in range(size)
            ),
        ),
        whole,
    ),
    "divided words of text": Growth(
        400_000,
        text(
            "a.txt",
            lambda size: "".join(f"They read of the twenty{number}-\none and went on. " for number in range(size // 2)),
        ),
        read_document,
    ),
    "printed pages of text": Growth(
        100_000,
        text("a.txt", lambda size: "".join(f"THE TURTLE\n\nit was the\n\n{number}\n\n" for number in range(size))),
        read_document,
    ),
    "Markdown of a request": Growth(60_000, lambda folder, size: "# One\n\n- **a** [b](c.md)\n" * size, read_passages),
    "open marks of a request": Growth(
        1_000_000, lambda folder, size: "**a** " + ("[a](`*~~$x\\[" * size)[:size], read_passages
    ),
    "Markdown that arrives": Growth(
        4_000_000, lambda folder, size: ("| a |\n```\nb\n```\nc `d` " * size)[:size], fed_markdown
    ),
    "lines of PDF": Growth(1_000_000, pdf_lines("It was the line of number {} and it went on to its end"), of_lines),
    "lines of PDF with hyphens": Growth(400_000, pdf_lines("the be\x02gin{}ning and the well-"), of_lines),
    "quotations in paragraphs": Growth(40_000, quoted(False), cast_lines),
    "quotations in one paragraph": Growth(40_000, quoted(True), cast_lines),
    "quotations without end": Growth(
        2_000_000, lambda folder, size: Document([BookChapter("", [TextBlock(PARAGRAPH, "‘a " * size)])]), cast_lines
    ),
    "pauses": Growth(400_000, text("a.txt", lambda size: "A [pause:1s]\n" * size), whole),
    "pauses of a request": Growth(400_000, lambda folder, size: "A [pause:1ms]\n" * size, read_pauses),
    "a word of text": Growth(WORD, text("a.txt", lambda size: "a" * size), whole),
    "a word of digits": Growth(WORD, text("a.txt", lambda size: "7" * size), whole),
    "a word of marks": Growth(WORD, text("a.txt", lambda size: "a" + ".-'\"" * (size // 4)), whole),
    "a word of HTML": Growth(WORD, text("a.html", lambda size: "<p>" + "a" * size), whole),
    "a word of Markdown": Growth(8_000_000, text("a.md", lambda size: "a" * size), whole),
    "a word of an EPUB": Growth(
        WORD, lambda folder, size: write_book(folder / "a.epub", {"a.xhtml": "<p>" + "a" * size}), whole
    ),
    "a PDF of lines": Growth(200_000, pdf_file, read_document),
    "a PDF of one word": Growth(4_000_000, pdf_word, read_document),
    "a word of a PDF": Growth(
        WORD, lambda folder, size: [[PdfLine("a" * size, 50.0, 300.0, 500.0, 500.0, 11.0)]], of_lines
    ),
    "a quoted word": Growth(
        WORD,
        lambda folder, size: Document(
            [BookChapter("", [TextBlock(PARAGRAPH, f"“{'a' * size}” said Anna{'a' * size}")])]
        ),
        cast_lines,
    ),
}


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measured(case: Growth, size: int) -> float:
    """Return the CPU seconds of reading a document of this size."""
    with tempfile.TemporaryDirectory() as folder:
        made = case.write(Path(folder), size)
        began = cpu_seconds()
        case.read(made)
        return cpu_seconds() - began


def grown(case: Growth, scale: float) -> dict[str, Any]:
    sizes = [max(1, int(case.size * scale / part)) for part in (4, 2, 1)]
    times = [measured(case, size) for size in sizes]
    for index in (1, 2):
        if ratio(times[index - 1], times[index]) > MOST:  # another process may have disturbed it
            times[index - 1 : index + 1] = [min(times[at], measured(case, sizes[at])) for at in (index - 1, index)]
    ratios = [ratio(*pair) for pair in pairwise(times)]
    return {
        "size": sizes[-1],
        "seconds": [round(seconds, 2) for seconds in times],
        "ratios": [round(value, 2) for value in ratios],
        "linear": max(ratios) <= MOST and times[-1] <= SECONDS * max(1.0, scale),
    }


def ratio(before: float, after: float) -> float:
    return max(after, NOISE) / max(before, NOISE)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.campaigns growth", description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default=",".join(CASES), help="names of cases, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args(arguments)
    found = {}
    for name in options.cases.split(","):
        try:
            found[name] = grown(CASES[name], options.scale)
        except UserError as error:
            found[name] = {"error": str(error)[:300], "linear": False}
        sys.stdout.write(json.dumps({name: found[name]}) + "\n")
        sys.stdout.flush()
    if options.output:
        write_json(options.output, {"most": MOST, "scale": options.scale, "cases": found})
    return int(not all(case["linear"] for case in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
