"""Define the rules for parts of a book that a narrator leaves out. You can turn off a rule by its name."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ane.system.errors import UserError
from ane.text.lexicon import words


@dataclass(frozen=True)
class Omission:
    """A rule for parts that are not read aloud. It leaves out elements with certain names, types or classes."""

    summary: str  # description for the help text and the documentation
    elements: frozenset[str] = frozenset()
    # Values of ``epub:type`` (EPUB Structural Semantics Vocabulary), of ``role`` without "doc-" (DPUB-ARIA), and of
    # ``<reference type>`` in the guide of an EPUB 2.
    types: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()  # values of ``class`` that transcribers of books use, in lower case


OMISSIONS = {
    "front-matter": Omission(
        "cover, title page, copyright, lists of contents and of figures, index, colophon",
        types=words(
            "cover titlepage title-page halftitlepage copyright-page toc imprint imprimatur colophon index "
            "contents loi lot loa lov seriespage other-credits errata frontmatter-metadata"
        ),
        classes=words("titlepage title-page copyright pg-boilerplate pgheader transnote"),
    ),
    "title-page": Omission("title pages without markup in EPUB and Word documents"),
    "footnotes": Omission(
        "footnotes, endnotes, and the marks that refer to them",
        types=words("footnote footnotes endnote endnotes rearnote rearnotes note noteref backlink"),
        classes=words("footnote footnotes endnote endnotes fnanchor noteref footnote-ref"),
    ),
    "page-numbers": Omission(
        "numbers of printed pages, running heads of a PDF",
        types=words("pagebreak page-list"),
        classes=words("pagenum pageno page-number page_number pagenumber pagebreak"),
    ),
    "navigation": Omission(
        "menus and lists of links",
        elements=words("nav menu"),
        types=words("toc toc-brief landmarks page-list navigation"),
        classes=words("toc"),
    ),
    "code": Omission("listings of programs", elements=words("pre")),
    "struck": Omission("text that is struck out", elements=words("s del strike")),
}
# Titles by which chapters are recognised as front matter if the book does not mark them.
FRONT_TITLES = re.compile(
    r"(?i)(?:cover|(?:half[- ]?)?title ?page|copyright(?: page| notice)?|(?:table of )?contents|index|colophon|imprint|"
    r"list of (?:figures|tables|illustrations|plates|maps)|also by\b.*|(?:other )?books by\b.*|by the same author|"
    r"transcriber.s notes?|the full project gutenberg licen[cs]e)"
)
NOTE_MARK = re.compile(r"\s*[\[({]?(?:\d{1,4}|[a-z]|[ivx]{1,5}|[*†‡§¶]{1,3})[\])}]?\s*")
NOTES_TITLE = re.compile(r"(?i)(?:foot|end)?notes?[.:]?")
# References to notes, and page numbers, in text without markup.
BRACKETED_MARK = re.compile(r"(?<=[^\s\[])(?:\[\d{1,4}\])+")
NOTE_PARAGRAPH = re.compile(r"\[(?:Footnote )?\d{1,4}[\]:].*", re.DOTALL)
PAGE_NUMBER = re.compile(
    r"(?i)(?:\[?(?:page|pg\.?|p\.)\s*\d{1,5}(?: (?:of|/) \d{1,5})?\]?|"
    r"[-–—] ?\d{1,5} ?[-–—]|\{\d{1,5}\})"
)


TABLES = "tables"  # tables are read, but they are counted together with the omissions
# The kinds of omissions that are counted, with their names in singular and plural.
COUNTED = {
    "front-matter": ("part of front matter", "parts of front matter"),
    "footnotes": ("footnote", "footnotes"),
    "page-numbers": ("page number", "page numbers"),
    "running-heads": ("running head", "running heads"),
    "hyphens": ("hyphen at a line end", "hyphens at line ends"),
    "code": ("listing of code", "listings of code"),
    "struck": ("part that is struck out", "parts that are struck out"),
    "images": ("image", "images"),
    "formulas": ("formula", "formulas"),
    "unreadable": ("file that cannot be read", "files that cannot be read"),
    "auxiliary": ("part outside the main text", "parts outside the main text"),
}
# Elements that cannot be spoken, and the kind of omission as which each counts.
UNSPEAKABLE = {"img": "images", "image": "images", "svg": "images", "canvas": "images", "math": "formulas"}
NOTE_MARKS = words("noteref backlink fnanchor footnote-ref")  # types and classes of elements that refer to notes


def is_front_title(title: str) -> bool:
    """Return whether a chapter's title shows that it is front matter. A period after the title does not matter."""
    return FRONT_TITLES.fullmatch(title.rstrip(" .:")) is not None


def omitted_text(omitted: Mapping[str, int], tables: int = 0) -> str:
    """Describe omissions, for example as "31 footnotes, 1 listing of code; read aloud: 2 tables".

    Returns "" if nothing is left out and there are no tables.
    """
    parts = [f"{omitted[kind]} {names[omitted[kind] > 1]}" for kind, names in COUNTED.items() if omitted.get(kind)]
    read = f"; read aloud: {tables} table{'s' * (tables > 1)}" if tables else ""
    return (", ".join(parts) or ("nothing" if read else "")) + read


def can_be_kept(omitted: Mapping[str, int]) -> bool:
    """Return whether the setting ``keep`` could keep one of these omissions, because a rule left it out."""
    return any(omitted.get(kind) for kind in (*OMISSIONS, "running-heads"))


def counted_omissions(counts: Counter[str]) -> dict[str, int]:
    """Merge counts of omissions to the kinds of ``COUNTED``.

    A footnote and the mark that refers to it count once: the notes are counted, or the marks.
    """
    notes = {"footnotes": max(counts["footnotes"], counts["marks"])}
    return {kind: count for kind, count in {**counts, **notes}.items() if kind in COUNTED and count}


def active_omissions(keep: Collection[str] = ()) -> Mapping[str, Omission]:
    """Return the rules that apply, which are all except those named in ``keep``.

    Raises:
        UserError: ``keep`` has the name of no rule.
    """
    for name in keep:
        if name not in OMISSIONS:
            raise UserError(f"keep must be one or more of {', '.join(OMISSIONS)}, got {name!r}", "keep")
    return {name: rule for name, rule in OMISSIONS.items() if name not in keep}
