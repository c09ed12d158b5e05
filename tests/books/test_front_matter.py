"""Test which text counts as front matter, and that no author's text is left out with a copyright page before it."""

from itertools import accumulate

import pytest

from ane.books.reading import read_document
from ane.cli import main
from tests.books.book_files import run, write_book, write_docx, write_pdf
from tests.books.documents import chapters, named, write_listed
from tests.tables import rows

PARTS = {
    "copyright.xhtml": "<h1>Copyright</h1><p>All rights reserved.</p>",
    "epigraph.xhtml": "<p>Still waters.</p>",
    "prologue.xhtml": "<h1>Prologue</h1><p>It rained.</p>",
    "one.xhtml": "<h1>One</h1><p>It woke.</p>",
    "two.xhtml": "<h1>Two</h1><p>It slept.</p>",
    "index.xhtml": "<h1>Index</h1><p>turtle, 12</p>",
    "afterword.xhtml": "<p>I thank the pond.</p>",
}
LISTED = {"copyright.xhtml": "Copyright", "one.xhtml": "One", "two.xhtml": "Two", "index.xhtml": "Index"}


@pytest.mark.parametrize(("name", "content", "kept", "out"), rows(__file__, "readings.tsv", "front matter"))
def test_text_below_contents_is_a_chapter_of_its_own(tmp_path, name, content, kept, out):
    (tmp_path / name).write_text(content)
    document = read_document(tmp_path / name)
    assert " || ".join(text for _, text in chapters(document)) == kept
    assert " || ".join(f"{title}: {words}" for _, title, words in named(document)) == out


def test_the_list_names_what_is_left_out_with_its_first_words(tmp_path, capsys):
    words = "No part of this book may be reproduced \x1b[31mwithout the written permission of the turtle itself. " * 9
    parts = {**PARTS, "copyright.xhtml": f"<h1>Copyright</h1><p>{words}</p>"}
    book = write_listed(tmp_path / "a.epub", parts, LISTED)
    assert main(["read", "--list", str(book)]) == 0
    printed = " ".join("".join(capsys.readouterr()).split())
    assert "left out: 2 parts of front matter" in printed
    assert "part of front matter: Copyright: No part of this book may be reproduced" in printed
    assert "\x1b[31m" not in printed
    assert "part of front matter: Index: turtle, 12" in printed
    assert "Prologue" in printed


def test_the_list_names_the_first_five_footnotes(tmp_path, capsys):
    marks = "".join(f'word <a id="r{n}" href="#n{n}">{n}</a>' for n in range(7))
    notes = "".join(f'<p id="n{n}"><a href="#r{n}">{n}</a> Remark {n}.</p>' for n in range(7))
    (tmp_path / "a.html").write_text(f"<p>{marks}</p><h2>Notes</h2>{notes}")
    assert main(["read", "--list", str(tmp_path / "a.html")]) == 0
    printed = capsys.readouterr().err
    assert "left out: 7 footnotes\n" in printed
    assert "left out, footnote: 4 Remark 4. (3 words)\n" in printed
    assert "Remark 5" not in printed
    assert "left out: 2 more footnotes, which --keep footnotes reads aloud\n" in printed


def test_front_matter_without_text_is_named_by_its_file(tmp_path, succeed):
    files = {"cover.xhtml": '<section epub:type="cover"><svg><path/></svg></section>', "one.xhtml": PARTS["one.xhtml"]}
    assert "left out, part of front matter: OEBPS/cover.xhtml\n" in succeed(
        "read", "--list", str(write_book(tmp_path / "a.epub", files))
    )


