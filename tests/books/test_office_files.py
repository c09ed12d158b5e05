"""Test Word documents and PDFs: their structure, and the text that is not read aloud."""

import sys
import time
from io import BytesIO
from types import SimpleNamespace

import pytest

from ane.books import pdf
from ane.books.reading import read_document
from ane.system.child_process import ChildProcess
from ane.system.errors import UserError
from ane.text.blocks import HEADING, ITEM, PARAGRAPH, QUOTATION, SCENE_BREAK
from ane.text.omissions import active_omissions
from tests.books.book_files import OFFICE, paragraph, run, write_archive, write_docx, write_pdf

BODY = 11
ENCRYPTION = f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O ({'o' * 32}) /U ({'u' * 32}) >> /ID [(a) (a)] "


def kinds(document) -> list[tuple[str, str, int]]:
    return [(block.kind, block.text, block.level) for chapter in document.chapters for block in chapter.blocks]


def test_a_document_of_word_has_chapters_lists_quotations_and_facts(tmp_path):
    docx = pytest.importorskip("docx", reason="pip install python-docx")
    made = docx.Document()
    made.core_properties.title, made.core_properties.author = "The Turtle", "A. Writer"
    made.add_heading("The Turtle", 0)
    for chapter in ("One", "Two"):
        made.add_heading(chapter, 1)
        made.add_paragraph("It was ").add_run("late.").bold = True
        made.add_paragraph("* * *")
        made.add_paragraph("a thing", style="List Bullet")
        made.add_paragraph("To be.", style="Intense Quote")
    made.add_table(1, 2).cell(0, 1).text = "in a table"
    made.save(tmp_path / "book.docx")
    document = read_document(tmp_path / "book.docx")
    assert (document.title, document.author, document.language) == ("The Turtle", "A. Writer", "en-US")
    assert [chapter.title for chapter in document.chapters] == ["The Turtle", "One", "Two"]
    assert kinds(document)[1:6] == [
        (HEADING, "One", 2),
        (PARAGRAPH, "It was late.", 0),
        (SCENE_BREAK, "", 0),
        (ITEM, "a thing", 0),
        (QUOTATION, "To be.", 0),
    ]
    assert (kinds(document)[-1], document.omitted, document.tables) == ((PARAGRAPH, "in a table", 0), {}, 1)


def test_properties_of_word_may_be_empty_or_too_long(tmp_path):
    facts = f"<cp:coreProperties><dc:title/><dc:creator>{'x' * 600}</dc:creator>"
    document = read_document(write_docx(tmp_path / "a.docx", paragraph(run("Text.")), **{"docProps/core.xml": facts}))
    assert (document.title, document.author) == ("a", "x" * 500)


def test_a_sheet_is_no_text_of_word(tmp_path):
    relation = f'<Relationship Type="{OFFICE}" Target="xl/workbook.xml"/>'
    path = write_archive(tmp_path / "a.docx", {"[Content_Types].xml": "", "_rels/.rels": relation})
    with pytest.raises(UserError, match="an archive without a Word text"):
        read_document(path)


def page(number: int, *lines: tuple[float, str], note: str = "") -> list:
    """A page with a running head, its number, and lines of text with their indents."""
    text = [(50 + indent, 500 - 14 * index, BODY, line) for index, (indent, line) in enumerate(lines)]
    return [
        (50, 560, 8, f"{number} The Turtle's Long Way"),
        *text,
        *([(50, 60, 8, note)] if note else []),
        (200, 30, 9, str(number)),
    ]


@pytest.fixture
def book(tmp_path):
    pytest.importorskip("pypdfium2", reason="pip install '.[books]'")
    pages = [
        [
            (50, 540, 20, "Chapter 1"),
            *page(
                11,
                (0, "The turtle went slowly down the road to the wa-"),
                (0, "ter and did some well-known things in it, and thought of"),
                (0, "nothing at all."),
                (15, "Then it did other well-"),
                (0, "known things, and it swam as far as the other side, un-"),
                note="1 A note of the printer.",
            ),
        ],
        page(
            12,
            (0, "til it came back and was as happy as a turtle may be in the"),
            (0, "evening of a day."),
            (15, "Nobody saw it, or so it thought, since nobody was there."),
        ),
        [(50, 540, 20, "Chapter 2"), *page(13, (0, "It slept for all of the following winter in its own house."))],
    ]
    return write_pdf(tmp_path / "book.pdf", pages)


