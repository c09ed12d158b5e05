"""Respell words and phrases by a user's lexicon. This happens before any other rule reads the text."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ane.system.errors import NotFoundError, UserError, check_path, check_type, short
from ane.system.file_gate import read_regular
from ane.text.lexicon import NOUN_AFTER, VERB_AFTER
from ane.text.unicode_to_ascii import UNREADABLE, Unreadable, readable

# A word or a sign. In "Nguyen's", the word is Nguyen, and the ending stays.
TOKEN = re.compile(r"\w+(?:['’](?!s\b)\w+)*|[^\w\s]")
CASES = ("", "any", "exact")
CLASSES = {"noun": NOUN_AFTER, "verb": VERB_AFTER}
SHOWN = 3  # words that ``repr`` shows
MAX_LEXICON = 8 << 20  # bytes
COLUMNS = "WORD, a tab, RESPELLING, and optionally a tab and exact, a tab and noun or verb"


@dataclass(frozen=True)
class LexiconEntry:
    """A word or phrase with its respelling.

    Attributes:
        word: Word or phrase to replace.
        respelling: Text that replaces it.
        exact: Whether capitals in the text must be as in ``word``.
        word_class: "noun", "verb" or "". The entry for a noun applies only after an article or a similar word. The
            entry for a verb applies only after a pronoun, "to" or an auxiliary. "" means that the entry applies
            everywhere.
        source: File and line of the entry, such as "words.tsv, line 3".
    """

    word: str
    respelling: str
    exact: bool = False
    word_class: str = ""
    source: str = ""

    def applies(self, text: str, previous: str) -> bool:
        """Return whether the entry applies to ``text``, which equals ``word`` except for capitals.

        ``previous`` is the word before ``text``.
        """
        if self.exact and " ".join(text.replace("’", "'").split()) != " ".join(self.word.replace("’", "'").split()):
            return False
        return not self.word_class or previous in CLASSES[self.word_class]


@dataclass(frozen=True)
class LexiconMatch:
    """The characters from ``start`` to ``end`` of a text, and the entry that replaces them."""

    start: int
    end: int
    entry: LexiconEntry


class Lexicon:
    """Words and phrases with their respellings, such as ``Lexicon({"Nguyen": "win"})``.

    Call ``lexicon(text)`` to respell the words of a text. The time is linear in the length of the text. After that, the
    call rewrites words in scripts that voices cannot read, as ``unreadable`` (a key of ``UNREADABLE``) says.

    An entry matches only whole words. The longest matching phrase wins. If a word has several entries, the entry with
    more conditions (``exact``, ``word_class``) is tried first.

    Raises:
        UserError: Two entries have the same word, ``exact`` and ``word_class``. A call raises the errors of
            ``readable``.
    """

    def __init__(self, entries: Iterable[LexiconEntry] | Mapping[str, str] = (), unreadable: Unreadable = "nearest"):
        if isinstance(entries, Mapping):
            for word, respelling in entries.items():
                if fault := entry_fault(word, respelling):
                    raise UserError(f"lexicon must have words and their respellings: {fault}", "lexicon")
            entries = [LexiconEntry(word, respelling) for word, respelling in entries.items()]
        wanted = "a mapping from words to respellings"
        check_type("entries", entries, Iterable, wanted)
        self.entries, self.unreadable = tuple(entries), unreadable
        if not all(isinstance(entry, LexiconEntry) for entry in self.entries):
            raise UserError(f"entries must be {wanted}, got {short(entries)}", "entries")
        if not isinstance(unreadable, str) or unreadable not in UNREADABLE:
            raise UserError(f"unreadable must be one of {', '.join(UNREADABLE)}, got {unreadable!r}", "unreadable")
        # A trie: (whether a space precedes, token in lower case) → next node; None → entries that end at this node.
        self._root: dict[Any, Any] = {}
        seen: dict[tuple, LexiconEntry] = {}
        for entry in self.entries:
            key = (
                tuple((token.folded, token.spaced) for token in tokens(entry.word)),
                entry.exact and entry.word,
                entry.word_class,
            )
            if key in seen:
                raise UserError(
                    f"{entry.source or 'lexicon'}: {entry.word!r} has an entry already"
                    f"{f' ({seen[key].source})' if seen[key].source else ''}: leave one of them out"
                )
            seen[key] = entry
            node = self._root
            for index, token in enumerate(tokens(entry.word)):
                node = node.setdefault((index > 0 and token.spaced, token.folded), {})
            node.setdefault(None, []).append(entry)
            node[None].sort(key=lambda entry: (not entry.exact, not entry.word_class))

    def __call__(self, text: str) -> str:
        return readable(self.respelt(text), self.unreadable)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lexicon):
            return NotImplemented
        return (self.entries, self.unreadable) == (other.entries, other.unreadable)

    def __hash__(self) -> int:
        return hash((self.entries, self.unreadable))

    def __repr__(self) -> str:
        words = ", ".join(repr(entry.word) for entry in self.entries[:SHOWN])
        more = f" and {len(self.entries) - SHOWN} more" if len(self.entries) > SHOWN else ""
        return f"<Lexicon: {words or 'no words'}{more}, unreadable {self.unreadable}>"

    def respelt(self, text: str) -> str:
        """Respell the words of ``text``, but do not rewrite words in other scripts."""
        parts, end = [], 0
        for match in self.matches(text):
            parts += [text[end : match.start], match.entry.respelling]
            end = match.end
        return "".join(parts) + text[end:]

    def matches(self, text: str) -> Iterator[LexiconMatch]:
        """Yield the parts of a text that entries replace, in order. The parts do not overlap."""
        text_tokens = list(tokens(text))
        index = 0
        while index < len(text_tokens):
            length, match = self._longest(text, text_tokens, index)
            if match:
                yield match
            index += max(1, length)

    def _longest(self, text: str, text_tokens: list["LexiconToken"], first: int) -> tuple[int, LexiconMatch | None]:
        """Find the longest phrase that begins with token ``first`` and has an entry.

        Returns the number of its tokens, and its match.
        """
        previous = text_tokens[first - 1].folded if first else ""
        node, best = self._root, (0, None)
        for index in range(first, len(text_tokens)):
            node = node.get((index > first and text_tokens[index].spaced, text_tokens[index].folded))
            if node is None:
                break
            start, end = text_tokens[first].start, text_tokens[index].end
            entry = next((entry for entry in node.get(None, ()) if entry.applies(text[start:end], previous)), None)
            if entry:
                best = index + 1 - first, LexiconMatch(start, end, entry)  # type: ignore[assignment]
        return best


@dataclass(frozen=True)
class LexiconToken:
    """A word or a sign of a text. ``folded`` is its form in lower case. ``spaced`` says if whitespace precedes it."""

    folded: str
    start: int
    end: int
    spaced: bool


def tokens(text: str) -> Iterator[LexiconToken]:
    end = 0
    for match in TOKEN.finditer(text):
        yield LexiconToken(match[0].replace("’", "'").casefold(), match.start(), match.end(), match.start() > end)
        end = match.end()


def chosen_lexicon(path: str | None, unreadable: Unreadable | None) -> Lexicon | None:
    """Load the lexicon for a command's flags --lexicon and --unreadable. Returns ``None`` if neither is given."""
    if path:
        return read_lexicon(path, unreadable or "nearest")
    return Lexicon(unreadable=unreadable) if unreadable else None


