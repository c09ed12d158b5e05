"""Test a short novel with every kind of text in four formats: omitted text is named, and its words are counted."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ane.books.document import Document
from ane.books.reading import read_document
from ane.text.blocks import SCENE_BREAK
from ane.text.omissions import omitted_text
from tests.books.book_files import write_docx, write_pdf
from tests.books.documents import write_listed


class NovelPart(NamedTuple):
    """A part of the novel. ``kind``: what it is; a ``note`` and all of "rights" and "contents" are left out."""

    kind: str
    text: str
    note: str = ""


Part = NovelPart
TITLES = {"I": "The Pond", "II": "The Letter", "III": "The Return"}
NOVEL = [
    Part("rights", "Copyright © 2020 A. Writer. All rights reserved."),
    Part("rights", "ISBN 978-3-16-148410-0"),
    Part("contents", "I The Pond"),
    Part("contents", "II The Letter"),
    Part("contents", "III The Return"),
    Part("text", "For Anna, who swims in every pond that she can find between here and the sea, and in all weather."),
    Part("heading", "Prologue"),
    Part(
        "text",
        "It had rained for nine days, and on the tenth the turtle came up the road to the house of Mr. Hale, "
        "slowly, as turtles do, and knocked. Nobody came, for nobody was at home but a well-known cat.",
    ),
    Part("heading", "I"),
    Part(
        "text",
        "The pond lay behind the house. It was deep, and green, and older than the oldest of the twenty-one "
        "willows around it, as the people of the village told one another in the evening.",
        "1 The people of the village told one another many things.",
    ),
    Part("speech", "“Will you go down to the pond with me today?”"),
    Part("speech", "“I will go if the rain has ended by then,” said Anna."),
    Part("speech", "“It has ended. Look out of the window and see!”"),
    Part(
        "text",
        "She looked out, and it had. The willows stood in the sun, and under them stood the turtle, "
        "who seemed "
        "to wait for somebody, though one could not say for whom, or for how long.",
    ),
    Part("scene", "* * *"),
    Part(
        "text",
        "In the night it sang. Nobody had heard a turtle sing before, and nobody has heard one since, so that "
        "the words of the song are told here as they were written down by the light of a candle:",
    ),
    Part(
        "verse",
        "O slowly goes the turtle\nand slowly goes the day,\nand slowly all the willows\nwill bend and fade away.",
    ),
    Part("heading", "II"),
    Part(
        "text",
        "The letter came on a Monday. It was short, and it had been long on its way, for the stamp was from a "
        "country that had ended in 1918, as Mr. Hale saw at once and said.",
    ),
    Part("text", "Dear Anna, I am coming back. Keep the pond as it is, and let nobody in. Yours, T."),
    Part(
        "text",
        "Below it stood a table, which Anna read three times and did not understand at all, since "
        "the turtle had "
        "never before shown any sign of an interest in numbers or in the days of the week.",
    ),
    Part("row", "Monday, nine"),
    Part("row", "Tuesday, ten"),
    Part("heading", "III"),
    Part(
        "text",
        "So it came back, and this time somebody was at home. Anna opened the door, and the cat went "
        "out, and the "
        "turtle came in and lay down before the fire as if it had always lain there.",
    ),
    Part("heading", "Afterword"),
    Part(
        "text",
        "I thank the pond, which has no part in the faults of this book, and the cat, which has a "
        "part in all of "
        "them, as everybody knows who has tried to write a page in the company of a cat.",
    ),
]


def heading(name: str) -> str:
    return f"{name}. {TITLES[name]}" if name in TITLES else name


def as_text(path: Path) -> Path:
    """Lines of 60 characters, between empty ones; titles in capitals; a note in brackets below its paragraph."""
    found: list[str] = ["CONTENTS"]
    for part in [*(one for one in NOVEL if one.kind == "contents"), *(one for one in NOVEL if one.kind != "contents")]:
        text = heading(part.text).upper() if part.kind == "heading" else part.text
        found.append("\n".join(wrapped(text, 60)) if part.kind in ("text", "speech") else text)
        found += [f"[{part.note.replace(' ', '] ', 1)}"] if part.note else []
    path.write_text("\n\n".join(found), encoding="utf-8")
    return path


def wrapped(text: str, width: int) -> list[str]:
    """Words in lines of at most ``width`` characters."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def as_epub(path: Path) -> Path:
    """A file for each heading, of which the contents list the three chapters alone. The page of rights has no title."""
    files: dict[str, list[str]] = {"rights.xhtml": [], "contents.xhtml": ["<h1>Contents</h1>"], "dedication.xhtml": []}
    name = "dedication.xhtml"
    for number, part in enumerate(NOVEL):
        if part.kind == "heading":
            name = f"{part.text}.xhtml"
            files[name] = [f"<h1>{heading(part.text)}</h1>"]
            continue
        mark = f'<a epub:type="noteref" href="#n{number}">1</a>' if part.note else ""
        note = f'<aside epub:type="footnote" id="n{number}">{part.note}</aside>' if part.note else ""
        inside = part.text.replace("\n", "<br/>")
        row = "<table><tr>" + "".join(f"<td>{cell}</td>" for cell in inside.split(", ")) + "</tr></table>"
        markup = row if part.kind == "row" else "<hr/>" if part.kind == "scene" else f"<p>{inside}{mark}</p>{note}"
        files[f"{part.kind}.xhtml" if part.kind in ("rights", "contents") else name].append(markup)
    documents = {file: "".join(parts) for file, parts in files.items()}
    return write_listed(path, documents, {f"{name}.xhtml": heading(name) for name in TITLES})


