"""Test which text counts as front matter, and that no author's text is left out with a copyright page before it."""

from itertools import accumulate
from pathlib import Path

import pytest

from ane.books.document import Document
from ane.books.reading import read_document
from ane.cli import main
from tests.books.book_files import write_book, write_pdf
from tests.books.test_office_files import paragraph, run, write_docx
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
NAV = '<item id="nav" href="nav.xhtml" properties="nav" media-type="application/xhtml+xml"/>'
NCX = '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'


def write_listed(path: Path, documents: dict[str, str], listed: dict[str, str], ncx: bool = False) -> Path:
    """A book whose contents list only some of its documents, by their path with a fragment or without."""
    links = "".join(f'<li><a href="{target}">{title}</a></li>' for target, title in listed.items())
    points = "".join(
        f'<navPoint><navLabel><text>{title}</text></navLabel><content src="{target}"/></navPoint>'
        for target, title in listed.items()
    )
    contents = (
        {"OEBPS/toc.ncx": f"<ncx><navMap>{points}</navMap></ncx>"}
        if ncx
        else {"OEBPS/nav.xhtml": f'<nav epub:type="toc"><ol>{links}</ol></nav>'}
    )
    return write_book(path, documents, NCX if ncx else NAV, contents)


def chapters(document: Document) -> list[tuple[str, str]]:
    return [(chapter.title, " ".join(block.text for block in chapter.blocks)) for chapter in document.chapters]


def named(document: Document) -> list[tuple[str, str, str]]:
    return [(part.kind, part.title, part.words) for part in document.left_out]


@pytest.mark.parametrize("ncx", [False, True])
def test_a_file_that_the_contents_do_not_list_is_a_chapter_of_its_own(tmp_path, ncx):
    document = read_document(write_listed(tmp_path / "a.epub", PARTS, LISTED, ncx))
    assert chapters(document) == [
        ("Still waters.", "Still waters."),
        ("Prologue", "Prologue It rained."),
        ("One", "One It woke."),
        ("Two", "Two It slept."),
        ("I thank the pond.", "I thank the pond."),
    ]
    assert named(document) == [
        ("front-matter", "Copyright", "All rights reserved."),
        ("front-matter", "Index", "turtle, 12"),
    ]
    assert document.omitted == {"front-matter": 2}


@pytest.mark.parametrize("kept", PARTS)
def test_no_file_is_lost_whatever_the_contents_list(tmp_path, kept):
    """For each file: a book whose contents list that file alone."""
    document = read_document(write_listed(tmp_path / "a.epub", PARTS, {kept: "Whatever"}), ["front-matter"])
    assert [text.partition(" ")[2] or text for _, text in chapters(document)] == [
        "All rights reserved.",
        "waters.",
        "It rained.",
        "It woke.",
        "It slept.",
        "turtle, 12",
        "thank the pond.",
    ]


def test_what_stands_before_the_place_that_the_contents_name_is_no_part_of_the_file_before(tmp_path):
    documents = {
        "c.xhtml": "<h1>Copyright</h1><p>All rights reserved.</p>",
        "a.xhtml": '<p>For Anna.</p><h1 id="one">One</h1><p>It woke.</p>',
        "b.xhtml": '<h1>Part Two</h1><h2><a id="two"></a>Two</h2><p>It slept.</p>',
        "d.xhtml": '<h2>Three<a id="three"></a></h2><p>It swam.</p>',
    }
    listed = {"c.xhtml": "Copyright", "a.xhtml#one": "One", "b.xhtml#two": "Two", "d.xhtml#three": "Three"}
    assert chapters(read_document(write_listed(tmp_path / "a.epub", documents, listed))) == [
        ("For Anna.", "For Anna."),
        ("One", "One It woke."),
        ("Two", "Part Two Two It slept."),
        ("Three", "Three It swam."),
    ]


def test_the_pieces_of_a_file_that_a_program_divided_stay_one_chapter(tmp_path):
    documents = {
        "x_split_000.html": "<h1>Copyright</h1><p>ISBN 1</p>",
        "x_split_001.html": "<p>For Anna.</p>",
        "x_split_002.html": "<h1>One</h1>",
        "x_split_003.html": "<p>It woke.</p>",
        "x_split_004.html": "<h2>Two</h2><p>It slept.</p>",
    }
    listed = {"x_split_000.html": "Copyright", "x_split_002.html": "One"}
    assert chapters(read_document(write_listed(tmp_path / "a.epub", documents, listed))) == [
        ("For Anna.", "For Anna."),
        ("One", "One It woke."),
        ("Two", "Two It slept."),
    ]


def test_without_contents_what_follows_front_matter_is_kept(tmp_path):
    document = read_document(write_book(tmp_path / "a.epub", PARTS))
    assert chapters(document) == [
        ("", "Still waters."),
        ("Prologue", "Prologue It rained."),
        ("One", "One It woke."),
        ("Two", "Two It slept."),
        ("", "I thank the pond."),
    ]


