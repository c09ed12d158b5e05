"""Test that damaged or malicious documents are rejected in one clear line, soon and with little memory."""

import io
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ane.books.reading import read_document
from ane.system.errors import UserError
from tests.books.book_files import CONTAINER, XHTML, package, write_archive, write_book
from tests.work import lines_run

MEMORY = 200 << 20  # maximum bytes of Python's memory for one document
SECONDS = 20.0  # maximum seconds of this process. An idle machine takes a fraction of them
PAGE = {"a.xhtml": "<p>text</p>"}
FOREIGN_ITEM = '<item id="b" href="{}" media-type="text/html"/>'
DIRECTORY_END = struct.Struct("<4s4H2IH")


def zip_of(*parts: bytes) -> Callable[[Path], object]:
    """An archive of these directories behind a hundred zeros."""
    return lambda path: path.write_bytes(b"PK\x03\x04" + b"\0" * 100 + b"".join(parts))


def epub(*documents: object, **more: object) -> Callable[[Path], object]:
    return lambda path: write_book(path, *(documents or (PAGE,)), **more)


def archive(parts: dict[str, str | bytes]) -> Callable[[Path], object]:
    return lambda path: write_archive(path, {"META-INF/container.xml": CONTAINER} | parts)


def changed(content: str, change: Callable[[bytearray], object]) -> Callable[[Path], object]:
    """A book with this page whose bytes were changed afterwards."""

    def write(path: Path) -> None:
        write_book(path, {"a.xhtml": content})
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)

    return write


def overwrite_a_part(data: bytearray) -> None:
    at = data.find(b"OEBPS/a.xhtml") + 20
    data[at : at + 10] = b"\xff" * 10


def set_the_flag_of_a_password(data: bytearray) -> None:
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            data[at + flags] |= 1


def shorten(data: bytearray) -> None:
    del data[200:]


def holds(content: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content)


