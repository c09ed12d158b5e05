"""Documents that are damaged, or made to do harm: each is refused in one clear line, soon and in little memory."""

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
from tests.books.epub_files import CONTAINER, XHTML, package, write_archive, write_book
from tests.work import lines_run

MEMORY = 200 << 20          # bytes that Python may take for any of them
SECONDS = 20.0              # of this process; a machine that does nothing else takes a fraction of it
PAGE = {"a.xhtml": "<p>text</p>"}
FILES: dict[str, tuple[Callable[[Path], Path], str]] = {}


def hostile(message: str, suffix: str = ".epub") -> Callable[[Callable[[Path], object]], None]:
    """Register a file that must be refused with ``message`` (a part of it)."""

    def register(write: Callable[[Path], object]) -> None:
        def make(folder: Path) -> Path:
            path = folder / f"{write.__name__}{suffix}"
            write(path)
            return path

        FILES[write.__name__] = make, message

    return register


@hostile("more than 16 MB")
def zip_bomb(path):
    write_book(path, {"a.xhtml": "<p>" + " " * (17 << 20)})


@hostile("more than")
def many_parts_that_are_large_together(path):
    write_book(path, {f"{n}.xhtml": "<p>a</p>" + " " * (15 << 20) for n in range(3)})


@hostile("more than 20000 files")
def archive_of_too_many_files(path):
    directory = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 65535, 65535, 1 << 30, 0, 0)
    path.write_bytes(b"PK\x03\x04" + b"\0" * 100 + directory)


@hostile("more than 20000 files")
def archive_whose_zip64_directory_is_too_long(path):
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1 << 20, 1 << 20, 1 << 30, 0)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, 104, 1)
    directory = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, 46, 104, 0)
    path.write_bytes(b"PK\x03\x04" + b"\0" * 100 + end64 + locator + directory)


@hostile("no directory of a ZIP archive")
def archive_that_is_cut_off(path):
    write_book(path, PAGE)
    path.write_bytes(path.read_bytes()[:200])


@hostile("no archive, as EPUB and DOCX are, or damaged")
def archive_whose_directory_is_elsewhere(path):
    path.write_bytes(b"PK\x03\x04" + b"\0" * 100 + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, 46, 0, 0))


@hostile("damaged")
def part_whose_bytes_changed(path):
    write_book(path, {"a.xhtml": "<p>" + "text " * 500})
    data = bytearray(path.read_bytes())
    at = data.find(b"OEBPS/a.xhtml") + 20
    data[at:at + 10] = b"\xff" * 10
    path.write_bytes(data)


@hostile("is encrypted")
def part_with_a_password(path):
    write_book(path, PAGE)
    data = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            data[at + flags] |= 1
    path.write_bytes(data)


@hostile("protected (DRM)")
def digital_rights_management(path):
    encryption = '<encryption><enc:EncryptionMethod Algorithm="aes256-cbc"/></encryption>'
    write_book(path, PAGE, files={"META-INF/encryption.xml": encryption})


@hostile("lacks 'META-INF/container.xml'")
def no_container(path):
    write_archive(path, {"OEBPS/book.opf": package([])})


@hostile("names no package document")
def empty_container(path):
    write_archive(path, {"META-INF/container.xml": "<container/>"})


@hostile("lacks 'OEBPS/book.opf'")
def no_package_document(path):
    write_archive(path, {"META-INF/container.xml": CONTAINER})


@hostile("its spine is empty")
def empty_spine(path):
    write_book(path, PAGE, spine="")


@hostile("its spine names 'ghost'")
def spine_of_unknown_items(path):
    write_book(path, PAGE, spine='<itemref idref="ghost"/>')


@hostile("lacks 'OEBPS/b.xhtml'")
def missing_part(path):
    write_book(path, PAGE, '<item id="b" href="b.xhtml" media-type="text/html"/>', spine='<itemref idref="b"/>')


@hostile("outside the book")
def path_out_of_the_archive(path):
    write_book(path, PAGE, '<item id="b" href="../../../etc/passwd" media-type="text/html"/>')


@hostile("outside the book")
def path_out_of_the_archive_in_percent_signs(path):
    write_book(path, PAGE, '<item id="b" href="%2e%2e/%2e%2e/etc/passwd" media-type="text/html"/>')


@hostile("outside the book")
def address_of_a_file(path):
    write_book(path, PAGE, '<item id="b" href="file:///etc/passwd" media-type="text/html"/>')


@hostile("outside the book")
def absolute_path_of_the_package(path):
    write_archive(path, {"META-INF/container.xml": CONTAINER.replace("OEBPS/book.opf", "/etc/passwd")})


@hostile("has no text to speak")
def fallbacks_in_a_circle(path):
    write_book(path, PAGE, '<item id="x" href="x" media-type="image/png" fallback="y"/>'
                           '<item id="y" href="y" media-type="image/png" fallback="x"/>', spine='<itemref idref="x"/>')


