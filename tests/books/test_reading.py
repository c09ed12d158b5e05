"""Test which text of a document is read aloud and which is left out, and the structure of the document."""

import io
import sys
from pathlib import Path

import pytest

from ane.books import reading
from ane.books.document import Document
from ane.books.reading import read_document
from ane.system.errors import UserError
from ane.text.blocks import QUOTATION, SCENE_BREAK
from ane.text.omissions import omitted_text
from tests.books.book_files import package, write_book
from tests.tables import rows


def read(folder: Path, name: str, content: str | bytes, keep: tuple[str, ...] = ()) -> Document:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return read_document(folder / name, keep)


def texts(document: Document) -> list[str]:
    return [block.text for chapter in document.chapters for block in chapter.blocks if block.text]


@pytest.mark.parametrize(("name", "content", "kept", "expected"), rows(__file__, "readings.tsv", "texts"))
def test_what_is_read_aloud_of_a_text(tmp_path, name, content, kept, expected):
    assert " | ".join(texts(read(tmp_path, name, content, tuple(filter(None, kept.split(",")))))) == expected


NAV = (
    '<nav epub:type="toc"><ol><li><a href="one.xhtml">First</a><ol><li><a href="one.xhtml#b">Inner</a></li>'
    '</ol></li><li><a href="two.xhtml">Second</a></li></ol></nav><nav epub:type="landmarks"><ol><li>'
    '<a href="two.xhtml">Start</a></li></ol></nav>'
)
NCX = (
    '<?xml version="1.0"?><ncx><navMap><navPoint><navLabel><text>First</text></navLabel><content src="one.xhtml"/>'
    '<navPoint><navLabel><text>Inner</text></navLabel><content src="one.xhtml#b"/></navPoint></navPoint>'
    '<navPoint><navLabel><text>Second</text></navLabel><content src="two.xhtml"/></navPoint></navMap></ncx>'
)
DOCUMENTS = {
    "cover.xhtml": '<section epub:type="cover"><p>A cover.</p></section>',
    "one.xhtml": '<h1>One</h1><p>He went<a epub:type="noteref" href="#n1">1</a> on<sup><a href="#n2">[2]</a></sup>.'
    '<br/>A line.</p><h2 id="b">Inner</h2>'
    '<p>10<sup>2</sup> <span epub:type="pagebreak">12</span>steps&nbsp;&amp; '
    'on.</p><aside epub:type="footnote" id="n1">A note.</aside><p hidden>Hidden.</p>',
    "two.xhtml": '<h1>Two</h1><blockquote xml:lang="fr"><p>Bonjour.</p></blockquote><hr/><p>End.',
    "index.xhtml": "<h1>Index</h1><p>turtle, 12</p>",
}
COVER = '<item id="cover" href="cover.jpg" media-type="image/jpeg"/>'


@pytest.mark.parametrize("version", [2, 3])
def test_an_epub_gives_its_chapters_and_leaves_out_what_is_not_narrated(tmp_path, version):
    contents = (
        '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
        if version == 3
        else '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'
    )
    book = write_book(
        tmp_path / "book.epub",
        DOCUMENTS,
        contents + COVER,
        {"OEBPS/nav.xhtml": NAV, "OEBPS/toc.ncx": NCX, "OEBPS/cover.jpg": b"\xff\xd8picture"},
    )
    document = read_document(book)
    assert (document.title, document.author, document.language) == ("The Turtle", "A. Writer", "en")
    assert document.cover is not None
    assert document.cover.data == b"\xff\xd8picture"
    assert [chapter.title for chapter in document.chapters] == ["First", "Inner", "Second"]
    assert [block.text for block in document.chapters[0].blocks] == ["One", "He went on.\nA line."]
    assert [block.text for block in document.chapters[1].blocks] == ["Inner", "10² steps & on."]
    second = document.chapters[2].blocks
    assert [(block.kind, block.language) for block in second[1:3]] == [(QUOTATION, "fr"), (SCENE_BREAK, "")]


@pytest.mark.parametrize(("name", "content", "omitted"), rows(__file__, "readings.tsv", "left out"))
def test_what_is_left_out_is_counted(tmp_path, name, content, omitted):
    document = read(tmp_path, name, content)
    assert omitted_text(document.omitted, document.tables) == omitted
    assert "tables" not in document.omitted, "they are read"


@pytest.mark.parametrize(
    ("metadata", "about"),
    [
        (
            "<dc:date>1899-05-20T00:00:00</dc:date><dc:publisher>Press &amp; Sons</dc:publisher><dc:description>"
            '&lt;p&gt;A turtle&lt;/p&gt; swims.</dc:description><meta name="calibre:series" content="Ponds"/><meta '
            'name="calibre:series_index" content="2.0"/><dc:contributor opf:role="nrt">A Human</dc:contributor>',
            {"date": "1899", "publisher": "Press & Sons", "description": "A turtle swims.", "series": "Ponds #2"},
        ),
        (
            '<meta property="belongs-to-collection" id="c">Ponds</meta><meta refines="#c" property="collection-type">'
            'series</meta><meta refines="#c" property="group-position">2</meta><dc:description><p>A</p><p>turtle</p>'
            "</dc:description>",
            {"description": "A turtle", "series": "Ponds #2"},
        ),
        (
            '<meta property="belongs-to-collection" id="c">Shelf</meta><meta refines="#c" property="collection-type">'
            'set</meta><dc:date opf:event="modification">2020</dc:date><dc:date>0101-01-01</dc:date>',
            {},
        ),
        (
            '<dc:creator id="t">The Translator</dc:creator><meta refines="#t" property="role">trl</meta>'
            '<dc:creator opf:role="ill">The Painter</dc:creator>',
            {},
        ),
    ],
)
def test_the_metadata_of_an_epub_are_facts_about_the_book(tmp_path, metadata, about):
    document = read_document(write_book(tmp_path / "a.epub", {"a.xhtml": "<p>Words.</p>"}, metadata=metadata))
    assert (document.title, document.author, document.about) == ("The Turtle", "A. Writer", about)


def test_what_follows_an_empty_title_is_no_title(tmp_path):
    facts = package(["a.xhtml"]).replace("<dc:title>The Turtle</dc:title>", "<dc:title/>a remark")
    book = write_book(tmp_path / "a.epub", {"a.xhtml": "<p>1.</p>"}, files={"OEBPS/book.opf": facts})
    assert read_document(book).title == "a"


def test_utf_16_with_its_mark_and_windows_line_ends_are_read(tmp_path):
    assert texts(read(tmp_path, "a.txt", "Öde.\r\n\r\nZwei.".encode("utf-16"))) == ["Öde.", "Zwei."]


def test_standard_input_is_plain_text_or_an_epub(tmp_path, monkeypatch):
    book = write_book(tmp_path / "book.epub", {"a.xhtml": "<p>From an EPUB.</p>"})
    for content, expected in ((b"Piped text.", "Piped text."), (book.read_bytes(), "From an EPUB.")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert texts(read_document("-")) == [expected]
    monkeypatch.setattr(reading, "MAX_TEXT", 1 << 20)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Long. " * 300_000)))
    with pytest.raises(UserError, match="standard input: it has more than 1 MB, more than any book"):
        read_document("-")


def test_a_picture_is_told_what_can_be_read(tmp_path):
    (tmp_path / "pond.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    with pytest.raises(
        UserError,
        match=r"pond\.png: it is not a text file, because it contains NUL characters: use one of \.txt, \.md, ",
    ):
        read_document(tmp_path / "pond.png")
