"""Define the rule type of the English normaliser, and the helpers that its rules share."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from ane.text.lexicon import SENTENCE_STARTERS, STARTERS_IN_CAPITALS

INTEGER = r"(?:\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d+)"  # digits, also with commas as in 1,234,567 or 12,34,567
NUMBER = rf"(?:{INTEGER}(?:\.\d+)?|(?<![\w.])\.\d+)"

WORD_END = "\x10"  # between two words of initials, as in "q i d" and "p r n"; the last rules remove this character

NEXT_WORD = re.compile(r"[\"'(\[\s]+([A-Z][A-Za-z']*)")
LINE_END = re.compile(r"[\"')\]]*(?:[ \t]*\n|\s*\Z)")


@dataclass(frozen=True)
class TextRule:
    """One substitution of the normaliser: each match of ``pattern`` becomes ``replacement``, as in ``re.sub``.

    Attributes:
        name: Example of text that the rule matches, or a description of it.
        pattern: The text that the rule replaces.
        replacement: The new text.
        needs: Without a digit, or without a sign (a character that is not ASCII), a text is not changed by the rule,
            and ``apply_rules`` skips it. "" means that the rule is never skipped.
    """

    name: str
    pattern: re.Pattern
    replacement: str | Callable[[re.Match], str]
    needs: Literal["", "digit", "sign"] = ""

    def __call__(self, text: str) -> str:
        return self.pattern.sub(self.replacement, text)


def rule(name: str, pattern: str, replacement: str | Callable[[re.Match], str]) -> TextRule:
    """Build a ``TextRule``, and compile its pattern."""
    return TextRule(name, re.compile(pattern), replacement)


def with_digits(*rules: TextRule) -> tuple[TextRule, ...]:
    """Mark rules that change only texts with a digit."""
    return tuple(replace(text_rule, needs="digit") for text_rule in rules)


def with_signs(*rules: TextRule) -> tuple[TextRule, ...]:
    """Mark rules that change only texts with a character that is not ASCII."""
    return tuple(replace(text_rule, needs="sign") for text_rule in rules)


def apply_rules(rules: Iterable[TextRule], text: str) -> str:
    """Apply rules to a text, one after the other. Most sentences have no digits, so many rules are skipped."""
    searched, has_digit = "", False
    for text_rule in rules:
        if text_rule.needs == "sign" and text.isascii():
            continue
        if text_rule.needs == "digit":
            if searched is not text:
                searched, has_digit = text, DIGIT.search(text) is not None
            if not has_digit:
                continue
        text = text_rule.pattern.sub(text_rule.replacement, text)
    return text


DIGIT = re.compile("[0-9]")


def any_of(words: Iterable[str]) -> str:
    """Build a pattern that matches any of ``words``. Longer words are tried first, so that "km" comes before "k"."""
    return "(?:" + "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)) + ")"


def follows(match: re.Match, pattern: re.Pattern, longest: int = 24) -> re.Match | None:
    r"""Return the match of ``pattern``, which must end with \Z, in the ``longest`` characters before ``match``.

    Rules call this for context before the text that they match. A rule is faster if its pattern begins with a rare
    character, and not with a long context.
    """
    return pattern.search(match.string[max(0, match.start() - longest) : match.start()])


def in_context(
    cases: Iterable[tuple[str, str]],
    replacement: Callable[[re.Match], str],
    otherwise: Callable[[re.Match], str] = lambda match: match[0],
) -> Callable[[re.Match], str]:
    """Build a replacement that applies only where the text around the match fits one of ``cases``.

    Args:
        cases: Pairs of patterns: one for the end of the text before the match, and one for the beginning of the text
            after it. An empty pattern fits any text.
        replacement: The replacement in such a context.
        otherwise: The replacement elsewhere.
    """
    compiled = [(re.compile(rf"(?:{before})\Z") if before else None, re.compile(after)) for before, after in cases]

    def replace(match: re.Match) -> str:
        fits = any(
            after.match(match.string, match.end()) and (before is None or follows(match, before, 90))
            for before, after in compiled
        )
        return (replacement if fits else otherwise)(match)

    return replace


def period_after(match: re.Match) -> str:
    """Return "." if ``match`` ends with the period of an abbreviation that also ends a sentence, and otherwise ""."""
    if not match[0].endswith("."):
        return ""
    if LINE_END.match(match.string, match.end()):
        return "."
    following = NEXT_WORD.match(match.string, match.end())
    if following is None:
        return ""
    word = following[1]
    starters = STARTERS_IN_CAPITALS if len(word) > 1 and word.isupper() else SENTENCE_STARTERS
    return "." if word.lower() in starters else ""
