"""Read a document in any supported format, within limits of size. Suffix and content of the file show its format."""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
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
from ane.system.errors import NoEffectError, UserError
from ane.text.markdown import has_marks
from ane.text.omissions import Omission, active_omissions

SUFFIXES = (".txt", ".md", ".epub", ".html", ".docx", ".pdf", ".srt", ".vtt")
MARKDOWN, HTML, PLAIN = (".md", ".markdown"), (".html", ".htm", ".xhtml"), (".txt", ".text", "")
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
MAX_MARKDOWN = 8 << 20  # maximum bytes of Markdown (markdown-it takes about 1 s per MB)
UNREADABLE = {b"\xd0\xcf\x11\xe0": "an old or protected Word document", b"{\\rtf": "RTF", b"BOOKMOBI": "a Kindle book"}


@dataclass(frozen=True)
class ReadingOptions:
    """Options for reading a document.

    Attributes:
        suffix: Suffix of the document's file.
        rules: What to do with parts of the text that may be omitted, by kind.
        keep_timing: See ``read_document``.
        markdown: See ``read_document``.
    """

    suffix: str
    rules: Mapping[str, Omission]
    keep_timing: bool
    markdown: bool | None


@dataclass(frozen=True)
class DocumentFormat:
    """A format that documents may have.

    Attributes:
        name: Name of the format in help texts.
        suffixes: Suffixes of its files. The usual suffix comes first. "" stands for standard input.
        read: Function that reads a document from an open file. It also takes the first bytes, which were already read.
        start: Bytes with which every file of the format starts. They identify it if the suffix is wrong.
        has_times: Whether the option ``keep_timing`` has an effect on the format.
        may_be_markdown: Whether the option ``markdown`` has an effect on the format.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[BinaryIO, bytes, ReadingOptions], Document]
    start: bytes = b""
    has_times: bool = False
    may_be_markdown: bool = False


def read_archive(file: BinaryIO, start: bytes, options: ReadingOptions) -> Document:
    """Read an EPUB or a DOCX, whose content shows which of the two it is."""
    with closing(BookArchive(file if file.seekable() else BytesIO(start + _rest(file, MAX_FILE)))) as archive:
        return (read_docx if CONTENT_TYPES in archive.names else read_epub)(archive, options.rules)


def read_pdf_file(file: BinaryIO, start: bytes, options: ReadingOptions) -> Document:
    """Read a PDF. If it is not a file on disk, copy it to a temporary file first."""
    if isinstance(name := getattr(file, "name", None), str) and os.path.isfile(name):
        return read_pdf(Path(name), options.rules)
    with tempfile.NamedTemporaryFile(suffix=".pdf") as stored:
        stored.write(start + _rest(file, MAX_FILE))
        stored.flush()
        return read_pdf(Path(stored.name), options.rules)


def as_text(
    read: Callable[[str, ReadingOptions], Document], encoding: Callable[[bytes], str] = lambda data: "utf-8"
) -> Callable[[BinaryIO, bytes, ReadingOptions], Document]:
    """Return a function that decodes a text file and passes the text to ``read``.

    The returned function raises UserError for other files.
    """

    def read_file(file: BinaryIO, start: bytes, options: ReadingOptions) -> Document:
        data = start + _rest(file, MAX_TEXT)
        for mark, kind in UNREADABLE.items():
            if data.startswith(mark) or data[60:68] == mark:
                raise UserError(f"it is {kind}: convert it to EPUB first, for example with Calibre")
        if options.markdown and len(data) > MAX_MARKDOWN:
            raise UserError(f"it has more than {MAX_MARKDOWN >> 20} MB, the maximum for Markdown: divide it")
        try:
            text = decoded_text(data, encoding(data))
        except UserError:
            if b"\0" in data and not data.startswith(UTF16_MARKS):
                raise UserError(
                    f"it is not a text file, because it contains NUL characters: use one of {usual_suffixes()}"
                ) from None
            raise
        return read(text, options)

    return read_file


def read_text(text: str, options: ReadingOptions) -> Document:
    """Read plain text or Markdown. If the options do not say which, signs of Markdown in the text decide."""
    markdown = options.markdown
    if markdown or (markdown is None and len(text) <= MAX_MARKDOWN and has_marks(text)):
        return read_markdown(text, options.rules)
    return read_plain_text(text, options.rules)


def refuse(text: str, options: ReadingOptions) -> Document:
    """Raise UserError for a text file with an unknown suffix."""
    raise UserError(f"{options.suffix} is not a format that ane reads: use one of {usual_suffixes()}")


FORMATS = (
    DocumentFormat("plain text", (".txt", ".text", ""), as_text(read_text), may_be_markdown=True),
    DocumentFormat("Markdown", (".md", ".markdown"), as_text(read_text), may_be_markdown=True),
    DocumentFormat("EPUB", (".epub",), read_archive, b"PK\x03\x04"),
    DocumentFormat(
        "HTML",
        (".html", ".htm", ".xhtml"),
        as_text(lambda text, options: read_html(text, options.rules), encoding_of_html),
    ),
    DocumentFormat("DOCX", (".docx",), read_archive),
    DocumentFormat("PDF", (".pdf",), read_pdf_file, b"%PDF"),
    *(
        DocumentFormat(
            name, (suffix,), as_text(lambda text, options: read_subtitles(text, options.keep_timing)), has_times=True
        )
        for name, suffix in (("SubRip", ".srt"), ("WebVTT", ".vtt"))
    ),
)
UNKNOWN = DocumentFormat("", (), as_text(refuse))


def usual_suffixes(formats: Iterable[DocumentFormat] = FORMATS) -> str:
    """Return the usual suffix of every format, separated by commas."""
    return ", ".join(document.suffixes[0] for document in formats)


def format_of(suffix: str, start: bytes = b"") -> DocumentFormat:
    """Find the format whose files start with these bytes. If there is none, find the format that has this suffix."""
    return next(
        (document for document in FORMATS if document.start and start.startswith(document.start)),
        next((document for document in FORMATS if suffix in document.suffixes), UNKNOWN),
    )


def read_document(
    source: Path | str, keep: Collection[str] = (), keep_timing: bool = False, markdown: bool | None = None
) -> Document:
    """Read the document in a file. "-" is standard input, which may be an EPUB, a DOCX, a PDF or plain text.

    Args:
        keep: Names of rules in ``ane.text.omissions.OMISSIONS``. The text that they omit is read aloud instead.
        keep_timing: Whether to keep the times of subtitles, so that each is spoken at its time.
        markdown: Whether plain text is Markdown or HTML. ``None`` means that standard input is Markdown or HTML if it
            has signs of either, and that a plain text file is neither.

    Raises:
        UserError: The file does not exist, is damaged, protected or too large, has no text, or has another format.
    """
    rules = active_omissions(keep)
    name = "standard input" if str(source) == "-" else str(source)
    suffix = "" if str(source) == "-" else Path(source).suffix.lower()
    named = format_of(suffix)
    if keep_timing and not named.has_times:
        timed = usual_suffixes(document for document in FORMATS if document.has_times)
        raise NoEffectError("keep_timing", f"on {name}", f"only subtitles ({timed}) have times")
    if markdown is not None and not named.may_be_markdown:
        raise NoEffectError("markdown", f"on {name}", "only plain text may be Markdown")
    try:
        with _opened(source) as file:
            start = file.read(68)
            recognised = None if str(source) == "-" else named.name == "Markdown"
            document = format_of(suffix, start).read(
                file, start, ReadingOptions(suffix, rules, keep_timing, recognised if markdown is None else markdown)
            )
    except UserError as error:
        raise UserError(f"cannot read {name}: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        raise UserError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error
    if not document.has_text:
        raise UserError(
            f"cannot read {name}: it has no text to speak"
            + (f" (if it was left out, add keep={','.join(rules)})" if rules else "")
        )
    if not document.title and suffix:
        document.title = Path(source).stem
    document.title = document.title[:MAX_TITLE]
    return document


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
    """Read the rest of a file. Raises UserError if the rest is longer than ``limit`` bytes."""
    blocks: list[bytes] = []
    while block := file.read(1 << 20):
        blocks.append(block)
        if len(blocks) << 20 > limit:
            raise UserError(f"it has more than {limit >> 20} MB, more than any book: divide it")
    return b"".join(blocks)


def decoded_text(data: bytes, encoding: str = "utf-8") -> str:
    """Decode a text, and turn every line end into a line feed. A byte order mark overrides ``encoding``."""
    text = decoded(data, encoding, "it", "convert it first, for example with `iconv -f WINDOWS-1252 -t UTF-8`")
    return re.sub("\r\n?|\f", "\n", text)
