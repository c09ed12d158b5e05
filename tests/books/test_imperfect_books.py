"""Test books with common faults: a missing file, an old encoding, empty contents, a page without a title."""

import pytest

from ane.books.reading import read_document
from ane.text import normalise_english
from ane.text.omissions import omitted_text
from tests.books.book_files import package, write_archive, write_book, write_pdf
from tests.books.test_front_matter import chapters, named
from tests.books.test_hostile_files import CONTAINER
from tests.tables import rows

ITEM = '<item id="x" href="{}" media-type="application/xhtml+xml"/>'
SPINE = '<itemref idref="d0"/><itemref idref="x"/><itemref idref="d1"/>'
PAGES = {"a.xhtml": "<h1>One</h1><p>It woke.</p>", "b.xhtml": "<h1>Two</h1><p>It slept.</p>"}
READ = [("One", "One It woke."), ("Two", "Two It slept.")]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "it lacks 'OEBPS/x.xhtml'"),
        ({"OEBPS/x.xhtml": b"<p>\xff\xfe\xfd</p>"}, "'OEBPS/x.xhtml' in it is not text in UTF-8 (byte 3)"),
        ({"OEBPS/x.xhtml": '<?xml version="1.0" encoding="rot13"?><p>A.'}, "declares the encoding 'rot13'"),
    ],
)
def test_one_file_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path, files, words):
    book = write_book(tmp_path / "a.epub", PAGES, ITEM.format("x.xhtml"), files, spine=SPINE)
    document = read_document(book)
    assert chapters(document) == READ
    assert [part.title for part in document.left_out] == ["OEBPS/x.xhtml"]
    assert words in document.left_out[0].words
    assert omitted_text(document.omitted) == "1 file that cannot be read"


def test_an_entry_of_the_spine_that_the_manifest_lacks_is_named(tmp_path):
    document = read_document(write_book(tmp_path / "a.epub", PAGES, spine=SPINE))
    assert chapters(document) == READ
    assert named(document) == [("unreadable", "x", "its manifest lacks it")]


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


def test_a_book_without_contents_and_headings_has_a_chapter_for_each_file(tmp_path):
    book = write_book(tmp_path / "a.epub", {f"{n}.xhtml": f"<p>Part {n}.</p>" for n in range(3)})
    assert chapters(read_document(book)) == [("", "Part 0."), ("", "Part 1."), ("", "Part 2.")]


RIGHTS = [
    "<p>Copyright © 2020 A. Writer</p><p>All rights reserved.</p><p>Ponds Press, Rome</p>",
    "<p>First published in 2020</p><p>ISBN 978-3-16-148410-0</p><p>Printed in Italy</p>",
    "<div>ISBN-13: 9783161484100<br/>ISBN-10: 316148410X</div>",
]


@pytest.mark.parametrize("page", RIGHTS)
@pytest.mark.parametrize("listed", [False, True])
def test_a_page_of_rights_without_a_title_is_left_out_and_named(tmp_path, page, listed):
    nav = '<item id="nav" href="nav.xhtml" properties="nav"/>' if listed else ""
    files = {"OEBPS/nav.xhtml": '<nav><ol><li><a href="a.xhtml">One</a></li><li><a href="b.xhtml">Two</a></li></ol>'}
    document = read_document(write_book(tmp_path / "a.epub", {"0.xhtml": page, **PAGES}, nav, files))
    assert chapters(document) == READ
    assert [(part.kind, part.title) for part in document.left_out] == [("front-matter", "")]
    assert document.left_out[0].words.split()[0] in page


def test_a_chapter_about_rights_is_read(tmp_path):
    page = "<p>“Copyright © 1920,” she read. It rained on the printed page, and nobody came.</p><p>He left.</p>"
    document = read_document(write_book(tmp_path / "a.epub", {"0.xhtml": page, **PAGES}))
    assert "she read" in chapters(document)[0][1]


@pytest.mark.parametrize(("markup", "text", "spoken"), rows(__file__, "readings.tsv", "superscripts"))
def test_a_superscript_is_a_power_and_no_part_of_the_number(tmp_path, markup, text, spoken):
    (tmp_path / "a.html").write_text(f"<p>{markup}</p>")
    [(_, found)] = chapters(read_document(tmp_path / "a.html"))
    assert found == text
    assert spoken in normalise_english(found)


def test_rights_without_a_title_are_left_out_of_text_and_word(tmp_path):
    lines = [
        "THE TURTLE",
        "by A. Writer",
        "Copyright © 2020 A. Writer. All rights reserved.",
        "ISBN 978-3-16-148410-0",
        "For Anna, who swims.",
        "CHAPTER 1",
        "It woke. ISBN is a number.",
        "CHAPTER 2",
        "It slept.",
    ]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    document = read_document(tmp_path / "a.txt")
    assert chapters(document) == [
        ("THE TURTLE", "THE TURTLE by A. Writer For Anna, who swims."),
        ("CHAPTER 1", "CHAPTER 1 It woke. ISBN is a number."),
        ("CHAPTER 2", "CHAPTER 2 It slept."),
    ]
    assert named(document) == [("front-matter", "", f"{lines[2]} ISBN 978-3-16-148410-0")]
    assert omitted_text(document.omitted) == "1 part of front matter"


