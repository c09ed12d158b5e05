"""Rules for words in capitals: acronyms that are spelled, acronyms that are words, emphasis, and Roman numerals."""

import re

from ane.text import numbers
from ane.text.lexicon import NUMERAL_AFTER, RULERS, SAID_AS_WORDS, SHORT_WORDS, SPECIAL, SPELLED
from ane.text.rules import Rule, any_of, rule

ROMAN = r"(?=[IVXLC]+\b)(?:X[CL]|L?X{0,3})(?:IX|IV|V?I{0,3})"     # 1 to 99, at most


def roman(numeral: str) -> int:
    values = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}[letter] for letter in numeral] + [0]
    return sum(-values[i] if values[i] < values[i + 1] else values[i] for i in range(len(numeral)))


def spell(word: str) -> str:
    """FBI → "f b i"."""
    return " ".join(word.lower())


def is_spelled(word: str) -> bool:
    """Whether a word that stands in capitals alone is read letter by letter."""
    if word in SPELLED:
        return True
    if word in SAID_AS_WORDS or word in SHORT_WORDS:
        return False
    return len(word) <= 3 or not re.search("[AEIOU]", word)


def say_capitals(match: re.Match) -> str:
    word, ending = match[1], match[2] or ""
    if is_spelled(word):
        return spell(word) + ("'s" if ending else "")
    return word.lower() + ending


def say_run(match: re.Match) -> str:
    """Three capitalised words or more: shouting, unless all of them are acronyms."""
    words = [word for word in re.findall(r"[A-Z']+", match[0]) if len(word) > 1]
    if not any(word in SHORT_WORDS or (len(word) > 3 and not is_spelled(word)) for word in words):
        return match[0]
    return re.sub(r"[A-Z']+", lambda word: spell(word[0]) if word[0] in SPELLED else word[0].lower(), match[0])


def say_chapter(match: re.Match) -> str:
    return match[1] + numbers.cardinal(roman(match[2]))


def say_ruler(match: re.Match) -> str:
    return f"{match[1]} the {numbers.ordinal(roman(match[2]))}"


def say_numeral(match: re.Match) -> str:
    return (numbers.ordinal if match[2] else numbers.cardinal)(roman(match[1]))


NUMERALS: tuple[Rule, ...] = (
    rule("Chapter IV", rf"\b({any_of(NUMERAL_AFTER)}\s+)({ROMAN})\b(?!')", say_chapter),
    rule("Henry VIII", rf"\b({any_of(RULERS)})\s+(?!I\b|V\.|X\.)({ROMAN})\b", say_ruler),
    rule("XII", rf"\b(?!(?:IV|VI|XX|XXX)\b)(?=[IVX]{{2}})({ROMAN})\b(?=(\s+[Cc]entury))?", say_numeral),
)
RULES: tuple[Rule, ...] = (
    rule("PhD", rf"\b({any_of(SPECIAL)})\b", lambda match: SPECIAL[match[1]]),
    rule("OpenAI, HTMLParser", r"(?<=[a-z])(?=[A-Z]{2,}\b)|(?<=[A-Z])(?=[A-Z][a-z]{2})", " "),
    rule("the WHO", r"(?<=\b[Tt]he )WHO\b", "w h o"),
    rule("STOP THAT NOW", r"\b[A-Z][A-Z']*(?:[\s,.!?;:-]{1,3}[A-Z][A-Z']*){2,}\b(?![a-z])", say_run),
    rule("FBI, DVDs", r"\b([A-Z]{2,})('?s)?\b", say_capitals),
)
