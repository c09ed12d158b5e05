"""Define the named rules for the parts of a book that a narrator leaves out. You can turn each rule off."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ane.system.errors import UserError
from ane.text.lexicon import words


@dataclass(frozen=True)
class Omission:
    """A rule for parts that are not read aloud: HTML elements, and elements of some types and classes."""

    summary: str  # for the help and the documentation
    elements: frozenset[str] = frozenset()
    # values of ``epub:type`` (EPUB Structural Semantics Vocabulary), of ``role`` without its "doc-" (DPUB-ARIA) and of
    # ``<reference type>`` in an EPUB 2 guide
    types: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()  # in lower case, as transcribers use them


OMISSIONS = {
    "front-matter": Omission(
        "cover, title page, copyright, lists of contents and of figures, index, colophon",
        types=words(
            "cover titlepage title-page halftitlepage copyright-page toc imprint imprimatur colophon index "
            "contents loi lot loa lov seriespage other-credits errata frontmatter-metadata"
        ),
        classes=words("titlepage title-page copyright pg-boilerplate pgheader transnote"),
    ),
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
# Titles of chapters that are front matter where the book does not mark them.
FRONT_TITLES = re.compile(
    r"(?i)(?:cover|(?:half[- ]?)?title ?page|copyright(?: page| notice)?|(?:table of )?contents|index|colophon|imprint|"
    r"list of (?:figures|tables|illustrations|plates|maps)|also by\b.*|(?:other )?books by\b.*|by the same author|"
    r"transcriber.s notes?|the full project gutenberg licen[cs]e)"
)
NOTE_MARK = re.compile(r"\s*[\[({]?(?:\d{1,4}|[a-z]|[ivx]{1,5}|[*†‡§¶]{1,3})[\])}]?\s*")
# In text without markup.
BRACKETED_MARK = re.compile(r"(?<=[^\s\[])(?:\[\d{1,4}\])+")
NOTE_PARAGRAPH = re.compile(r"\[(?:Footnote )?\d{1,4}[\]:].*", re.DOTALL)
PAGE_NUMBER = re.compile(
    r"(?i)(?:\[?(?:page|pg\.?|p\.)\s*\d{1,5}(?: (?:of|/) \d{1,5})?\]?|"
    r"[-–—] ?\d{1,5} ?[-–—]|\{\d{1,5}\})"
)


TABLES = "tables"  # counted with the omissions, but read
# The counted kinds of omissions: singular, plural.
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
# Elements that cannot be spoken.
UNSPEAKABLE = {"img": "images", "image": "images", "svg": "images", "canvas": "images", "math": "formulas"}
NOTE_MARKS = words("noteref backlink fnanchor footnote-ref")  # types and classes of references to notes


def is_front_title(title: str) -> bool:
    """Return whether a title, with or without a stop after it, is a title of front matter."""
    return FRONT_TITLES.fullmatch(title.rstrip(" .:")) is not None


def omitted_text(omitted: Mapping[str, int], tables: int = 0) -> str:
    """Describe omissions, as "31 footnotes, 1 listing of code; read aloud: 2 tables".

    Returns "" if there are none and no table is read.
    """
    parts = [f"{omitted[kind]} {names[omitted[kind] > 1]}" for kind, names in COUNTED.items() if omitted.get(kind)]
    read = f"; read aloud: {tables} table{'s' * (tables > 1)}" if tables else ""
    return (", ".join(parts) or ("nothing" if read else "")) + read


def can_be_kept(omitted: Mapping[str, int]) -> bool:
    """Return whether a rule that ``keep`` turns off left out one of these parts."""
    return any(omitted.get(kind) for kind in (*OMISSIONS, "running-heads"))


def counted_omissions(counts: Counter[str]) -> dict[str, int]:
    """Count omissions by the kinds of ``COUNTED``.

    A footnote counts once: by the marks that refer to notes, or by the notes.
    """
    notes = {"footnotes": max(counts["footnotes"], counts["marks"])}
    return {kind: count for kind, count in {**counts, **notes}.items() if kind in COUNTED and count}


def active_omissions(keep: Collection[str] = ()) -> Mapping[str, Omission]:
    """Return the rules that apply if the rules named in ``keep`` are turned off.

    Raises UserError for an unknown name.
    """
    for name in keep:
        if name not in OMISSIONS:
            raise UserError(f"keep must name rules of {', '.join(OMISSIONS)}; got {name!r}", "keep")
    return {name: rule for name, rule in OMISSIONS.items() if name not in keep}