def test_what_markup_the_guide_and_the_spine_leave_out_is_named(tmp_path):
    documents = {
        "a.xhtml": '<section epub:type="titlepage"><h1>The Turtle</h1><p>A novel</p></section><p>It rained.',
        "b.xhtml": "<p>All rights reserved.",
        "c.xhtml": "<p>A side path.",
        "d.xhtml": "<p>It woke.",
    }
    book = write_book(
        tmp_path / "a.epub",
        documents,
        guide='<guide><reference type="copyright-page" href="b.xhtml"/></guide>',
        spine='<itemref idref="d0"/><itemref idref="d1"/><itemref idref="d2" linear="no"/><itemref idref="d3"/>',
    )
    document = read_document(book)
    assert named(document) == [
        ("front-matter", "", "The Turtle A novel"),
        ("front-matter", "OEBPS/b.xhtml", "All rights reserved."),
        ("auxiliary", "OEBPS/c.xhtml", "A side path."),
    ]
    assert document.omitted == {"front-matter": 2, "auxiliary": 1}
    assert "A side path." in "".join(text for _, text in chapters(read_document(book, ["footnotes"])))


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
    printed = " ".join(capsys.readouterr().out.split())
    assert "left out: 2 parts of front matter" in printed
    assert "part of front matter: Copyright: No part of this book may be reproduced" in printed
    assert "\x1b[31m" not in printed
    assert "part of front matter: Index: turtle, 12" in printed
    assert "Prologue" in printed


TITLE_STYLES = (
    '<w:styles><w:style w:styleId="T"><w:name w:val="Title"/></w:style>'
    '<w:style w:styleId="H"><w:name w:val="heading 1"/></w:style></w:styles>'
)


@pytest.mark.parametrize(
    ("page", "kept"),
    [
        (["The Turtle", "A. Writer"], []),
        (["The Turtle", "A novel", "by Somebody Else", "Pond Press", "1899"], []),
        (["The Turtle", "A. Writer", "For my mother"], ["For my mother"]),
        (["The Turtle"], ["The Turtle"]),  # a narrator speaks a title alone
        (["The Turtle", "It was late.", "A. Writer"], ["The Turtle", "It was late.", "A. Writer"]),
        (["A. Writer", "It was late."], ["A. Writer", "It was late."]),
    ],
)
def test_a_title_page_without_markup_has_the_title_and_an_author(tmp_path, page, kept):
    one = "<h1>One</h1><p>It rained.</p>"
    files = {"cover.xhtml": f"<body><p>{'</p><p>'.join(page)}</p></body>", "one.xhtml": one}
    body = paragraph(run(page[0]), "T") + "".join(map(paragraph, map(run, page[1:])))
    read = [
        read_document(write_book(tmp_path / "a.epub", files)),
        read_document(
            write_book(
                tmp_path / "b.epub",
                {"a.xhtml": f"<h1>{page[0]}</h1>" + "".join(f"<p>{line}</p>" for line in page[1:]) + one},
            )
        ),
    ]
    if page[0] == "The Turtle":
        text = body + paragraph(run("One"), "H") + paragraph(run("It rained."))
        facts = {"docProps/core.xml": "<dc:creator>A. Writer</dc:creator>"}
        read.append(read_document(write_docx(tmp_path / "a.docx", text, styles=TITLE_STYLES, **facts)))
        assert read[-1].title == "The Turtle"
    for document in read:
        texts = [block.text for chapter in document.chapters for block in chapter.blocks]
        assert texts == [*kept, "One", "It rained."]
        assert document.omitted.get("front-matter", 0) == (page != kept)
    assert len(read_document(tmp_path / "a.epub", ["front-matter"]).chapters) >= len(read[0].chapters)


def test_front_matter_without_text_is_named_by_its_file(tmp_path, capsys):
    files = {"cover.xhtml": '<section epub:type="cover"><svg><path/></svg></section>', "one.xhtml": PARTS["one.xhtml"]}
    assert main(["read", "--list", str(write_book(tmp_path / "a.epub", files))]) == 0
    assert "left out, part of front matter: OEBPS/cover.xhtml\n" in capsys.readouterr().out


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


