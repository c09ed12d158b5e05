"""What every rule of the English normaliser is made of."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ane.text.lexicon import STARTERS

INTEGER = r"(?:\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d+)"                # 1,234,567 and 12,34,567, or digits alone
NUMBER = rf"(?:{INTEGER}(?:\.\d+)?|(?<![\w.])\.\d+)"

NEXT_WORD = re.compile(r"[\"'(\[\s]+([A-Z][a-z']*)")
TEXT_ENDS = re.compile(r"[\"')\]]*(?:[ \t]*\n|\s*\Z)")


@dataclass(frozen=True)
class Rule:
    """One thing the normaliser knows: where ``pattern`` matches, ``say`` gives what is read there."""

    name: str
    pattern: re.Pattern
    say: str | Callable[[re.Match], str]

    def __call__(self, text: str) -> str:
        return self.pattern.sub(self.say, text)


def rule(name: str, pattern: str, say: str | Callable[[re.Match], str], flags: int = 0) -> Rule:
    return Rule(name, re.compile(pattern, flags), say)


def any_of(words: Iterable[str]) -> str:
    """A pattern for any of ``words``, the longest first, so that "km" is not taken for "k"."""
    return "(?:" + "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)) + ")"


def stop_after(match: re.Match) -> str:
    """"." when the abbreviation that ``match`` ends with also ended its sentence, else ""."""
    if TEXT_ENDS.match(match.string, match.end()):
        return "."
    following = NEXT_WORD.match(match.string, match.end())
    return "." if following and following[1].lower() in STARTERS else ""
