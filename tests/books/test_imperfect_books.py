"""Test books with common faults: a missing file, an old encoding, empty contents, a page without a title."""

import pytest

from ane.books.reading import read_document
from ane.text import normalise_english
from tests.books.book_files import package, write_archive, write_book, write_pdf
from tests.books.documents import chapters
from tests.books.test_hostile_files import CONTAINER
from tests.tables import rows


def test_a_file_that_is_no_text_is_named_and_the_others_are_read(tmp_path):
    pages = {"a.xhtml": "<h1>One</h1><p>It woke.</p>", "b.xhtml": "<h1>Two</h1><p>It slept.</p>"}
    spine = '<itemref idref="d0"/><itemref idref="x"/><itemref idref="d1"/>'
    item, files = '<item id="x" href="x.xhtml" media-type="text/html"/>', {"OEBPS/x.xhtml": b"<p>\xff\xfe\xfd</p>"}
    document = read_document(write_book(tmp_path / "a.epub", pages, item, files, spine=spine))
    assert chapters(document) == [("One", "One It woke."), ("Two", "Two It slept.")]
    assert "'OEBPS/x.xhtml' in it is not text in UTF-8 (byte 3)" in document.left_out[0].words


@pytest.mark.parametrize(
    ("meta", "encoding"),
    [
        ('<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-1"/>', "windows-1252"),
        ('<meta charset="windows-1251">', "windows-1251"),
        ("<META CHARSET=ISO-8859-15 />", "iso-8859-15"),
        ('<meta charset="utf-8"/>', "utf-8"),
        ('<meta charset="iso-8859-1"/>', "utf-8"),
    ],
)
def test_a_page_is_read_in_the_encoding_that_its_meta_states(tmp_path, meta, encoding):
    text = {"windows-1251": "Жил-был пруд.", "iso-8859-15": "Été €."}.get(encoding, "Été “là” – 5 €.")
    page = f"<html><head>{meta}</head><body><p>{text}</p></body></html>".encode(encoding)
    book = write_archive(
        tmp_path / "a.epub",
        {"META-INF/container.xml": CONTAINER, "OEBPS/a.xhtml": page, "OEBPS/book.opf": package(["a.xhtml"])},
    )
    (tmp_path / "a.html").write_bytes(page)
    for path in (book, tmp_path / "a.html"):
        assert [words for _, words in chapters(read_document(path))] == [text], path


@pytest.mark.parametrize(("markup", "text", "spoken"), rows(__file__, "readings.tsv", "superscripts"))
def test_a_superscript_is_a_power_and_no_part_of_the_number(tmp_path, markup, text, spoken):
    (tmp_path / "a.html").write_text(f"<p>{markup}</p>")
    [(_, found)] = chapters(read_document(tmp_path / "a.html"))
    assert found == text
    assert spoken in normalise_english(found)


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ("news-", "paper", "newspaper"),
        ("twenty-", "one", "twenty-one"),
        ("well-", "known", "well-known"),
        ("X-", "rays", "X-rays"),
        ("self-", "esteem", "self-esteem"),
        ("tur-", "tle", "turtle"),
        ("be-", "gin", "begin"),
        ("under-", "standing", "understanding"),
        ("elec-", "tions", "elections"),
        ("walk-", "ing", "walking"),
        ("hobbit-", "hole", "hobbit-hole"),
        ("Gan-", "dalf", "Gandalf"),
        ("mother-in-", "law", "mother-in-law"),
        ("1914-", "18", "1914- 18"),
    ],
)
def test_a_word_that_a_line_end_divides_keeps_its_hyphen_only_where_it_has_one(tmp_path, first, second, word):
    lines = [f"They read of the {first}", f"{second} for a long while there."]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n\nIt slept.")
    write_pdf(tmp_path / "a.pdf", [[(50, 550 - 13 * number, 11, line) for number, line in enumerate(lines)]])
    for name in ("a.txt", "a.pdf"):
        assert f"the {word} for" in chapters(read_document(tmp_path / name))[0][1], name
