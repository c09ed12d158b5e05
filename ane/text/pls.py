"""Reads the aliases of a PLS document (W3C Pronunciation Lexicon Specification 1.0)."""

from collections.abc import Mapping

from ane.text.safe_xml import XmlHandler, parse_xml

PARENTS = {"lexicon": "", "lexeme": "lexicon", "grapheme": "lexeme", "alias": "lexeme"}
SKIPPED = ("meta", "metadata", "example")


def read_pls(document: str, where: str) -> list[tuple[int, str, str]]:
    """(Line, grapheme, alias) of each grapheme of a document, in order.

    Raises:
        UserError: it is no PLS, is not English, or has a phoneme entry, which no respelling expresses.
    """
    handler = PlsHandler(where)
    parse_xml(document, handler)
    return handler.entries


class PlsHandler(XmlHandler):
    def __init__(self, where: str):
        self.where = where
        self.entries: list[tuple[int, str, str]] = []
        self._open: list[str] = []
        self._skipped = 0                   # depth within an element that has no entries
        self._graphemes: list[tuple[int, str]] = []
        self._aliases: list[tuple[bool, str]] = []      # (whether it is preferred, alias)
        self._text = ""

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if self._skipped or name in SKIPPED:
            self._skipped += 1
            return
        if name == "phoneme":
            raise self.error("a phoneme entry: the models read letters; write an <alias> with a respelling instead")
        if name not in PARENTS or (self._open[-1] if self._open else "") != PARENTS[name]:
            raise self.error(f"<{name}> is not expected here: a PLS document is <lexicon> with <lexeme>s, each with "
                             "<grapheme> and <alias>")
        if name == "lexicon" and not attributes.get("xml:lang", "en").lower().startswith("en"):
            raise self.error(f"its language is {attributes['xml:lang']!r}: only English is read")
        self._open.append(name)
        self._text = ""
        if name == "lexeme":
            self._graphemes, self._aliases = [], []
        elif name == "alias":
            self._aliases.append((attributes.get("prefer") == "true", ""))

    def text(self, text: str) -> None:
        self._text += text

    def end(self, name: str) -> None:
        if self._skipped:
            self._skipped -= 1
            return
        self._open.pop()
        content = " ".join(self._text.split())
        if name in ("grapheme", "alias") and not any(map(str.isalnum, content)):
            raise self.error(f"<{name}> has no letter or digit: write a word in it")
        if name == "grapheme":
            self._graphemes.append((self.line, content))
        elif name == "alias":
            self._aliases[-1] = self._aliases[-1][0], content
        elif name == "lexeme":
            if not (self._graphemes and self._aliases):
                raise self.error("a <lexeme> needs a <grapheme> and an <alias>: add what is missing")
            alias = next((alias for preferred, alias in self._aliases if preferred), self._aliases[0][1])
            self.entries += [(line, grapheme, alias) for line, grapheme in self._graphemes]
