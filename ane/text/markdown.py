"""Read Markdown and fragments of HTML, in documents, in requests, and in text that is still arriving.

Markdown is rendered to HTML, and then the HTML is read in blocks (``ane.text.html_blocks``). So all formats share the
rules for parts that are left out. A text counts as Markdown if it has marks that other texts do not have.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ane.text import number_words
from ane.text.blocks import HEADING, TextBlock
from ane.text.html_blocks import BlockReader
from ane.text.hyphens import joined_words
from ane.text.lexicon import HTML_ELEMENTS
from ane.text.markup_rules import indexed
from ane.text.math_rules import plain_formula
from ane.text.omissions import OMISSIONS, Omission
from ane.text.passages import COMMAND

if TYPE_CHECKING:
    from markdown_it.token import Token

BLOCK_TAGS = "p|li|ul|ol|dl|dt|dd|br|div|h[1-6]|table|tr|td|th|blockquote|hr|section|article|pre|del|s"
FENCE = r"^[ ]{0,3}(?:`{3,}|~{3,})"
DELIMITER = r"[ \t]*+:?-++:?[ \t]*+"
DELIMITERS = rf"^[ \t]*+\|?{DELIMITER}(?:\|{DELIMITER})+\|?[ \t]*$|^[ \t]*+\|{DELIMITER}\|[ \t]*$"
# A formula between dollar signs. Prices look like this, too, so a formula that begins with a digit must also have a
# mathematical sign.
INLINE_MATH = (
    r"(?<![\w$\\])\$(?=[A-Za-z\\(|-]|\d[^$\s]{0,200}[\^_=+*/\\])"
    r"(?P<inner>(?:[^$\n\\]|\\.){0,200}?[^\s$\\])\$(?![\w$])"
    r"|\\\((?P<bracketed>[^\n]{1,300}?)\\\)"
)
DISPLAYED_MATH = r"\$\$[^$]{1,2000}\$\$|\\\[[^\[\]]{1,2000}?\\\]"
MARKS = re.compile(
    "(?m)"
    + "|".join(
        (
            FENCE,
            DELIMITERS,
            INLINE_MATH.replace("?P<inner>", "?:").replace("?P<bracketed>", "?:"),
            DISPLAYED_MATH,
            r"^[ ]{0,3}\#{1,6}[ \t]+\S",  # a heading
            # an image, or a link whose address the rules in markup_rules.py do not know
            r"(?:!\[[^\[\]\n]{0,300}\]\(|\[[^\[\]\n]{0,300}\]\((?!https?:|/|\#|www\.))[^()\n]{1,500}\)",
            r"^[ ]{0,3}\[[^\[\]\n]{1,100}\]:[ \t]*\S",  # the address of a link, or a note
            r"^[ \t]*[-*+][ \t]+\[[ xX]\][ \t]",  # a task
            r"\[\^[^\]\s]{1,50}\]",
            r"~~\S[^~\n]{0,300}~~",
            r"\*\*\S[^*\n]{0,300}\*\*",
            rf"(?i:</?(?:{BLOCK_TAGS})(?:\s[^<>]{{0,300}})?/?>)",
        )
    )
)
MATH = re.compile(
    rf"(?m)(?P<listing>{FENCE}(?s:.*?)(?:{FENCE}|\Z))|(?P<code>`[^`\n]*`)|(?P<displayed>{DISPLAYED_MATH})"
    rf"|{INLINE_MATH}"
)
# The end of a line after which a new paragraph begins: both lines begin with bold words, or the next with "**Note:**".
BOLD_LINE = re.compile(
    r"(?m)^([ ]{0,3}\*\*[^*\n]{1,80}\*\*[^\n]*)\n(?=[ ]{0,3}\*\*[^*\s][^*\n]{0,80}\*\*)"
    r"|(?<=[^\n])()\n(?=[ ]{0,3}\*\*[^*\s][^*\n]{0,80}(?::\*\*|\*\*:))"
)
TASK = re.compile(r"(<li>\s{0,9}(?:<p>)?)\[[ xX]\]\s")
NOTE = re.compile(r"(?m)^\[\^([^\]\s]{1,50})\]:[ \t]*(.*(?:\n(?:[ \t]+\S.*|(?=\n[ \t]+\S)))*)")
NOTE_REFERENCE = re.compile(r"\[\^[^\]\s]{1,50}\]")
FORMULA = "<math></math>"  # replaces a formula; the reader of blocks leaves it out and counts it
PROTECTED = str.maketrans("[]", "\ue000\ue001")  # hides the brackets of [pause:1s] and [voice:NAME] from Markdown
RESTORED = str.maketrans("\ue000\ue001", "[]")
ELEMENT = re.compile(r"</?([A-Za-z][\w-]*)|<[!?]")


def has_marks(text: str) -> bool:
    """Return whether a text has marks of Markdown, or HTML tags that end a block."""
    return MARKS.search(text) is not None


def markdown_html(text: str, rules: Mapping[str, Omission], message: bool = False) -> tuple[str, int]:
    """Render Markdown as HTML. Returns the HTML and the number of notes.

    Args:
        text: The Markdown.
        rules: Rules for parts that are left out, by name. If "footnotes" is not among them, notes stay in the text.
        message: Whether the text is a message, not a document. A message keeps the numbers of numbered lists, and its
            formulas are read.
    """
    from markdown_it import MarkdownIt

    text, notes = NOTE.subn("" if "footnotes" in rules else r"\2", joined_words(text))
    text = BOLD_LINE.sub(lambda line: f"{line[1] or ''}\n\n", text)
    text = MATH.sub(partial(without_dollars, message=message), NOTE_REFERENCE.sub("", text))
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    if message:
        parser.disable("code")  # in a message, an indented line is not a listing
    for kind in ("html_inline", "html_block"):
        parser.add_render_rule(kind, known_html)
    tokens = parser.parse(text)
    if message:
        number_items(tokens)
    return TASK.sub(r"\1", parser.renderer.render(tokens, parser.options, {})), notes


def without_dollars(match: re.Match[str], message: bool) -> str:
    """Write a formula without its dollar signs, in a form that is read.

    A document leaves out formulas that are displayed on their own, or that have TeX commands.
    """
    if match["listing"]:
        return match[0]
    if match["code"]:
        return indexed(match)
    inner = match["inner"] or match["bracketed"] or (match["displayed"][2:-2] if message else "\\")
    if not message and re.search(r"[\\&]", inner):
        return FORMULA
    return re.sub(r"[*_<\[\]`]", r"\\\g<0>", plain_formula(inner)) or FORMULA


def known_html(renderer: Any, tokens: "Sequence[Token]", index: int, options: Any, env: Any) -> str:
    """Render HTML elements unchanged, and render placeholders such as <your name> as text."""
    content = tokens[index].content
    name = ELEMENT.match(content.lstrip())
    if name and name[1] and name[1].lower() not in HTML_ELEMENTS:
        return content.replace("<", "&lt;")
    return content


def number_items(tokens: "Sequence[Token]") -> None:
    """Insert the numbers of numbered items before their text."""
    from markdown_it.token import Token

    for at, token in enumerate(tokens[:-2]):
        following = tokens[at + 2]
        if token.type == "list_item_open" and token.info and following.type == "inline" and following.children:
            following.children.insert(0, Token("text", "", 0, content=f"{token.info}, "))


def plain_text(text: str) -> str:
    """Remove the marks of Markdown or HTML from a text. Every block ends like a sentence.

    As in documents, this leaves out listings, images, notes, references to notes, and text that is struck out. Commands
    such as [pause:1.5s] stay.
    """
    protected = COMMAND.sub(lambda match: match[0].translate(PROTECTED), text)
    reader = BlockReader({name: rule for name, rule in OMISSIONS.items() if name in ("code", "footnotes", "struck")})
    blocks = reader.read(markdown_html(protected, reader.rules, message=True)[0])
    return "\n\n".join(
        spoken_block(block) for block in blocks if isinstance(block, TextBlock) and block.text
    ).translate(RESTORED)


def spoken_block(block: TextBlock) -> str:
    """Return the text of a block. Each line ends with a punctuation mark. A heading I, V or X is read as a number."""
    if block.kind == HEADING and re.fullmatch(r"[IVX]\.?", block.text):
        return ended(number_words.cardinal(number_words.roman(block.text.rstrip("."))))
    lines = block.text.split("\n")
    marks = ["." if following.endswith(":") else "," for following in lines[1:]]  # "City:" begins a new line of a form
    return "\n".join(map(ended, lines, [*marks, "."]))


def ended(text: str, mark: str = ".") -> str:
    """Add ``mark`` to a text that does not end with a punctuation mark."""
    last = text.rstrip(" \"'”’)]*_")[-1:]
    return f"{text}{mark}" if last.isalnum() or last == "%" else text


class MarkdownFeed:
    """Takes program listings and tables out of a Markdown text that is still arriving.

    A listing is dropped. A table is held until it ends or is too long, and then converted to plain text. Other text is
    returned at once, with one exception: the beginning of a line is held for as long as it may start a listing or a
    table.
    """

    LONGEST_TABLE = 4000  # characters

    def __init__(self) -> None:
        self._line = ""  # the beginning of the last line, if it is not returned yet
        self._table = ""
        self._fence = ""  # the characters that end the current listing, or "" outside of listings
        self._flows = False  # whether the rest of the last line is returned as it arrives

    def feed(self, text: str) -> str:
        """Take the next characters, and return the text that is ready to be spoken."""
        return "".join(self._taken(part) for part in text.splitlines(keepends=True))

    def finish(self) -> str:
        """Return the text that is still held. Call this after the last ``feed``."""
        line, self._line = self._line, ""
        return self._whole(line) + self._table_text() if line else self._table_text()

    def _taken(self, part: str) -> str:
        if self._flows:
            self._flows = not part.endswith("\n")
            return part
        line, self._line = self._line + part, ""
        if line.endswith("\n"):
            return self._whole(line)
        if self._fence:
            self._line = line[:200]  # enough to recognise the line that ends the listing
        elif line.lstrip()[:1] in ("", "|", "`", "~"):
            self._line = line
            if len(line) > self.LONGEST_TABLE:
                self._line, self._flows = "", True
                return self._table_text() + line
        else:
            self._flows = True
            return self._table_text() + line
        return ""

    def _whole(self, line: str) -> str:
        """Take a complete line, and return the text that is ready to be spoken."""
        fence = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if self._fence:
            if fence and fence[1].startswith(self._fence) and not line.strip(" `~\n\r"):
                self._fence = ""
                return "\n\n"
            return ""
        if fence and "`" not in line[fence.end() :]:
            self._fence = fence[1]
            return self._table_text()
        if line.lstrip().startswith("|"):
            self._table += line
            return self._table_text() if len(self._table) > self.LONGEST_TABLE else ""
        return self._table_text() + line

    def _table_text(self) -> str:
        table, self._table = self._table, ""
        return f"\n{plain_text(table)}\n\n" if has_marks(table) else table