def test_contents_and_scene_breaks_of_a_pdf_are_no_part_of_the_text_around_them(tmp_path):
    pytest.importorskip("pypdfium2", reason="pip install '.[books]'")
    for size, above in ((11, []), (16, []), (11, [(50, 540, 26, "The Turtle")])):
        texts = ["Contents", "Chapter One 3", "Chapter Two 9"]
        first = [*above, *((50, 500 - 14 * n, size if not n else 11, text) for n, text in enumerate(texts))]
        pages = [
            [(50, 500, 20, f"Chapter {name}"), *((50, 450 - 14 * n, 11, text) for n, text in enumerate(lines))]
            for name, lines in (
                (
                    "One",
                    ["It was late and the turtle slept in its house by the pond", "until it woke.", "* * *", "Then it"],
                ),
                ("Two", ["It swam to the other side and came back in the evening of", "that day."]),
            )
        ]
        document = read_document(write_pdf(tmp_path / "a.pdf", [first, *pages]))
        assert [chapter.title for chapter in document.chapters][-2:] == ["Chapter One", "Chapter Two"]
        assert ("front-matter", "Contents") in [part[:2] for part in named(document)]
        assert [(block.kind, block.text) for block in document.chapters[-2].blocks[2:]] == [
            ("scene break", ""),
            ("paragraph", "Then it"),
        ]
        assert "Contents" not in " ".join(text for _, text in chapters(document))


def test_what_follows_a_copyright_page_of_word_or_pdf_is_kept(tmp_path):
    texts = [
        "Copyright",
        "Copyright 2020 Anna Writer. All rights reserved.",
        "This is for Anna, who swims.",
        "One",
        "It woke.",
        "Two",
        "It slept.",
    ]
    titles = ("Copyright", "One", "Two")
    lines = [*texts[:1], *texts[1].split(". "), *texts[2:]]
    heights = accumulate((13 if line in texts[1][26:] else 40 for line in lines), initial=0)
    write_pdf(
        tmp_path / "a.pdf",
        [
            [
                (50, 550 - height, 18 if line in titles else 11, line)
                for line, height in zip(lines, [*heights][1:], strict=True)
            ]
        ],
    )
    write_docx(
        tmp_path / "a.docx",
        "".join(
            f'<w:p><w:pPr><w:outlineLvl w:val="{0 if text in titles else 9}"/></w:pPr>{run(text)}</w:p>'
            for text in texts
        ),
    )
    for name in ("a.docx", "a.pdf"):
        document = read_document(tmp_path / name)
        assert chapters(document) == [("", texts[2]), ("One", "One It woke."), ("Two", "Two It slept.")], name
        assert [part.title for part in document.left_out] == ["Copyright"]


@pytest.mark.parametrize("name", ["a.epub", "a.html", "a.docx", "a.txt"])
def test_the_list_states_how_many_words_are_left_out(tmp_path, succeed, name):
    words = "Copyright 2020 A. Writer. " + "No part of this book may be reproduced. " * 30
    if name == "a.epub":
        write_book(tmp_path / name, {"a.xhtml": f"<h1>Copyright</h1><p>{words}</p>", "b.xhtml": "<p>It woke.</p>"})
    elif name == "a.html":
        (tmp_path / name).write_text(f'<section class="copyright"><p>{words}<p></section><p>It woke.</p>')
    elif name == "a.docx":
        write_docx(
            tmp_path / name,
            "".join(
                f'<w:p><w:pPr><w:outlineLvl w:val="{9 if text is words else 0}"/></w:pPr>{run(text)}</w:p>'
                for text in ("Copyright", words, "One", "Two")
            ),
        )
    else:
        (tmp_path / name).write_text(f"COPYRIGHT\n\n{words}\n\nCHAPTER 1\n\nIt woke.\n\nCHAPTER 2\n\nIt slept.\n")
    assert "(244 words)" in " ".join(succeed("read", "--list", tmp_path / name).split())


def test_an_index_that_the_guide_names_is_left_out_however_long_it_is(tmp_path):
    entries = "".join(f"<p>turtle of the year {year}, see frog.</p>" for year in range(1900, 2000))
    document = read_document(
        write_book(
            tmp_path / "a.epub",
            {"a.xhtml": "<p>It woke.</p>", "i.xhtml": entries},
            guide='<guide><reference type="index" href="i.xhtml"/></guide>',
        )
    )
    assert chapters(document) == [("", "It woke.")]
    assert [(part.title, part.length) for part in document.left_out] == [("OEBPS/i.xhtml", 700)]