def test_a_pdf_has_chapters_and_paragraphs_without_hyphens_heads_numbers_and_notes(book):
    document = read_document(book)
    assert (document.title, document.author) == ("The Turtle", "A. Writer")
    assert kinds(document) == [
        (HEADING, "Chapter 1", 1),
        (
            PARAGRAPH,
            "The turtle went slowly down the road to the water and did some well-known things in it, and "
            "thought of nothing at all.",
            0,
        ),
        (
            PARAGRAPH,
            "Then it did other well-known things, and it swam as far as the other side, until it came back and "
            "was as happy as a turtle may be in the evening of a day.",
            0,
        ),
        (PARAGRAPH, "Nobody saw it, or so it thought, since nobody was there.", 0),
        (HEADING, "Chapter 2", 1),
        (PARAGRAPH, "It slept for all of the following winter in its own house.", 0),
    ]
    assert document.omitted == {"running-heads": 3, "page-numbers": 3, "footnotes": 1, "hyphens": 2}


def test_a_word_goes_on_after_its_hyphen_and_a_footnote_in_small_letters_does_not(tmp_path):
    lines = pytest.importorskip("ane.books.pdf_lines", reason="pip install '.[books]'")
    path = write_pdf(
        tmp_path / "a.pdf",
        [[(50, 500, BODY, "down to the wa-"), (50, 486, BODY, "ter and over-"), (50, 60, 7, "see the other side")]],
    )
    [page] = lines.read(str(path), 9, 9999)["pages"]
    assert [text for text, *_ in page] == ["down to the wa\x02ter and over\x02", "see the other side"]


def test_an_indent_from_the_text_and_half_an_empty_line_begin_a_paragraph_of_a_pdf():
    places = [
        ("Chapter 1", 150, 250, 540, 20),
        ("It was late, and", 50, 370, 500, BODY),
        ("the turtle slept.", 50, 370, 486, BODY),
        ("Then it woke and", 65, 370, 472, BODY),
        ("nobody saw it", 50, 370, 451, BODY),
    ]
    page = [pdf.PdfLine(text, left, right, bottom, bottom, size) for text, left, right, bottom, size in places]
    assert [[line.text for line in lines] for lines in pdf.paragraphs([page], BODY)] == [
        ["Chapter 1"],
        ["It was late, and", "the turtle slept."],
        ["Then it woke and"],
        ["nobody saw it"],
    ]


def test_a_pdf_of_one_size_has_the_headings_of_plain_text(tmp_path):
    pytest.importorskip("pypdfium2", reason="pip install '.[books]'")
    pages = [
        [
            (50, 500, BODY, f"CHAPTER {number}"),
            (50, 460, BODY, f"It is {word}."),
            (50, 446, BODY, "It is"),
            (50, 432, BODY, f"{word} again."),
        ]
        for number, word in enumerate(("here", "there", "gone"), 1)
    ]
    assert [chapter.title for chapter in read_document(write_pdf(tmp_path / "a.pdf", pages)).chapters] == [
        "CHAPTER 1",
        "CHAPTER 2",
        "CHAPTER 3",
    ]


def test_a_pdf_is_read_from_standard_input_and_its_heads_numbers_and_notes_can_be_kept(book, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=BytesIO(book.read_bytes())))
    texts = [text for _, text, _ in kinds(read_document("-", ["page-numbers", "footnotes"]))]
    assert {"Chapter 1", "11 The Turtle's Long Way"} <= set(texts)
    assert any("A note of the printer." in text for text in texts)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"%PDF-1.7 and nothing more", "it is a PDF that cannot be read"),
        ([[]], "it has 1 pages without text, so it may be scanned"),
        ([[(50, 500, BODY, "text")]], "it is protected by a password"),
        ([[(50, 500, BODY, "text")]] * 3, "it has more than 2 pages"),
    ],
)
def test_a_pdf_that_cannot_be_read_is_one_clear_line(tmp_path, monkeypatch, content, message):
    pytest.importorskip("pypdfium2", reason="pip install '.[books]'")
    monkeypatch.setattr(pdf, "MAX_PAGES", 2)
    path = tmp_path / "a.pdf"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_pdf(path, content, more=ENCRYPTION if "password" in message else "")
    with pytest.raises(UserError, match=message):
        read_document(path)


def test_a_pdf_that_takes_too_long_is_refused_and_its_process_has_ended(book, monkeypatch):
    started = []
    monkeypatch.setattr(
        pdf, "ChildProcess", lambda *given, **more: started.append(ChildProcess(*given, **more)) or started[0]
    )
    monkeypatch.setattr(pdf, "SECONDS", 0)
    with pytest.raises(UserError, match="cannot be read within the limits of time and memory"):
        read_document(book)
    assert started[0].returncode == -9


PAGES = {
    "dots": [["." * 100_000]],
    "letters": [["a" * 200_000]],
    "lines": [["It is"] * 20_000],
    "hyphens": [["a-"] * 20_000],
    "words of hyphens": [["a\x02" * 100_000]],
    "quotes": [['."' * 100_000]],
    "pages": [["1"]] * 20_000,
    "numbers": [["1 " * 100_000]],
}


