"""Extract the lines of text from a PDF in a separate process, so that a malicious file cannot harm the main program.

    python -m ane.books.pdf_lines FILE MAX_PAGES MAX_CHARACTERS

The process writes one line of JSON: {"error": …}, or {"title": …, "author": …, "images": …, "pages": [[line, …], …]}. A
line of a page is [text, left, right, bottom, bottom of its last part, height], in points. PDFium joins two lines if a
hyphen divides a word between them, and writes the hyphen as U+0002.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pypdfium2
from pypdfium2 import raw

HYPHEN = "\x02"
SAMPLED = 8  # number of characters at the start of a line whose median height is the line's


def main(arguments: list[str]) -> int:
    file, pages, characters = arguments[0], *map(int, arguments[1:])
    try:
        answer = read(file, pages, characters)
    except pypdfium2.PdfiumError as error:
        password = "password" in str(error).lower()
        answer = {
            "error": "it is protected by a password: ane reads only books without protection"
            if password
            else f"it is a PDF that cannot be read ({error}): it is damaged, or cut off"
        }
    except MemoryError:
        answer = {"error": "it is a PDF that needs too much memory: divide it"}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def read(file: str, most_pages: int, most_characters: int) -> dict[str, Any]:
    """Return the content of a PDF, or an error if the PDF exceeds a limit."""
    document = pypdfium2.PdfDocument(file)
    if len(document) > most_pages:
        return {"error": f"it has more than {most_pages} pages, more than any book: divide it"}
    facts = document.get_metadata_dict()
    pages, images = list[list[list[Any]]](), 0
    for index in range(len(document)):
        page = document[index]
        text = page.get_textpage()
        most_characters -= text.count_chars()
        if most_characters < 0:
            return {"error": "it has more text than any book: divide it"}
        pages.append(list(lines(text)))
        images += sum(1 for _ in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=2))
        text.close()
        page.close()
    return {"title": facts["Title"][:500], "author": facts["Author"][:500], "images": images, "pages": pages}


def lines(page: pypdfium2.PdfTextPage) -> Iterator[list[Any]]:
    """Yield the lines of a page in reading order. If a line ends within a divided word, join it with the next line."""
    text, count, handle, code_at = "", page.count_chars(), page.raw, raw.FPDFText_GetUnicode
    for index in range(count + 1):
        code = code_at(handle, index) if index < count else 10
        hyphen = code in (2, 0xFFFE)
        if code not in (10, 13):
            text += HYPHEN if hyphen else chr(code) if code < 0xD800 or code >= 0xE000 else " "
            if not hyphen or word_continues(page, index, count):
                continue
        end = index + hyphen
        if text.strip():
            first = end - len(text.lstrip())
            last = end - len(text) + len(text.rstrip()) - 1
            boxes = [page.get_charbox(at, loose=True) for at in range(first, min(first + SAMPLED, last + 1))]
            # the box of a ligature is lower than its line, and a letter may be in another font
            _, bottom, _, top = sorted(boxes, key=lambda box: box[3] - box[1])[len(boxes) // 2]
            _, ends, right, _ = page.get_charbox(last, loose=True)
            yield [text.strip(), *(round(value, 1) for value in (boxes[0][0], right, bottom, ends, top - bottom))]
        text = ""


def word_continues(page: pypdfium2.PdfTextPage, hyphen: int, count: int) -> bool:
    """Return whether a small letter in the same font size follows a hyphen.

    PDFium may also join a footnote to the hyphen.
    """
    if hyphen + 1 >= count or not chr(raw.FPDFText_GetUnicode(page, hyphen + 1)).islower():
        return False
    heights = [
        top - bottom for _, bottom, _, top in (page.get_charbox(index, loose=True) for index in (hyphen, hyphen + 1))
    ]
    return abs(heights[0] - heights[1]) < 0.05 * heights[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