NOTICE = "<p>Copyright 2020 A. Writer. All rights reserved.</p>"
STORY = " ".join(f"The turtle swam for {number} days, and nobody saw it." for number in range(2, 60))
CHAPTERS = "".join(f"<h{{0}}>{title}</h{{0}}><p>It was {title.lower()}.</p>" for title in ("One", "Two", "Three"))
THREE = [(title, f"{title} It was {title.lower()}.") for title in ("One", "Two", "Three")]
IN_ONE_FILE = {
    "a prologue that the contents do not list": (
        f'<h1>Copyright</h1>{NOTICE}<h1>Prologue</h1><p>{STORY}</p><h1 id="one">One</h1><p>It woke.</p>',
        {"a.xhtml": "Copyright", "a.xhtml#one": "One"},
        [("Prologue", f"Prologue {STORY}"), ("One", "One It woke.")],
        ["Copyright"],
    ),
    "chapters that the contents do not list": (
        f"<h1>Copyright</h1>{NOTICE}{CHAPTERS.format(1)}",
        {"a.xhtml": "Copyright"},
        THREE,
        ["Copyright"],
    ),
    "smaller headings": (f"<h1>Copyright</h1>{NOTICE}{CHAPTERS.format(2)}", {}, THREE, ["Copyright"]),
    "chapters below a list": (
        f"<h1>Contents</h1><ol><li>One</li><li>Two</li><li>Three</li></ol>{CHAPTERS.format(1)}",
        {},
        THREE,
        ["Contents"],
    ),
    "a list with headings, then chapters": (
        "<h1>Contents</h1><h2>Part I</h2><p>One</p><p>Two</p><h2>Part II</h2><ul><li>Three</li></ul>"
        f"{CHAPTERS.format(2)}",
        {},
        THREE,
        ["Contents"],
    ),
    "a list of headings, then chapters": (
        f"<h2>Contents</h2><h2>One</h2><h2>Two</h2><h2>Three</h2>{CHAPTERS.format(2)}",
        {},
        THREE,
        ["Contents"],
    ),
    "the title of a part below a list": (
        "<h1>Contents</h1><ul><li>One</li></ul><h2>Part I</h2><h3>One</h3><p>It woke.</p>",
        {},
        [("Part I", "Part I One It woke.")],
        ["Contents"],
    ),
    "several parts of front matter": (
        f"<h1>Copyright</h1>{NOTICE}<h2>This edition</h2><p>ISBN 978-0-00-000000-2</p><h1>Contents</h1><p>One</p>"
        "<h1>One</h1><p>It woke.</p><h1>Index</h1><h2>T</h2><p>turtle, see frog.</p>",
        {},
        [("One", "One It woke.")],
        ["Copyright", "Contents", "Index"],
    ),
    "a verse below rights without a title": (
        f"{NOTICE}<h1>The Pond</h1><p>Tiger, tiger, burning bright</p>",
        {},
        [("The Pond", "The Pond Tiger, tiger, burning bright")],
        [""],
    ),
    "a story without a heading": (f"<h1>Copyright</h1>{NOTICE}<p>{STORY}</p>", {}, [("", STORY)], ["Copyright"]),
    "a story without a heading below a list": (
        f"<h1>Contents</h1><ul><li>One</li></ul><p>{STORY}</p>",
        {},
        [("", STORY)],
        ["Contents"],
    ),
    "a story that the contents call a copyright": (
        f"<p>{STORY}</p>",
        {"a.xhtml": "Copyright"},
        [(STORY[:79].rstrip() + "…", STORY)],
        [],
    ),
    "the title of the book above": (
        f"<h1>The Turtle</h1><h2>Copyright</h2>{NOTICE}<p>The right of A. Writer to be named is asserted.</p>"
        "<h2>One</h2><p>It woke.</p>",
        {"a.xhtml": "Copyright"},
        [("One", "One It woke.")],
        ["Copyright"],
    ),
}


@pytest.mark.parametrize("case", IN_ONE_FILE)
@pytest.mark.parametrize("ncx", [False, True])
def test_front_matter_ends_at_the_next_heading_of_its_file(tmp_path, case, ncx):
    body, listed, kept, out = IN_ONE_FILE[case]
    documents = {"a.xhtml": body, "z.xhtml": "<h1>Last</h1><p>It slept.</p>"}
    book = write_listed(tmp_path / "a.epub", documents, {**listed, "z.xhtml": "Last"} if listed else {}, ncx)
    document = read_document(book)
    assert chapters(document) == [*kept, ("Last", "Last It slept.")]
    assert [part.title for part in document.left_out] == out
    assert document.omitted.get("front-matter", 0) == len(out)
    everything = " ".join(text for _, text in chapters(read_document(book, ["front-matter"])))
    assert all(text in everything for _, text in kept)


@pytest.mark.parametrize("name", ["a.epub", "a.html", "a.docx", "a.txt"])
def test_the_list_states_how_many_words_are_left_out(tmp_path, capsys, name):
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
    assert main(["read", "--list", str(tmp_path / name)]) == 0
    assert "(244 words)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("place", ["a.xhtml", "a.xhtml#list"])
def test_a_file_that_the_guide_calls_contents_is_read_if_it_holds_the_story(tmp_path, place):
    body = f'<h1 id="list">Contents</h1><p>One</p><h1>One</h1><p>{STORY}</p>'
    guide = f'<guide><reference type="toc" href="{place}"/></guide>'
    document = read_document(
        write_book(tmp_path / "a.epub", {"a.xhtml": body, "z.xhtml": "<p>It slept.</p>"}, guide=guide)
    )
    assert chapters(document)[0] == ("One", f"One {STORY} It slept.")
    assert [(part.title, part.length) for part in document.left_out] == [("Contents", 1)]


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


def test_the_title_story_of_a_collection_keeps_its_heading(tmp_path):
    files = {
        "foreword.xhtml": "<h1>Foreword</h1><p>It took years to come to this.</p>",
        "story.xhtml": "<h1>The Turtle</h1><p>by A. Writer</p><p>The morning was clear.</p>",
    }
    document = read_document(write_book(tmp_path / "a.epub", files))
    assert document.chapters[-1].blocks[0].text == "The Turtle"
    assert not document.omitted.get("front-matter", 0)
