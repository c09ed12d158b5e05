"""Test `ane read` as a user runs it."""

import json
import signal
from functools import partial
from pathlib import Path

import pytest

from ane.books.reading import read_document
from ane.cli import main
from ane.commands.read_options import chunk_numbers
from tests.books.book_files import write_book
from tests.books.documents import write_listed

FAST = ("--bundle=demo", "--preset=fastest", "--max-codes", "20")
TEXT = "# One\n\nHello there.\n\n# Two\n\nThe end.\n"


@pytest.fixture(autouse=True)
def book(workplace) -> None:
    (workplace / "book.md").write_text(TEXT, encoding="utf-8")


def test_a_missing_file_of_a_book_is_named_with_its_chapter(workplace, capsys):
    listed = {"a.xhtml": "One", "b.xhtml": "The Letter"}
    spine = '<itemref idref="d0"/><itemref idref="x"/>'
    item = '<item id="x" href="b.xhtml" media-type="application/xhtml+xml"/>'
    write_listed(workplace / "a.epub", {"a.xhtml": "<p>It woke.</p>"}, listed, more=item, spine=spine)
    said = (
        "the sound will lack the text of OEBPS/b.xhtml ('The Letter'), which may be a chapter: it lacks "
        "'OEBPS/b.xhtml', a part of the text: it is incomplete"
    )
    for flags in (["-o", "a.wav", *FAST, "--retries", "0"], ["--text"]):
        assert main(["read", "a.epub", *flags]) == 0
        assert f"warning: {said}" in " ".join(capsys.readouterr().err.split())
    assert main(["read", "a.epub", "--list"]) == 0
    assert "file that cannot be read: OEBPS/b.xhtml ('The Letter'): it lacks" in capsys.readouterr().err


def test_a_faster_book_is_shorter_and_its_words_are_timed_in_its_own_time(workplace):
    """The chunks of both have the same codes."""
    text = "# One\n\nThe boy looked at three thousand brushes at the village.\n"
    (workplace / "book.md").write_text(text, encoding="utf-8")
    seconds = []
    for options in (["--speed", "0.8"], ["--speed", "1.6"]):
        flags = ["--bundle=demo", "--preset=fastest", "--seed", "1", "--times", "--word-times", "--retries", "0"]
        assert main(["read", "book.md", "-o", "book.wav", *flags, *options]) == 0
        chunk = json.loads((workplace / "book.json").read_text())["chapters"][0]["chunks"][1]
        seconds.append(chunk["end"] - chunk["start"])
        assert chunk["start"] <= chunk["words"][0]["start"]
        assert seconds[-1] / 2 < chunk["words"][-1]["end"] - chunk["words"][0]["start"] <= seconds[-1]
    assert seconds[0] / seconds[1] == pytest.approx(2, rel=0.1)


def test_ranges_of_chunks():
    assert chunk_numbers("12,40-44,12") == (12, 40, 41, 42, 43, 44)
    assert chunk_numbers("3 - 4, 1") == (1, 3, 4)


def test_an_interruption_states_what_is_kept(workplace, capsys, monkeypatch):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore Ctrl-C
    monkeypatch.setattr("ane.books.narration.narrate", lambda *_: signal.raise_signal(signal.SIGINT))
    assert main(["read", "book.md", "-o", "book.wav", *FAST]) == 130
    assert "interrupted; 0 of 4 chunks are kept for the next run of this command; no file" in capsys.readouterr().err


def test_flags_give_a_text_the_tags_that_an_epub_has(succeed):
    facts = ("--year", "1899", "--publisher", "Press", "--series", "Ponds#2", "--description", "Of a turtle.")
    succeed("read", "book.md", "-o", "book.epub", *FAST, "--retries", "0", *facts)
    about = {"date": "1899", "publisher": "Press", "series": "Ponds #2", "description": "Of a turtle."}
    assert read_document("book.epub").about == about
    succeed("read", "book.epub", "-o", "book.mp3", *FAST, "--retries", "0", "--year", "1900", "--preview", "1")
    av = pytest.importorskip("av", reason="pip install '.[books]'")
    with av.open("book.mp3") as file:
        tags = {name.lower().removeprefix("id3v2_priv."): value for name, value in file.metadata.items()}
    assert tags["date"] == "1900", "a flag precedes the book"
    assert {name: tags[name] for name in ("publisher", "grouping")} == {"publisher": "Press", "grouping": "Ponds #2"}


def test_a_job_that_began_with_the_title_page_keeps_the_numbers_of_its_chapters(workplace, succeed):
    files = {
        "title.xhtml": "<p>The Turtle</p><p>A. Writer</p>",
        "one.xhtml": "<h1>One</h1><p>It rained.</p>",
        "two.xhtml": "<h1>Two</h1><p>It snowed.</p>",
    }
    read = partial(succeed, "read", write_book(workplace / "book.epub", files))
    read("--chapters", "2", "-o", "old.wav", "--keep", "title-page")  # as earlier versions read the book
    former = Path("old.wav").read_bytes()
    printed = read("--chapters", "2", "-o", "old.wav")
    for said in (
        "(0 of 2 chunks spoken now",
        "this is chapter 2 of 3",
        "the job began with the title page as a chapter, so it keeps the page",
    ):
        assert said in printed
    assert Path("old.wav").read_bytes() == former
    for output, titles in (((), ["One", "Two"]), (("-o", "old.wav"), ["The Turtle", "One", "Two"])):
        listed, *_ = read("--list", *output, "--json").splitlines()
        assert [chapter["title"] for chapter in json.loads(listed)] == titles
    assert read("--chapters", "2", "--text", "-o", "old.wav").startswith("One\n\nIt rained.\n")
    assert "this is chapter 2 of 2" in read("--chapters", "2", "-o", "new.wav")
    assert Path("new.wav").read_bytes() != former
