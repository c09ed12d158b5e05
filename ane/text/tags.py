"""Read the tags and the text of HTML, XHTML and XML, in time and memory that grow only with the length of the markup.

This is a tokenizer, not a parser of document types: it declares, loads and expands nothing. It replaces each of HTML's
predefined character references once. So a "billion laughs" or an external entity is text without a meaning. It reads
sloppy markup as browsers do, as far as that matters for reading aloud.

The standard library does not fit: expat rejects sloppy XHTML, and the time of html.parser (Python 3.11.7) grows with
the square of the number of unfinished comments and tags.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from html import unescape
from types import MappingProxyType
from typing import NamedTuple

# Every part is bounded by the next "<", so no start can make the scan of another one long; possessive: no backtracking.
TAG = re.compile(r"""<(/?)([A-Za-z_][\w:.-]{0,100})((?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+)>""")
BROKEN_TAG = re.compile(r"</?[A-Za-z_][^<>]*+>")
ATTRIBUTE = re.compile(r"""([\w:.-]{1,100})(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++)))?""")
DECLARATIONS = re.compile(r"<!DOCTYPE[^\[<>]*+\[", re.IGNORECASE)  # a document type that declares something
OTHER = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>"), ("<!", ">"))  # tried in this order
RAW_TEXT = ("script", "style")  # their content is not markup, and is left out


class MarkupToken(NamedTuple):
    """A start tag, an end tag or text."""

    kind: str  # "start", "end" or "text"
    value: str  # the name of the element without its prefix, in lower case; or the text
    attributes: Mapping[str, str] = MappingProxyType({})  # of a start tag; names in lower case, with their prefix


def tokenize(markup: str) -> Iterator[MarkupToken]:
    """Yield the tags and the text of ``markup``, in order. An empty element (``<br/>``) is a start and an end."""
    position, end = 0, len(markup)
    while position < end:
        opening = markup.find("<", position)
        if opening < 0:
            opening = end
        if opening > position:
            yield MarkupToken("text", unescape(markup[position:opening]))
        if opening == end:
            return
        position = opening
        tag = TAG.match(markup, position)
        if tag:
            position = yield from _tag(markup, tag)
            continue
        declarations = DECLARATIONS.match(markup, position)
        if declarations:
            at = markup.find("]>", declarations.end())
            position = at + 2 if at >= 0 else end
            continue
        for start, close in OTHER:
            if markup.startswith(start, position):
                at = markup.find(close, position + len(start))
                if start == "<![CDATA[":
                    yield MarkupToken("text", markup[position + len(start) : at if at >= 0 else end])
                position = at + len(close) if at >= 0 else end
                break
        else:
            broken = BROKEN_TAG.match(markup, position)
            if broken:
                position = broken.end()
            else:
                yield MarkupToken("text", "<")
                position += 1


def _tag(markup: str, tag: re.Match[str]) -> Generator[MarkupToken, None, int]:
    """Yield the tokens of a tag, and return the position after it."""
    name = tag[2].rpartition(":")[2].lower()
    if tag[1]:
        yield MarkupToken("end", name)
        return tag.end()
    attributes = {
        match[1].lower(): unescape(next((value for value in match.groups()[1:] if value is not None), ""))
        for match in ATTRIBUTE.finditer(tag[3])
    }
    yield MarkupToken("start", name, attributes)
    if tag[3].endswith("/"):
        yield MarkupToken("end", name)
    elif tag[2].lower() in RAW_TEXT:  # not a <w:style> of Word
        close = re.compile(f"</{name}", re.IGNORECASE).search(markup, tag.end())
        return close.start() if close else len(markup)
    return tag.end()


def element_texts(markup: str, *names: str) -> list[list[str]]:
    """Return the texts of the elements with each name, in single spaces and of at most 500 characters."""
    texts: dict[str, list[str]] = {name: [] for name in names}
    inside = ""
    for token in tokenize(markup):
        if token.kind != "text":
            inside = token.value if token.kind == "start" else ""
        elif inside in texts and (text := " ".join(token.value.split())[:500]):
            texts[inside].append(text)
    return list(texts.values())
