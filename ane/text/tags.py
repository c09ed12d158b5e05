"""Split HTML, XHTML and XML into tags and text, in time and memory that are linear in the length of the markup.

This tokenizer is safe for files from strangers. It ignores document types, so it loads no external entity and expands
no "billion laughs". It replaces only HTML's predefined character references, once. It reads sloppy markup as browsers
do, as far as that matters for reading aloud.

The standard library does not fit. expat rejects sloppy XHTML. html.parser (Python 3.11.7) takes time that is quadratic
in the number of unfinished comments and tags.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from html import unescape
from types import MappingProxyType
from typing import NamedTuple

# A tag. The scan of a tag ends at the next "<" at the latest, and possessive quantifiers never backtrack. So the total
# time is linear.
TAG = re.compile(r"""<(/?)([A-Za-z_][\w:.-]{0,100})((?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+)>""")
BROKEN_TAG = re.compile(r"</?[A-Za-z_][^<>]*+>")
ATTRIBUTE = re.compile(r"""([\w:.-]{1,100})(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++)))?""")
DECLARATIONS = re.compile(r"<!DOCTYPE[^\[<>]*+\[", re.IGNORECASE)  # start of a document type that contains declarations
OTHER = (
    ("<!--", "-->"),
    ("<![CDATA[", "]]>"),
    ("<?", "?>"),
    ("<!", ">"),
)  # beginnings and ends of other markup, which are tried in this order
RAW_TEXT = ("script", "style")  # elements whose content is not markup; it is left out


class MarkupToken(NamedTuple):
    """A start tag, an end tag or text."""

    kind: str  # "start", "end" or "text"
    value: str  # the text, or the name of the element in lower case and without its prefix
    attributes: Mapping[str, str] = MappingProxyType({})  # attributes of a start tag; names are in lower case


def tokenize(markup: str) -> Iterator[MarkupToken]:
    """Yield the tags and the text of ``markup``, in order. ``<br/>`` is a start tag and an end tag."""
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
    elif tag[2].lower() in RAW_TEXT:  # with the prefix, because <w:style> in a Word document is not raw text
        close = re.compile(f"</{name}", re.IGNORECASE).search(markup, tag.end())
        return close.start() if close else len(markup)
    return tag.end()


def element_texts(markup: str, *names: str) -> list[list[str]]:
    """Collect the texts of all elements with certain names. Returns a list of texts for each of ``names``.

    A text has single spaces, and is cut after 500 characters.
    """
    texts: dict[str, list[str]] = {name: [] for name in names}
    inside = ""
    for token in tokenize(markup):
        if token.kind != "text":
            inside = token.value if token.kind == "start" else ""
        elif inside in texts and (text := " ".join(token.value.split())[:500]):
            texts[inside].append(text)
    return list(texts.values())