@pytest.mark.parametrize("pages", PAGES.values(), ids=PAGES)
def test_the_time_for_what_pdfium_finds_grows_with_its_length(tmp_path, monkeypatch, pages):
    found = {
        "title": "",
        "author": "",
        "images": 0,
        "pages": [[[text, 50, 350, -12 * place, -12 * place, 12] for place, text in enumerate(page)] for page in pages],
    }
    monkeypatch.setattr(pdf, "extracted", lambda path: found)
    began = time.process_time()
    pdf.read_pdf(tmp_path / "a.pdf", active_omissions())
    assert time.process_time() - began < 10


def test_the_time_for_a_document_of_word_grows_with_its_length(tmp_path):
    styles = "".join(f'<w:style w:styleId="s{n}"><w:basedOn w:val="s{n + 1}"/></w:style>' for n in range(10_000))
    notes = '<w:footnote w:id="1">' + "<w:t>a</w:t>" * 100_000
    path = write_docx(tmp_path / "a.docx", paragraph(run("a"), "s0") * 10_000, styles=styles, footnotes=notes)
    began = time.process_time()
    read_document(path, ["footnotes"])
    assert time.process_time() - began < 20


def test_without_pypdfium_the_command_is_named(book, monkeypatch):
    monkeypatch.setattr(pdf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install '\.\[books\]'"):
        read_document(book)


OTHER = {
    "I": "II",
    "The Letter": "An Answer",
    "Chapter One": "Chapter Two",
    "IV.": "V.",
    "Part One": "Part Two",
    "Chapter 1": "Chapter 2",
    "From Rome": "From Paris",
}


@pytest.mark.parametrize(
    ("lines", "titles"),
    [
        ([("I", 20), ("The Letter", 20)], ["I The Letter"]),
        ([("Chapter One", 14), ("The Letter", 22)], ["Chapter One The Letter"]),
        ([("IV.", 24), ("The Letter", 18)], ["IV. The Letter"]),
        ([("Part One", 24), ("Chapter 1", 18)], ["Part One", "Chapter 1"]),
        ([("The Letter", 20), ("From Rome", 20)], ["The Letter", "From Rome"]),
    ],
)
def test_a_number_and_a_title_of_large_letters_are_one_heading(tmp_path, lines, titles):
    body = [(50, 400 - 13 * number, BODY, "It was the line of a long text that goes on") for number in range(6)]
    pages = [
        [(50, 550 - 40 * number, size, text) for number, (text, size) in enumerate(lines)] + body,
        [(50, 550 - 40 * number, size, OTHER[text]) for number, (text, size) in enumerate(lines)] + body,
    ]
    document = read_document(write_pdf(tmp_path / "a.pdf", pages))
    assert [chapter.title for chapter in document.chapters][: len(titles)] == titles
    assert len(document.chapters) == 2 * len(titles)


LONG = "It was the first of all the many lines of a text about a pond and"  # a line as wide as the page
SPOKEN = [
    "“I will not go to the pond with you again today.”",
    "“You will go to the pond with me if I say so.”",
    "“Then I will, but I will not swim in it at all.”",
]


@pytest.mark.parametrize(
    "spoken",
    [
        SPOKEN,
        [text.strip("“”") for text in SPOKEN],
        ["—" + text.strip("“”") for text in SPOKEN],
        [text.replace("“", '"').replace("”", '"') for text in SPOKEN],
    ],
)
def test_each_paragraph_of_dialogue_in_a_pdf_is_its_own(tmp_path, spoken):
    lines = [
        (65, LONG),
        (50, LONG),
        (50, "the turtle slept."),
        *((65, text) for text in spoken),
        (65, LONG),
        (50, LONG),
        (50, "it slept."),
    ]
    path = write_pdf(
        tmp_path / "a.pdf", [[(left, 550 - 13 * number, BODY, text) for number, (left, text) in enumerate(lines)]]
    )
    texts = [text for _, text, _ in kinds(read_document(path))]
    assert texts == [f"{LONG} {LONG} the turtle slept.", *spoken, f"{LONG} {LONG} it slept."]


def test_a_quotation_whose_lines_are_all_indented_is_one_paragraph(tmp_path):
    quoted = [
        "It was the first of all the many lines. And it was the",
        "second of them that went on and on to its end. He",
        "saw.",
    ]
    lines = [
        (50, LONG),
        (50, LONG),
        (50, "the turtle slept."),
        *((65, text) for text in quoted),
        (50, LONG),
        (50, LONG),
    ]
    path = write_pdf(
        tmp_path / "a.pdf", [[(left, 550 - 13 * number, BODY, text) for number, (left, text) in enumerate(lines)]]
    )
    assert " ".join(quoted) in [text for _, text, _ in kinds(read_document(path))]