# description with the suffix → function that writes the file, and part of the error message
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "zip bomb.epub": (epub({"a.xhtml": "<p>" + " " * (17 << 20)}), "more than 16 MB"),
    "parts that are large together.epub": (
        epub({f"{n}.xhtml": "<p>a</p>" + " " * (15 << 20) for n in range(3)}),
        "more than",
    ),
    "archive of too many files.epub": (
        zip_of(DIRECTORY_END.pack(b"PK\x05\x06", 0, 0, 65535, 65535, 1 << 30, 0, 0)),
        "more than 20000 files",
    ),
    "archive whose ZIP64 directory is too long.epub": (
        zip_of(
            struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1 << 20, 1 << 20, 1 << 30, 0),
            struct.pack("<4sIQI", b"PK\x06\x07", 0, 104, 1),
            DIRECTORY_END.pack(b"PK\x05\x06", 0, 0, 1, 1, 46, 104, 0),
        ),
        "more than 20000 files",
    ),
    "archive that is cut off.epub": (changed("<p>text</p>", shorten), "no directory of a ZIP archive"),
    "archive whose directory is elsewhere.epub": (
        zip_of(DIRECTORY_END.pack(b"PK\x05\x06", 0, 0, 1, 1, 46, 0, 0)),
        "it is damaged, or not an archive as EPUB and DOCX are",
    ),
    "part whose bytes changed.epub": (changed("<p>" + "text " * 500, overwrite_a_part), "damaged"),
    "part with a password.epub": (changed("<p>text</p>", set_the_flag_of_a_password), "is encrypted"),
    "digital rights management.epub": (
        epub(
            PAGE,
            files={
                "META-INF/encryption.xml": '<encryption><enc:EncryptionMethod Algorithm="aes256-cbc"/></encryption>'
            },
        ),
        "protected (DRM)",
    ),
    "no container.epub": (
        lambda path: write_archive(path, {"OEBPS/book.opf": package([])}),
        "lacks 'META-INF/container.xml'",
    ),
    "empty container.epub": (archive({"META-INF/container.xml": "<container/>"}), "names no package document"),
    "no package document.epub": (archive({}), "lacks 'OEBPS/book.opf'"),
    "empty spine.epub": (epub(spine=""), "its spine is empty"),
    "spine of unknown items.epub": (epub(spine='<itemref idref="ghost"/>'), "its manifest lacks 'ghost'"),
    "missing part.epub": (
        epub(PAGE, FOREIGN_ITEM.format("b.xhtml"), spine='<itemref idref="b"/>'),
        "lacks 'OEBPS/b.xhtml'",
    ),
    **{
        f"path out of the archive {number}.epub": (epub(PAGE, FOREIGN_ITEM.format(path)), "outside the book")
        for number, path in enumerate(("../../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "file:///etc/passwd"))
    },
    "absolute path of the package.epub": (
        archive({"META-INF/container.xml": CONTAINER.replace("OEBPS/book.opf", "/etc/passwd")}),
        "outside the book",
    ),
    "fallbacks in a circle.epub": (
        epub(
            PAGE,
            '<item id="x" href="x" media-type="image/png" fallback="y"/>'
            '<item id="y" href="y" media-type="image/png" fallback="x"/>',
            spine='<itemref idref="x"/>',
        ),
        "has no text to speak",
    ),
    "external entity.epub": (
        epub({"a.xhtml": '<!DOCTYPE html [<!ENTITY secret SYSTEM "file:///etc/passwd">]><html><body></body></html>'}),
        "has no text to speak",
    ),
    "entities that multiply.epub": (
        epub(
            {
                "a.xhtml": '<!DOCTYPE html [<!ENTITY e0 "ha">'
                + "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(30))
                + "]><html><body></body></html>"
            }
        ),
        "has no text to speak",
    ),
    "Latin-1 that claims to be UTF-8.epub": (
        archive(
            {
                "OEBPS/book.opf": package(["a.xhtml"]),
                "OEBPS/a.xhtml": XHTML.format("<p>\xe9t\xe9</p>").encode("latin-1"),
            }
        ),
        "is not text in",
    ),
    "encoding that is none.epub": (
        archive(
            {"OEBPS/book.opf": package(["a.xhtml"]), "OEBPS/a.xhtml": '<?xml version="1.0" encoding="rot13"?><html/>'}
        ),
        "declares the encoding 'rot13'",
    ),
    "elements in one another.epub": (epub({"a.xhtml": "<div>" * 100_000 + "text"}), "nests more than 500 elements"),
    "comments that never end.epub": (epub({"a.xhtml": "<!--" * 1_000_000}), "has no text to speak"),
    "nothing but tags.html": (holds("<b></b></i>" * 8_000), "has no text to speak"),
    "a hundred megabytes of markup.html": (
        lambda path: path.write_bytes(b"<p>text</p>" * 9_532_600),
        "more than 16 MB",
    ),
    "nine megabytes of Markdown.md": (holds("> " * (9 << 19) + "text"), "more than 8 MB"),
    "text in Windows-1252.txt": (holds(b"b\xe9b\xe9"), "not text in UTF-8 (byte 1)"),
    "a program.txt": (holds(b"\x7fELF\0\0\0"), "NUL characters"),
    "a PDF.txt": (holds(b"%PDF-1.7 text"), "it is a PDF"),
    "another format.odt": (holds(b"text"), "not a format that ane reads"),
    "subtitles without times.srt": (holds("1\nHello.\n"), "no line with times"),
    "an empty file.txt": (holds(b""), "has no text to speak"),
    "a folder.txt": (Path.mkdir, "it is not a file"),
    "nothing.txt": (lambda path: None, "No such file"),
}


@pytest.mark.parametrize("name", FILES)
def test_it_is_refused_in_one_line(tmp_path, name):
    write, message = FILES[name]
    path = tmp_path / name
    write(path)
    began = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as refused:
            read_document(path)
        memory = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    line = str(refused.value)
    assert message in line
    assert line.startswith(f"cannot read {path}: ")
    assert "\n" not in line
    assert len(line) < 400 + len(str(path))
    assert memory < MEMORY
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    "unit",
    [
        '<a "',
        "<a '\"",
        "<p ",
        "&#",
        "&amp",
        "<![CDATA[",
        "</",
        '<a href="#1">',
        "<!DOCTYPE [",
        "<svg>",
        "\n",
        "<br/>",
        "<td>x",
        "<p>* * *",
        "<h1>1",
    ],
)
def test_markup_that_repeats_takes_time_that_grows_with_its_length(tmp_path, unit):
    """Ten times the length runs about ten times the lines; the work within a line is bounded by time."""

    def read(count: int) -> None:
        path = tmp_path / f"{count}.html"
        path.write_text("x" + unit * count)
        with suppress(UserError):  # the error is that markup is nested too deeply
            read_document(path)

    read(10)
    assert lines_run(read, 1000) < 15 * lines_run(read, 100)
    began = time.process_time()
    read(50_000)
    assert time.process_time() - began < SECONDS


def test_a_part_that_the_spine_names_twice_is_read_once(tmp_path):
    book = write_book(tmp_path / "book.epub", PAGE, spine='<itemref idref="d0"/>' * 3)
    assert sum(len(chapter.blocks) for chapter in read_document(book).chapters) == 1


@pytest.mark.parametrize(
    "toc",
    [
        # an entry that leads to its own file
        '<navPoint><content src="toc.ncx"/><content src="a.xhtml"/></navPoint>' * 1000,
        "<navPoint>" * 100_000 + '<content src="a.xhtml"/>',
        "<navPoint><text>" + "word " * 200_000 + "</text>" + '<content src="a.xhtml"/>' * 20_000,
    ],
)
def test_a_strange_table_of_contents_is_read_soon_and_the_text_all_the_same(tmp_path, toc):
    book = write_book(
        tmp_path / "book.epub",
        PAGE,
        files={"OEBPS/toc.ncx": f"<ncx>{toc}"},
        more_items='<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>',
    )
    began = time.process_time()
    assert [block.text for chapter in read_document(book).chapters for block in chapter.blocks] == ["text"]
    assert time.process_time() - began < SECONDS


def test_the_archive_is_never_written_to_disk(tmp_path):
    book = write_book(tmp_path / "book.epub", PAGE, files={"../../evil.txt": "x", "/evil.txt": "x"})
    read_document(book)
    assert [path.name for path in tmp_path.rglob("*")] == ["book.epub"]
    assert "../../evil.txt" in zipfile.ZipFile(io.BytesIO(book.read_bytes())).namelist()
