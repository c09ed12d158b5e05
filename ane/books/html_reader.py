"""Read HTML and Markdown documents as chapters."""

import re
from collections.abc import Mapping
from dataclasses import replace

from ane.books.document import Document, split_at_headings
from ane.books.linked_notes import linked_notes
from ane.text.blocks import TextBlock
from ane.text.html_blocks import BlockReader
from ane.text.markdown import markdown_html
from ane.text.omissions import TABLES, Omission, counted_omissions
from ane.text.tags import element_texts


def read_html(markup: str, rules: Mapping[str, Omission]) -> Document:
    """Read a page of HTML, leaving out the text that ``rules`` omit."""
    reader = BlockReader(rules)
    reader.read(markup)
    if notes := linked_notes({"": reader})[""]:
        reader = BlockReader(rules, notes=notes)
        reader.read(markup)
    blocks = [item for item in reader.items if isinstance(item, TextBlock)]
    titles = [block.text.replace("\n", " ") for block in blocks if block.level == 1]
    [title] = element_texts(re.split("(?i)<body", markup[:100_000], maxsplit=1)[0], "title")
    return Document(
        split_at_headings(blocks),
        title=" ".join(title) or (titles[0] if len(titles) == 1 else ""),
        omitted=counted_omissions(reader.omitted),
        tables=reader.omitted[TABLES],
        left_out=reader.left_out,
    )


FRONT_MATTER = re.compile(r"---[ \t]*\n(.{0,20000}?)\n(?:---|\.\.\.)[ \t]*(?:\n|$)", re.DOTALL)
FIELD = re.compile(r"(?m)^(title|author|lang|language):[ \t]*(.*?)[ \t]*$")


def read_markdown(text: str, rules: Mapping[str, Omission]) -> Document:
    """Render Markdown to HTML, and read the HTML. YAML front matter may set title, author and language."""
    fields: dict[str, str] = {}
    front = FRONT_MATTER.match(text)
    if front:
        fields = {name: value.strip("\"'") for name, value in FIELD.findall(front[1])}
        text = text[front.end() :]
    html, notes = markdown_html(text, rules)
    document = read_html(html, rules)
    if notes and "footnotes" in rules:
        document.omitted["footnotes"] = notes
    return replace(
        document,
        title=fields.get("title", document.title),
        author=fields.get("author", ""),
        language=fields.get("lang", fields.get("language", "")),
    )