def read_lexicon(path: str | Path, unreadable: Unreadable = "nearest") -> Lexicon:
    """Read a lexicon file. Its columns, which tabs separate, are described in ``COLUMNS``.

    The file must be UTF-8. Blank lines and lines that begin with "#" are skipped.

    Raises:
        UserError: The file or a line of it cannot be read. The message has the line number, and says what to do.
    """
    check_path(path)
    path = Path(os.path.expanduser(path))
    try:
        content = read_regular(path, MAX_LEXICON).decode("utf-8-sig")
    except OSError as error:
        missing = NotFoundError if isinstance(error, FileNotFoundError) else UserError
        raise missing(f"cannot read the lexicon {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the lexicon {path} is not text in UTF-8 (byte {error.start}): convert it first") from error
    lines = enumerate(content.splitlines(), 1)
    return Lexicon(
        (read_line(line, path, number) for number, line in lines if line.strip() and line.lstrip()[0] != "#"),
        unreadable,
    )


def entry_fault(word: str, respelling: str) -> str:
    """Return why a word cannot have this respelling, or "" if it can."""
    return next(
        (
            f"the {name} {value!r} has no letter or digit"
            for name, value in (("word", word), ("respelling", respelling))
            if not (isinstance(value, str) and any(map(str.isalnum, value)))
        ),
        "",
    )


def read_line(line: str, path: Path, number: int) -> LexiconEntry:
    """Read the entry on a line of a lexicon file. Raises UserError if the line is not valid."""
    columns = [column.strip() for column in line.split("\t")]
    word, respelling, case, word_class = [*columns, "", "", "", ""][:4]
    fault = (
        "there is no tab"
        if len(columns) < 2
        else f"it has {len(columns)} columns"
        if len(columns) > 4
        else entry_fault(word, respelling)
        or (
            f"the case {case!r} is unknown"
            if case not in CASES
            else f"the word class {word_class!r} is unknown"
            if word_class and word_class not in CLASSES
            else ""
        )
    )
    if fault:
        raise UserError(f"{path}, line {number}: {fault}; write {COLUMNS}")
    return LexiconEntry(word, respelling, case == "exact", word_class, f"{path.name}, line {number}")