def paged(head: str, sentences: list[str], number: str = "{}", gap: str = "\n\n") -> str:
    """A text of pages that end within sentences: a head above, a number below."""
    return "".join(
        f"{head}{gap}{sentence}{gap}{number.format(page)}{gap}" for page, sentence in enumerate(sentences, 41)
    )


PAGES_OF_TEXT = ["It was the", "frog that swam. Then it", "rained on the pond, and the", "turtle slept."]
TOGETHER = "It was the frog that swam. Then it rained on the pond, and the turtle slept."


@pytest.mark.parametrize(
    "text",
    [
        paged("THE TURTLE", PAGES_OF_TEXT),
        paged("THE TURTLE", PAGES_OF_TEXT, gap="\n"),
        paged("The Turtle", PAGES_OF_TEXT, "\f"),
        paged("", PAGES_OF_TEXT),
        paged("", PAGES_OF_TEXT, "- {} -"),
        paged("", PAGES_OF_TEXT, "THE TURTLE   {}"),
        paged("", PAGES_OF_TEXT, "{} THE TURTLE"),
    ],
)
def test_running_heads_and_page_numbers_of_a_text_are_no_chapters_and_break_no_sentence(tmp_path, text):
    (tmp_path / "a.txt").write_text(f"CHAPTER 1\n\n{text}\n\nCHAPTER 2\n\nIt woke.\n\nIt swam.\n")
    document = read_document(tmp_path / "a.txt")
    assert chapters(document) == [("CHAPTER 1", f"CHAPTER 1 {TOGETHER}"), ("CHAPTER 2", "CHAPTER 2 It woke. It swam.")]
    assert sum(document.omitted.values()) in (4, 8)
    assert TOGETHER not in str(chapters(read_document(tmp_path / "a.txt", ["page-numbers"])))


@pytest.mark.parametrize(
    "text",
    [
        "1\n\nIt woke.\n\n2\n\nIt slept.\n\n3\n\nIt swam.\n\n4\n\nIt ate.",
        "1\n\nit woke.\n\n2\n\nit slept.\n\n3\n\nit swam.",
        "THE FROG\n\nIt woke.\n\n" * 5,
        "Yes.\n\nNo.\n\n" * 5,
        "She read:\n\n1\n\nand he laughed.\n\nTHE SIGN\n\nIt slept.",
    ],
)
def test_numbers_of_chapters_and_titles_that_recur_are_kept(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    found = " ".join(words for _, words in chapters(read_document(tmp_path / "a.txt")))
    assert found.split() == text.split()


@pytest.mark.parametrize(
    "line",
    ["J. K. ST. JOHN", "BY A. A. MILNE", "THE END", "The End.", "FINIS", "ISBN 978-3-16-148410-0", "END OF PART ONE"],
)
def test_what_is_no_title_begins_no_chapter(tmp_path, line):
    (tmp_path / "a.txt").write_text(f"CHAPTER 1\n\nIt woke.\n\n{line}\n\nCHAPTER 2\n\nIt slept.")
    document = read_document(tmp_path / "a.txt", ["front-matter"])
    assert [title for title, _ in chapters(document)] == ["CHAPTER 1", "CHAPTER 2"]
    assert line in chapters(document)[0][1]


@pytest.mark.parametrize(
    "line", ["I. THE POND", "V. THE FROG", "CHAPTER 1. A. MILNE", "A. THE POND", "THE ENDLESS POND"]
)
def test_a_title_with_one_letter_is_a_title(tmp_path, line):
    (tmp_path / "a.txt").write_text(f"{line}\n\nIt woke.\n\n{line} TOO\n\nIt slept.")
    assert [title for title, _ in chapters(read_document(tmp_path / "a.txt"))] == [line, f"{line} TOO"]


def test_dotted_lines_of_contents_without_a_title_are_left_out_and_named(tmp_path):
    (tmp_path / "a.txt").write_text(
        "THE TURTLE\n\nCHAPTER 1 ........ 3\nCHAPTER 2 . . . . . 9\n\nFor Anna.\n\n"
        "CHAPTER 1\n\nIt woke.\n\nCHAPTER 2\n\nIt slept."
    )
    document = read_document(tmp_path / "a.txt")
    assert [title for title, _ in chapters(document)] == ["THE TURTLE", "CHAPTER 1", "CHAPTER 2"]
    assert named(document) == [("front-matter", "", "CHAPTER 1 ........ 3 CHAPTER 2 . . . . . 9")]


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
