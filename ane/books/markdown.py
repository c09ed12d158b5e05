"""Markdown to blocks: CommonMark with tables, YAML front matter and footnotes."""

import re
from collections.abc import Mapping
from dataclasses import replace

from ane.books.document import Document
from ane.books.html_reader import read_html
from ane.books.omissions import Omission

FRONT_MATTER = re.compile(r"---[ \t]*\n(.{0,20000}?)\n(?:---|\.\.\.)[ \t]*(?:\n|$)", re.DOTALL)
FIELD = re.compile(r"(?m)^(title|author|lang|language):[ \t]*(.*?)[ \t]*$")
NOTE = re.compile(r"(?m)^\[\^([^\]\s]{1,50})\]:[ \t]*(.*(?:\n(?:[ \t]+\S.*|(?=\n[ \t]+\S)))*)")
NOTE_REFERENCE = re.compile(r"\[\^[^\]\s]{1,50}\]")


def read_markdown(text: str, rules: Mapping[str, Omission]) -> Document:
    """Rendered to HTML and read as such. The front matter gives title, author and language and is not read aloud."""
    from markdown_it import MarkdownIt

    fields: dict[str, str] = {}
    front = FRONT_MATTER.match(text)
    if front:
        fields = {name: value.strip("\"'") for name, value in FIELD.findall(front[1])}
        text = text[front.end():]
    if "footnotes" in rules:
        text = NOTE_REFERENCE.sub("", NOTE.sub("", text))
    else:
        text = NOTE_REFERENCE.sub("", NOTE.sub(r"\2", text))
    document = read_html(MarkdownIt("commonmark").enable("table").render(text), rules)
    return replace(document, title=fields.get("title", document.title), author=fields.get("author", ""),
                   language=fields.get("lang", fields.get("language", "")))
