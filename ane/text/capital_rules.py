"""Rules for words in capitals: acronyms that are spelled or pronounced as words, emphasis, and Roman numerals.

A Roman numeral is read as a number after a word such as "Chapter" (1 to 399) and after the name of a ruler. Without
such a word it is read if it has two or more letters and is no common abbreviation: XII and XLIV, but not IV or CLI.
"I" is a pronoun where a verb follows: "the part I like".
"""

import re

from ane.text import number_words
from ane.text.lexicon import (
    AFTER_PRONOUN_I,
    CASE_SENSITIVE,
    NUMBERED,
    NUMERAL_ABBREVIATIONS,
    NUMERAL_AFTER,
    NUMERAL_AFTER_CAPITALISED,
    PRONOUNCED,
    RULERS,
    SHORT_WORDS,
    SPELLED,
)
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


LETTERS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
END = r"(?<=[IVXLC])\b"
ONES = "(?:IX|IV|V?I{0,3})"
NUMERAL = rf"(?=[IVXLC]+\b)(?![LC]\b)(?:C{{0,3}})(?:X[CL]|L?X{{0,3}}){ONES}{END}"     # 1 to 399, but no lone L or C
NUMERAL_I = rf"I\b(?!'|\s+(?i:{any_of(AFTER_PRONOUN_I)})\b)"
AT_END_OF_CLAUSE = r"I\b(?=[.;:)]|\s*\Z|\s+of\b)"
# Alone and without context; IV, VI, XX and XXX are left out, since alone they also mean a drip, an editor and kisses.
BARE = (rf"(?!(?:IV|VI|XX|XXX)\b)(?=[IVXLC]{{2,}}\b)"
        rf"(?:X{{0,3}}{ONES}|(?:XL|XC)(?=[IV]){ONES}|LX(?=[IVX])X{{0,2}}{ONES}){END}")
JOINED = r"\s?[-–]\s?|\s+(?:and|AND|to|TO|or|OR|through|THROUGH|&)\s+|,\s+"
MORE = rf"(?:(?:{JOINED})(?!I\b){NUMERAL})*"        # Parts I–III, Acts II and IV


def roman(numeral: str) -> int:
    """XIV → 14."""
    values = [LETTERS[letter] for letter in numeral] + [0]
    return sum(-values[i] if values[i] < values[i + 1] else values[i] for i in range(len(numeral)))


def cardinals(numerals: str) -> str:
    """"I–III" → "one to three", "II and IV" → "two and four"."""
    numerals = re.sub(r"\s?[-–]\s?", " to ", numerals)
    return re.sub(rf"\b{NUMERAL}", lambda match: number_words.cardinal(roman(match[0])), numerals)


def expand_after_heading(match: re.Match) -> str:
    """Chapter IV → "Chapter four", ACT II → "ACT TWO": capitals stay, so that a line in capitals is recognised."""
    heading, numbers = match["heading"], cardinals(match["numerals"])
    return heading + (numbers.upper() if heading.isupper() else numbers)


def expand_after_ruler(match: re.Match) -> str:
    """Henry VIII → "Henry the eighth"."""
    ordinal = f"the {number_words.ordinal(roman(match[2]))}"
    return f"{match[1]} {ordinal.upper() if match[1].isupper() else ordinal}"


def expand_bare(match: re.Match) -> str:
    """XII → "twelve", XX century → "twentieth century"."""
    return (number_words.ordinal if match["century"] is not None else number_words.cardinal)(roman(match["numeral"]))


def forms(words: frozenset[str], *changes: str) -> str:
    """A pattern for ``words`` in the forms that the methods of ``str`` named in ``changes`` give."""
    return any_of(getattr(word, change)() for word in words for change in changes)


NUMERALS: tuple[TextRule, ...] = (
    rule("Chapter IV, PARTS I-III",
         rf"(?P<heading>\b{forms(NUMERAL_AFTER | NUMERAL_AFTER_CAPITALISED, 'capitalize', 'upper')}[sS]?\s+)"
         rf"(?P<numerals>(?:{NUMERAL_I}|(?!I\b){NUMERAL}){MORE})(?!')", expand_after_heading),
    rule("chapter IV", rf"(?P<heading>\b{forms(NUMERAL_AFTER, 'lower')}s?\s+)"
         rf"(?P<numerals>(?:{AT_END_OF_CLAUSE}|(?!I\b){NUMERAL}){MORE})(?!')", expand_after_heading),
    rule("Vol. IV", rf"\b((?i:{any_of(NUMERAL_ABBREVIATIONS)}))\.\s?((?:{NUMERAL_I}|(?!I\b){NUMERAL}){MORE})(?!')",
         lambda match: f"{NUMBERED[match[1].lower()]} {cardinals(match[2])}"),
    rule("Henry VIII", rf"\b({forms(RULERS, 'capitalize', 'upper')})\s+(?!I\b|[VX]\.\s+[A-Z])({NUMERAL})",
         expand_after_ruler),
    rule("XX century", rf"\b(?P<numeral>{NUMERAL})(?P<century>(?=\s+(?i:century|centuries)\b))", expand_bare),
    rule("XII", rf"\b(?P<numeral>{BARE})(?P<century>(?!))?", expand_bare),
)
