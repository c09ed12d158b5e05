"""Opening a document: its format by suffix and content, its encoding, its limits."""

import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from ane.books.archive import BookArchive, decoded, encoding_of_html
from ane.books.document import MAX_FILE, MAX_TEXT, MAX_TITLE, Document
from ane.books.docx import CONTENT_TYPES, read_docx
from ane.books.epub import read_epub
from ane.books.html_reader import read_html, read_markdown
from ane.books.pdf import read_pdf
from ane.books.plain_text import read_plain_text, read_subtitles
from ane.system.errors import UserError
from ane.text.markdown import has_marks
from ane.text.omissions import Omission, active_omissions

SUFFIXES = (".txt", ".md", ".epub", ".html", ".docx", ".pdf", ".srt", ".vtt")
SUBTITLES = (".srt", ".vtt")
MARKDOWN, HTML, PLAIN = (".md", ".markdown"), (".html", ".htm", ".xhtml"), (".txt", ".text", "")
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
MAX_MARKDOWN = 8 << 20      # markdown-it takes about a second a megabyte
UNREADABLE = {b"\xd0\xcf\x11\xe0": "an old or protected Word document", b"{\\rtf": "RTF",
              b"BOOKMOBI": "a Kindle book"}


def read_document(source: Path | str, keep: Collection[str] = (), keep_timing: bool = False,
                  markdown: bool | None = None) -> Document:
    """The document in a file, or on standard input for "-": an EPUB, DOCX, PDF or plain text there.

    Args:
        keep: names of ``ane.text.omissions.OMISSIONS`` that are read aloud all the same.
        keep_timing: of subtitles.
        markdown: Whether plain text is Markdown or HTML. With None, only standard input is, and only if it has marks.

    Raises:
        UserError: no such file, another format, damaged, protected, too large, or without text.
    """
    rules = active_omissions(keep)
    name = "standard input" if str(source) == "-" else str(source)
    suffix = "" if str(source) == "-" else Path(source).suffix.lower()
    if keep_timing and suffix not in SUBTITLES:
        raise UserError(f"keep_timing has no effect on {name}: only subtitles ({', '.join(SUBTITLES)}) have times",
                        "keep_timing")
    if markdown is not None and suffix not in (*PLAIN, *MARKDOWN):
        raise UserError(f"markdown has no effect on {name}: only plain text may be Markdown", "markdown")
    try:
        with _opened(source) as file:
            recognised = None if str(source) == "-" else suffix in MARKDOWN
            document = _document(file, suffix, rules, keep_timing, recognised if markdown is None else markdown)
    except UserError as error:
        raise UserError(f"cannot read {name}: {error}") from error
    except (OSError, ValueError) as error:          # ValueError: a name that no file can have
        raise UserError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error
    if not document.has_text:
        raise UserError(f"cannot read {name}: it has no text to speak"
                        + (f"; add keep={','.join(rules)} if it was left out" if rules else ""))
    if not document.title and suffix:
        document.title = Path(source).stem
    document.title = document.title[:MAX_TITLE]
    return document


def _document(file: BinaryIO, suffix: str, rules: Mapping[str, Omission], keep_timing: bool,
              markdown: bool | None) -> Document:
    start = file.read(68)
    if suffix in (".epub", ".docx") or start.startswith(b"PK\x03\x04"):
        with closing(BookArchive(file if file.seekable() else BytesIO(start + _rest(file, MAX_FILE)))) as archive:
            return (read_docx if CONTENT_TYPES in archive.names else read_epub)(archive, rules)
    if suffix == ".pdf" or start.startswith(b"%PDF"):
        if isinstance(name := getattr(file, "name", None), str) and os.path.isfile(name):
            return read_pdf(Path(name), rules)
        with tempfile.NamedTemporaryFile(suffix=".pdf") as stored:
            stored.write(start + _rest(file, MAX_FILE))
            stored.flush()
            return read_pdf(Path(stored.name), rules)
    data = start + _rest(file, MAX_TEXT)
    for mark, what in UNREADABLE.items():
        if data.startswith(mark) or data[60:68] == mark:
            raise UserError(f"it is {what}: convert it to EPUB first, with Calibre for example")
    if markdown and len(data) > MAX_MARKDOWN:
        raise UserError(f"it has more than {MAX_MARKDOWN >> 20} MB, the most for Markdown: divide it")
    try:
        text = decoded_text(data, encoding_of_html(data) if suffix in HTML else "utf-8")
    except UserError:
        if b"\0" in data and not data.startswith(UTF16_MARKS):
            raise UserError(f"it is no text, with NUL characters: ane reads {', '.join(SUFFIXES)}") from None
        raise
    if suffix in SUBTITLES:
        return read_subtitles(text, keep_timing)
    if suffix in HTML:
        return read_html(text, rules)
    if suffix not in (*PLAIN, *MARKDOWN):
        raise UserError(f"{suffix} is not a format that ane reads: {', '.join(SUFFIXES)}")
    if markdown or (markdown is None and len(data) <= MAX_MARKDOWN and has_marks(text)):
        return read_markdown(text, rules)
    return read_plain_text(text, rules)


@contextmanager
def _opened(source: Path | str) -> Iterator[BinaryIO]:
    if str(source) == "-":
        yield sys.stdin.buffer
        return
    path = Path(os.path.expanduser(source))
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError("it is not a file")
    with path.open("rb") as file:
        yield file


def _rest(file: BinaryIO, limit: int) -> bytes:
    """What follows in ``file``. Raises UserError when it is longer than ``limit``."""
    blocks: list[bytes] = []
    while block := file.read(1 << 20):
        blocks.append(block)
        if len(blocks) << 20 > limit:
            raise UserError(f"it has more than {limit >> 20} MB, more than any book; divide it")
    return b"".join(blocks)


def decoded_text(data: bytes, encoding: str = "utf-8") -> str:
    """Text in UTF-8 or another encoding, or in UTF-16 that begins with its mark; line ends become "\\n"."""
    text = decoded(data, encoding, "it", "convert it first, with `iconv -f WINDOWS-1252 -t UTF-8` for example")
    return re.sub("\r\n?|\f", "\n", text)
