"""Test Markdown and fragments of HTML in spoken text: marks identify them, and they are read like documents."""

import re
from pathlib import Path

import pytest

from ane.books.reading import read_document
from ane.system.errors import UserError
from ane.text import normalise_english, read_passages, without_markdown
from ane.text.markdown import MarkdownFeed, has_marks
from tests.tables import rows


def spoken(text: str) -> str:
    return " | ".join(normalise_english(part) for part in without_markdown(text).split("\n\n") if part.strip())


@pytest.mark.parametrize(("text", "expected"), rows(__file__, "markdown.tsv", "spoken"))
def test_marks_are_read_as_in_a_document(text: str, expected: str) -> None:
    assert has_marks(text)
    assert spoken(text) == expected


@pytest.mark.parametrize("text", [row for [row] in rows(__file__, "markdown.tsv", "no marks")])
def test_a_text_without_marks_stays_as_it_is(text: str) -> None:
    assert not has_marks(text)
    assert without_markdown(text) is text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the after-\nnoon in the gar-  \r\n  den", "the afternoon in the garden"),
        ("a well-\nknown man", "a well-known man"),
        ("pre-\nand post-war, won-\nderful", "pre- and post-war, wonderful"),
        ("an up-\nto-date list", "an up-to-date list"),
        ("Well-\nMr. Lee -\nand 5-\n6", "Well-\nMr. Lee -\nand 5-\n6"),
        ("Take milk -\nor [pause:1s] un-\nderstand", "Take milk -\nor |understand"),
    ],
)
def test_a_word_divided_at_a_line_end_is_one_word(text: str, expected: str) -> None:
    assert "|".join(passage.text.lstrip() for passage in read_passages(text)) == expected


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize(("text", "expected"), rows(__file__, "markdown.tsv", "spoken"))
def test_a_text_that_arrives_in_pieces_has_no_listing_and_whole_tables(text: str, expected: str, size: int) -> None:
    """The feed takes out what the pieces of a text cannot show; the rest is as it was."""
    reader = MarkdownFeed()
    ready = [reader.feed(text[at : at + size]) for at in range(0, len(text), size)]
    fed = "".join([*ready, reader.finish()])
    assert re.findall(r"[\w']+", spoken(fed)) == re.findall(r"[\w']+", expected)


def test_text_is_passed_on_at_once_and_a_listing_holds_nothing() -> None:
    reader = MarkdownFeed()
    assert reader.feed("It was ") == "It was "
    assert reader.feed("late.\n") == "late.\n"
    assert reader.feed("```python\n" + "x = 1\n" * 100_000) == ""
    assert len(reader._line) + len(reader._table) < 1000
    assert reader.feed("```\nThen") == "\n\nThen"
    assert len(reader.feed("\n" + "| a " * 2000)) > 4000, "a table without end is not held"


def test_pauses_and_voices_in_markdown_stay_and_a_faulty_one_is_named_with_its_line() -> None:
    passages = read_passages("# One\n\n**Two** [pause:1s](see below) [voice:anna](three)[voice]\n")
    assert [(passage.text.strip(), passage.silence, passage.voice) for passage in passages] == [
        ("One.\n\nTwo", 1.0, ""),
        ("(see below)", 0.0, ""),
        ("(three)", 0.0, "anna"),
    ]
    with pytest.raises(UserError, match=r"line 3: \[pause:9x\]"):
        read_passages("# One\n\n[pause:9x]")


def test_the_flag_forces_and_forbids(tmp_path: Path) -> None:
    assert [passage.text for passage in read_passages("a\nb", markdown=True)] == ["a b."]
    assert [passage.text for passage in read_passages("# a", markdown=False)] == ["# a"]
    (tmp_path / "a.txt").write_text("# One\n\nIt woke.\n")
    titles = {
        flag: [chapter.title for chapter in read_document(tmp_path / "a.txt", markdown=flag).chapters]
        for flag in (None, True, False)
    }
    assert titles == {None: [""], True: ["One"], False: [""]}
    (tmp_path / "a.html").write_text("<p>One")
    with pytest.raises(UserError, match=r"markdown has no effect on .*a\.html"):
        read_document(tmp_path / "a.html", markdown=True)


def test_a_document_leaves_out_the_same(tmp_path: Path) -> None:
    text = (
        "Some ~~old~~ text[^1] costs $\\frac{1}{2}$ and $x^2$.\n\n- [x] done\n\n[^1]: A note.\n\n```\ncode\n```\n\n"
        "![x](y.png) [docs](docs/index.md)\n"
    )
    (tmp_path / "a.md").write_text(text)
    document = read_document(tmp_path / "a.md")
    assert [block.text for chapter in document.chapters for block in chapter.blocks] == [
        "Some text costs and x^2.",
        "done",
        "docs",
    ]
    assert document.omitted == {"footnotes": 1, "code": 1, "struck": 1, "images": 1, "formulas": 1}


@pytest.mark.parametrize("unit", [" ", "\t", "| ", "-", "|-"])
def test_a_long_line_that_could_begin_a_table_takes_linear_time(unit):
    """In quadratic time, a line of spaces would take a minute."""
    assert not has_marks(unit * (100_000 // len(unit)) + "x")