@hostile("has no text to speak")
def external_entity(path):
    write_book(path, {"a.xhtml": '<!DOCTYPE html [<!ENTITY secret SYSTEM "file:///etc/passwd">]><html><body></body></html>'})


@hostile("has no text to speak")
def entities_that_multiply(path):
    lines = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(30))
    write_book(path, {"a.xhtml": f'<!DOCTYPE html [<!ENTITY e0 "ha">{lines}]><html><body></body></html>'})


@hostile("is not text in")
def latin_1_that_claims_to_be_utf_8(path):
    write_archive(path, {"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": package(["a.xhtml"]),
                         "OEBPS/a.xhtml": XHTML.format("<p>\xe9t\xe9</p>").encode("latin-1")})


@hostile("declares the encoding 'rot13'")
def encoding_that_is_none(path):
    write_archive(path, {"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": package(["a.xhtml"]),
                         "OEBPS/a.xhtml": '<?xml version="1.0" encoding="rot13"?><html/>'})


@hostile("nests more than 500 elements")
def elements_in_one_another(path):
    write_book(path, {"a.xhtml": "<div>" * 100_000 + "text"})


@hostile("has no text to speak")
def comments_that_never_end(path):
    write_book(path, {"a.xhtml": "<!--" * 1_000_000})


@hostile("has no text to speak", ".html")
def nothing_but_tags(path):
    path.write_text("<b></b></i>" * 30_000)


@hostile("more than 16 MB", ".html")
def a_hundred_megabytes_of_markup(path):
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b"<p>text</p>" * 95_326)


@hostile("more than 8 MB", ".md")
def nine_megabytes_of_markdown(path):
    path.write_text("> " * (9 << 19) + "text")


@hostile("not text in UTF-8 (byte 1)", ".txt")
def text_in_windows_1252(path):
    path.write_bytes(b"b\xe9b\xe9")


@hostile("NUL characters", ".txt")
def a_program(path):
    path.write_bytes(b"\x7fELF\0\0\0")


@hostile("it is a PDF", ".txt")
def a_pdf(path):
    path.write_bytes(b"%PDF-1.7 text")


@hostile("not a format that ane reads", ".odt")
def another_format(path):
    path.write_bytes(b"text")


@hostile("no line with times", ".srt")
def subtitles_without_times(path):
    path.write_text("1\nHello.\n")


@hostile("has no text to speak", ".txt")
def an_empty_file(path):
    path.write_bytes(b"")


@hostile("it is not a file", ".txt")
def a_folder(path):
    path.mkdir()


@hostile("No such file", ".txt")
def nothing(path):
    pass


@pytest.mark.parametrize("name", FILES)
def test_it_is_refused_in_one_line(tmp_path, name):
    make, message = FILES[name]
    path = make(tmp_path)
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


@pytest.mark.parametrize("unit", ['<a "', "<a '\"", "<p ", "&#", "&amp", "<![CDATA[", "</", '<a href="#1">',
                                  "<!DOCTYPE [", "<svg>", "\n", "<br/>", "<td>x", "<p>* * *", "<h1>1"])
def test_markup_that_repeats_takes_time_that_grows_with_its_length(tmp_path, unit):
    """Ten times the length runs about ten times the lines; the work within a line is bounded by time."""
    def read(count: int) -> None:
        path = tmp_path / f"{count}.html"
        path.write_text("x" + unit * count)
        with suppress(UserError):       # nested too deeply
            read_document(path)

    read(10)
    assert lines_run(read, 1000) < 15 * lines_run(read, 100)
    began = time.process_time()
    read(50_000)
    assert time.process_time() - began < SECONDS


def test_a_part_that_the_spine_names_twice_is_read_once(tmp_path):
    book = write_book(tmp_path / "book.epub", PAGE, spine='<itemref idref="d0"/>' * 3)
    assert sum(len(chapter.blocks) for chapter in read_document(book).chapters) == 1


@pytest.mark.parametrize("toc", [
    '<navPoint><content src="toc.ncx"/><content src="a.xhtml"/></navPoint>' * 1000,         # leads to itself
    "<navPoint>" * 100_000 + '<content src="a.xhtml"/>',
    "<navPoint><text>" + "word " * 200_000 + "</text>" + '<content src="a.xhtml"/>' * 20_000])
def test_a_strange_table_of_contents_is_read_soon_and_the_text_all_the_same(tmp_path, toc):
    book = write_book(tmp_path / "book.epub", PAGE, files={"OEBPS/toc.ncx": f"<ncx>{toc}"},
                      more_items='<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>')
    began = time.process_time()
    assert [block.text for chapter in read_document(book).chapters for block in chapter.blocks] == ["text"]
    assert time.process_time() - began < SECONDS


def test_the_archive_is_never_written_to_disk(tmp_path):
    book = write_book(tmp_path / "book.epub", PAGE, files={"../../evil.txt": "x", "/evil.txt": "x"})
    read_document(book)
    assert [path.name for path in tmp_path.rglob("*")] == ["book.epub"]
    assert "../../evil.txt" in zipfile.ZipFile(io.BytesIO(book.read_bytes())).namelist()
