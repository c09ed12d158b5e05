"""Read the metadata of an EPUB: title, authors, language, and other facts that become tags of the sound files."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape

from ane.text.tags import tokenize

LONGEST = {"description": 4000}  # maximum characters of an element. Other elements have 500.
YEAR = re.compile(r"([12]\d{3})(?:-\d\d){0,2}")
# MARC relators: codes for the roles of people who did not write the book
NOT_AUTHORS = ("trl", "ill", "edt", "nrt", "bkp", "aui", "ann", "com", "art", "cov", "pbl")


@dataclass(frozen=True)
class MetadataElement:
    """An element of an EPUB's metadata: its text, its attributes, and the properties that other elements add to it."""

    name: str
    text: str
    attributes: Mapping[str, str]


def read_metadata(markup: str) -> dict[str, list[str]]:
    """Return the metadata in a package document. Each name has a list of texts.

    The names are "title", "creator" and "language". If the document has them, there are also "date" (a year),
    "publisher", "description" and "series".
    """
    facts: dict[str, list[str]] = {"title": [], "creator": [], "language": []}
    every = list(refined(elements(markup)))
    named = {
        element.attributes["name"]: element.attributes.get("content", "")
        for element in every
        if element.attributes.get("name")
    }
    series, position = named.get("calibre:series", ""), named.get("calibre:series_index", "")
    for element in every:
        text = element.text
        if element.attributes.get("property") == "belongs-to-collection" and (
            element.attributes.get("collection-type", "series") == "series"
        ):
            series, position = text, element.attributes.get("group-position", "")
        elif (
            element.name == "date"
            and (year := YEAR.match(text))
            and element.attributes.get("opf:event", "publication") in ("publication", "original-publication")
        ):
            facts.setdefault("date", []).append(year[1])
        elif element.name == "description":
            facts.setdefault("description", []).append(" ".join(re.sub("<[^<>]*>", " ", unescape(text)).split()))
        elif element.name in ("title", "publisher", "language") or (
            element.name == "creator" and element.attributes.get("role", "aut") not in NOT_AUTHORS
        ):
            facts.setdefault(element.name, []).append(text)
    if series:
        facts["series"] = [f"{series} #{position.removesuffix('.0')}" if position else series]
    return {name: [text for text in texts if text] for name, texts in facts.items()}


def elements(markup: str) -> Iterator[MetadataElement]:
    """Yield the elements of the metadata in order."""
    name, attributes, text = "", dict[str, str](), ""
    for token in tokenize(markup):
        if token.kind == "text":
            text += token.value[: LONGEST.get(name, 500)]
        elif token.kind == "start":
            if name == "description":  # a description may contain HTML elements
                text += " "
                continue
            name, text, attributes = token.value, "", dict(token.attributes)
            if role := attributes.get("opf:role"):
                attributes["role"] = role
        elif token.value == "metadata":
            return
        elif token.value == name:
            yield MetadataElement(name, " ".join(text.split())[: LONGEST.get(name, 500)], attributes)
            name = text = ""


def refined(every: Iterator[MetadataElement]) -> Iterator[MetadataElement]:
    """Yield the elements with the properties that ``<meta refines="#id">`` elements add to them."""
    held, properties = [], dict[str, dict[str, str]]()
    for element in every:
        if target := element.attributes.get("refines", "").removeprefix("#"):
            properties.setdefault(target, {})[element.attributes.get("property", "")] = element.text
        else:
            held.append(element)
    for element in held:
        yield MetadataElement(
            element.name, element.text, {**element.attributes, **properties.get(element.attributes.get("id", ""), {})}
        )