def as_docx(path: Path) -> Path:
    """Headings by their level, notes as footnotes, the table as one."""
    body = ['<w:p><w:pPr><w:outlineLvl w:val="0"/></w:pPr><w:r><w:t>Contents</w:t></w:r></w:p>']
    notes = []
    for part in [*(one for one in NOVEL if one.kind == "contents"), *(one for one in NOVEL if one.kind != "contents")]:
        text = "</w:t><w:br/><w:t>".join((heading(part.text) if part.kind == "heading" else part.text).split("\n"))
        level = '<w:pPr><w:outlineLvl w:val="0"/></w:pPr>' if part.kind == "heading" else ""
        mark = f'<w:r><w:footnoteReference w:id="{len(notes)}"/></w:r>' if part.note else ""
        notes += (
            [f'<w:footnote w:id="{len(notes)}"><w:p><w:r><w:t>{part.note}</w:t></w:r></w:p></w:footnote>']
            if part.note
            else []
        )
        body.append(f"<w:p>{level}<w:r><w:t>{text}</w:t></w:r>{mark}</w:p>")
    return write_docx(path, "".join(body), footnotes=f"<w:footnotes>{''.join(notes)}</w:footnotes>")


def as_pdf(path: Path) -> Path:
    """Pages with a head and a number; a number and a title of large letters; indented first lines; notes below."""
    pages: list[list[tuple[float, float, float, str]]] = []
    notes: dict[int, str] = {}

    def page() -> None:
        pages.append([(180, 570, 9, "The Turtle"), (200, 20, 9, str(len(pages) + 1))])

    def line(text: str, left: float = 50, size: float = 11, gap: float = 13) -> None:
        nonlocal height
        if height < 80:
            page()
            height = 550
        height -= gap
        pages[-1].insert(-1, (left, height, size, text))

    page()
    height = 550.0
    line("Contents", size=18)
    for part in [*(one for one in NOVEL if one.kind == "contents"), *(one for one in NOVEL if one.kind != "contents")]:
        if part.kind == "heading":
            page()
            height = 550
            for text in filter(None, (part.text, TITLES.get(part.text))):
                line(text, size=18, gap=30)
            height -= 20
        elif part.kind == "contents":
            line(f"{part.text} . . . . . . 7")
        elif part.kind in ("verse", "scene", "row", "rights"):
            for number, text in enumerate(part.text.split("\n")):
                line(text, left=80 if part.kind == "verse" else 50, gap=13 if number else 30)
            height -= 17
        else:
            for number, text in enumerate(wrapped(part.text, 62)):
                line(text, left=50 if number else 65)
        if part.note:
            notes[len(pages) - 1] = part.note
    for number, note in notes.items():
        pages[number].insert(-1, (50, 40, 8, note))
    return write_pdf(path, pages)


WRITERS: dict[str, Callable[[Path], Path]] = {"a.txt": as_text, "a.epub": as_epub, "a.docx": as_docx, "a.pdf": as_pdf}


def words(text: str) -> list[str]:
    return re.findall(r"\w+(?:[-’']\w+)*", text.casefold())


def spoken(document: Document) -> list[str]:
    return words(" ".join(block.text for chapter in document.chapters for block in chapter.blocks))


def wanted() -> list[str]:
    """The words that a narrator reads."""
    return words(
        " ".join(
            heading(part.text) if part.kind == "heading" else part.text
            for part in NOVEL
            if part.kind not in ("rights", "contents", "scene")
        )
    )


@pytest.mark.parametrize("name", WRITERS)
def test_every_word_is_read_or_named(tmp_path, name):
    document = read_document(WRITERS[name](tmp_path / name))
    assert spoken(document) == wanted()
    assert len(wanted()) > 350
    named = words(" ".join(f"{part.title} {part.words}" for part in document.left_out))
    assert {"contents", "pond", "letter"} <= {*named}
    assert {"copyright", "2020", "writer", "978-3-16-148410-0"} <= {*named}
    assert "1 footnote" in omitted_text(document.omitted)


@pytest.mark.parametrize("name", WRITERS)
def test_the_chapters_the_verse_and_the_scene_break_are_those_of_the_novel(tmp_path, name):
    document = read_document(WRITERS[name](tmp_path / name))
    titles = [" ".join(words(chapter.title)) for chapter in document.chapters]
    assert titles[-5:] == ["prologue", "i the pond", "ii the letter", "iii the return", "afterword"]
    assert len(titles) == 6, "what stands before the prologue is a chapter too"
    kinds = [block.kind for chapter in document.chapters for block in chapter.blocks]
    assert kinds.count(SCENE_BREAK) == 1
    texts = [block.text for chapter in document.chapters for block in chapter.blocks]
    assert [text for text in texts if text.startswith("“")] == [part.text for part in NOVEL if part.kind == "speech"]


@pytest.mark.parametrize("name", WRITERS)
def test_all_of_the_novel_is_read_if_it_is_asked_for(tmp_path, name):
    document = read_document(WRITERS[name](tmp_path / name), ["front-matter", "footnotes"])
    everything = Counter(words(" ".join(f"{heading(part.text)} {part.note}" for part in NOVEL)))
    assert not everything - Counter(spoken(document)) - Counter(["7", "1"])
