"""Rules for words in capitals: acronyms that are spelled, acronyms that are pronounced as words, and emphasis."""

import re

from ane.text.lexicon import CASE_SENSITIVE, PRONOUNCED, SHORT_WORDS, SPELLED
from ane.text.rule import TextRule, any_of, rule


def spell(word: str) -> str:
    """FBI → "f b i"."""
    return " ".join(word.lower())


def is_spelled(word: str) -> bool:
    """Whether a word in capitals, among words that are not, is read letter by letter."""
    if word in SPELLED:
        return True
    if word in PRONOUNCED or word in SHORT_WORDS:
        return False
    return len(word) <= 3 or not re.search("[AEIOU]", word)


def expand_capitals(match: re.Match) -> str:
    """FBI's → "f b i's", NASA → "nasa"."""
    word, ending = match[1], match[2] or ""
    if is_spelled(word):
        return spell(word) + ("'s" if ending else "")
    return word.lower() + ending


def expand_line_in_capitals(match: re.Match) -> str:
    """Three or more words in capitals are ordinary words, except those in ``SPELLED``, unless all are acronyms."""
    words = [word for word in re.findall(r"[A-Z']+", match[0]) if len(word) > 1]
    if not any(word in SHORT_WORDS or (len(word) > 3 and not is_spelled(word)) for word in words):
        return match[0]
    return re.sub(r"[A-Z']+", lambda word: spell(word[0]) if word[0] in SPELLED else word[0].lower(), match[0])


WORDS: tuple[TextRule, ...] = (
    rule("PhD", rf"\b({any_of(CASE_SENSITIVE)})\b", lambda match: CASE_SENSITIVE[match[1]]),
    rule("DON'T, IT'S", r"\b(?:[A-Z]+'(?:T|LL|RE|VE|M|D)|(?:IT|LET)'S)\b", lambda match: match[0].lower()),
    rule("OpenAI, HTMLParser", r"(?<=[a-z])(?=[A-Z]{2,}\b)|(?<=[A-Z])(?=[A-Z][a-z]{2})", " "),
    rule("the WHO", r"(?<=\b[Tt]he )WHO\b", "w h o"),
    rule("STOP THAT NOW", r"\b[A-Z][A-Z']*(?:[\s,.!?;:-]{1,3}[A-Z][A-Z']*){2,}\b(?![a-z])", expand_line_in_capitals),
)
RULES: tuple[TextRule, ...] = (*WORDS, rule("FBI, DVDs", r"\b([A-Z]{2,})('?s)?\b", expand_capitals))
