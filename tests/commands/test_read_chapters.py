"""Test that the numbers of chapters mean the same chapters in every run of a job."""

import json
from pathlib import Path

from ane.cli import main
from tests.books.book_files import write_book


def test_a_job_that_began_with_the_title_page_keeps_the_numbers_of_its_chapters(workplace, capsys):
    files = {
        "title.xhtml": "<p>The Turtle</p><p>A. Writer</p>",
        "one.xhtml": "<h1>One</h1><p>It rained.</p>",
        "two.xhtml": "<h1>Two</h1><p>It snowed.</p>",
    }
    command = ["read", str(write_book(workplace / "book.epub", files)), "--chapters", "2"]
    assert main([*command, "-o", "old.wav", "--keep", "title-page"]) == 0, "as earlier versions read the book"
    former = Path("old.wav").read_bytes()
    capsys.readouterr()
    assert main([*command, "-o", "old.wav"]) == 0
    err = capsys.readouterr().err
    assert "(0 of 2 chunks spoken now" in err
    assert "this is chapter 2 of 3" in err
    assert "the job began with the title page as a chapter, so it keeps the page" in err
    assert Path("old.wav").read_bytes() == former
    for output, titles in (((), ["One", "Two"]), (("-o", "old.wav"), ["The Turtle", "One", "Two"])):
        assert main([*command[:2], "--list", *output, "--json"]) == 0
        assert [chapter["title"] for chapter in json.loads(capsys.readouterr().out)] == titles
    assert main([*command, "--text", "-o", "old.wav"]) == 0
    assert capsys.readouterr().out == "One\n\nIt rained.\n"
    assert main([*command, "-o", "new.wav"]) == 0
    assert "this is chapter 2 of 2" in capsys.readouterr().err
    assert Path("new.wav").read_bytes() != former


def test_a_number_that_stands_for_another_chapter_than_before_is_said(workplace, capsys):
    book, command = workplace / "book.md", ["read", "book.md", "-o", "book.wav", "--chapters", "2"]
    book.write_text("# One\n\nIt rained.\n\n# Two\n\nIt snowed.\n")
    assert main(command) == 0
    assert "in the last run" not in capsys.readouterr().err
    book.write_text("# Prologue\n\nIt was late.\n\n# One\n\nIt rained.\n\n# Two\n\nIt snowed.\n")
    assert main(command) == 0
    assert "warning: chapter 2 was 'Two' in the last run of this job, and is 'One' now" in capsys.readouterr().err
