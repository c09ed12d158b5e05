"""Define the rules for words in capitals, which are acronyms or emphasised words, and for Roman numerals.

After a word such as "Chapter", and after the name of a ruler, a Roman numeral from 1 to 3999 is read as a number.
Elsewhere, it is read as a number only if it has two or more letters and is not a common abbreviation: XII and XLIV, but
not IV or CLI. "I" is a pronoun if a verb follows: "the part I like".
"""

import re

from ane.text import number_words
from ane.text.lexicon import (
    AFTER_IT,
    AFTER_PRONOUN_I,
    AFTER_RULER,
    AFTER_US,
    BARE_TITLES,
    CASE_SENSITIVE,
    DEEDS,
    ENDINGS,
    FEELINGS,
    FIRST_NAMES,
    INTERJECTIONS,
    NUMBERED_EVENTS,
    NUMERAL_ABBREVIATIONS,
    NUMERAL_AFTER,
    NUMERAL_AFTER_CAPITALISED,
    PRONOUNCED,
    RULERS,
    SHORT_WORDS,
    SMALL_CASES,
    SMALL_NUMERAL_AFTER,
    SPELLED,
)
from ane.text.rule import TextRule, any_of, follows, rule


def spell(word: str) -> str:
    """Write FBI as "F B I". The capitals let voices that keep capitals tell the letter A from the word "a"."""
    return " ".join(word)


def is_spelled(word: str) -> bool:
    """Return whether a word in capitals is read letter by letter. The words around it are not in capitals."""
    if word in SPELLED:
        return True
    if word in PRONOUNCED or word in SHORT_WORDS:
        return False
    return len(word) <= 3 or not re.search("[AEIOU]", word)


def expand_capitals(match: re.Match) -> str:
    """Read FBI's as "f b i's", and NASA as "nasa"."""
    word, ending = match[1], match[2] or ""
    if is_spelled(word):
        return spell(word.lower()) + ("'s" if ending else "")
    return word.lower() + ending


def expand_line_in_capitals(match: re.Match) -> str:
    """Read three or more consecutive words in capitals as ordinary words. Words of ``SPELLED`` are spelled.

    If all the words are acronyms, they are read as acronyms instead.
    """
    words = [word for word in re.findall(r"[A-Z']+", match[0]) if len(word) > 1]
    if not any(word in SHORT_WORDS or (len(word) > 3 and not is_spelled(word)) for word in words):
        return match[0]
    return re.sub(
        r"[A-Z']+",
        lambda word: (
            spell(word[0])
            if word[0] in SPELLED or word[0] == "A" or is_initials(word[0]) or IT_OR_US.match(word.string, word.start())
            else word[0].lower()
        ),
        match[0],
    )  # A stays, because the article has become "a" by now


def is_initials(word: str) -> bool:
    """Return whether a word in a line of capitals is initials: it has no vowel, and is not a title or a sound.

    HR is initials, and MR is a title.
    """
    short = word.lower()
    return (
        len(word) > 1
        and not re.search("[AEIOUY']", word)
        and not re.search(r"(.)\1\1", word)
        and short not in (*BARE_TITLES, *ENDINGS, *INTERJECTIONS)
    )


# IT, US and LA as initials, not as pronouns and sounds.
IT_OR_US = re.compile(
    rf"IT\s(?:{any_of(AFTER_IT)})\b|US(?:(?<=\bTHE US)\b|\s{any_of(AFTER_US)}\b)|LA(?<!LA LA)\b(?!\sLA\b)"
)
WORDS: tuple[TextRule, ...] = (
    rule("PhD", rf"\b({any_of(CASE_SENSITIVE)})\b", lambda match: CASE_SENSITIVE[match[1]]),
    rule("SoCs", r"([A-Z](?<!\w[A-Z]))o([A-Z])s\b", r"\1 O \2's"),
    rule("DoD, IoT", r"([A-Z](?<!\w[A-Z]))o([A-Z])\b", r"\1 O \2"),
    rule("DON'T, IT'S", r"\b(?:[A-Z]+'(?:T|LL|RE|VE|M|D)|(?:IT|LET)'S)\b", lambda match: match[0].lower()),
    rule("OpenAI, HTMLParser", r"(?<=[a-z])(?=[A-Z]{2,}\b)|(?<=[A-Z])(?=[A-Z][a-z]{2})", " "),
    rule("the WHO", r"(?<=\b[Tt]he )WHO\b", "W H O"),
    rule(
        "STOP THAT NOW",
        r"\b(?<![A-Z]')[A-Z][A-Z']*+(?:[\s,.!?;:-]{1,3}(?:[A-Z][A-Z']*|a\b)){2,}\b(?![a-z])",
        expand_line_in_capitals,
    ),
)
RULES: tuple[TextRule, ...] = (*WORDS, rule("FBI, DVDs", r"\b([A-Z]{2,})('?s)?\b", expand_capitals))


END = r"(?<=[IVXLCDM])\b"
ONES = "(?:IX|IV|V?I{0,3})"
TENS = rf"(?:X[CL]|L?X{{0,3}}){ONES}"
# A numeral from 1 to 3999, except L, C, D or M alone, and except initials such as CD and MD.
NUMERAL = rf"(?=[IVXLCDM]+\b)(?![LCDM]\b|[DM][A-Z]\b|[A-Z][DM]\b)M{{0,3}}(?:CM|CD|D?C{{0,3}}){TENS}{END}"
SMALL = r"(?:(?=[ivxl]+\b)(?!l\b)(?:x[cl]|l?x{0,3})(?:ix|iv|v?i{0,3})(?<=[ivxl])\b)"  # numerals from i to lxxxix
# A numeral without context. IV, VI, XX and XXX are left out, because alone they may mean a drip, an editor or kisses.
# Above 89, the numeral must have four letters or more, because "CD" and "MIX" are words.
BARE = (
    rf"(?:(?!(?:IV|VI|XX|XXX)\b)(?=[IVXLC]{{2,}}\b)"
    rf"(?:X{{0,3}}{ONES}|(?:XL|XC)(?=[IV]){ONES}|LX(?=[IVX])X{{0,2}}{ONES}){END}|(?=[IVXLCDM]{{4,}}\b){NUMERAL})"
)
JOINED = r"\s?[-–]\s?|\s+(?:and|AND|to|TO|or|OR|through|THROUGH|&)\s+|,\s+"
MORE = rf"(?:(?:{JOINED})(?!I\b){NUMERAL})*"  # Parts I–III, Acts II and IV
MORE_SMALL = rf"(?:(?:{JOINED})(?!i\b){SMALL})*"


def forms(words: frozenset[str], *changes: str) -> str:
    """Build a pattern that matches ``words`` after each of the ``changes``, which are names of methods of ``str``."""
    return any_of(getattr(word, change)() for word in words for change in changes)


# The words before and after a numeral.
HEADING = re.compile(
    rf"(?P<sure>\b{forms(NUMERAL_AFTER | NUMERAL_AFTER_CAPITALISED, 'capitalize', 'upper')}[sS]?\s+"
    rf"|\b(?i:{any_of(NUMERAL_ABBREVIATIONS)})\.\s?)\Z|\b{forms(NUMERAL_AFTER, 'lower')}s?\s+\Z"
)
SMALL_HEADING = re.compile(rf"\b(?i:{any_of(SMALL_NUMERAL_AFTER)}s?\s+|{any_of(NUMERAL_ABBREVIATIONS)}\.\s?)\Z")
LETTERED_HEADING = re.compile(rf"\b(?i:{any_of(NUMERAL_AFTER | NUMERAL_AFTER_CAPITALISED)})[sS]?\s+\Z")
SMALL_CASE = re.compile(rf"\b(?i:{any_of(word for word in SMALL_CASES if len(word) > 3 and word != 'viii')})s?\s+\Z")
RULER = re.compile(rf"\b{forms(RULERS, 'capitalize', 'upper')}\s+\Z")
CENTURY = re.compile(r"\s+(?i:century|centuries)\b")
THE = re.compile(r"\b[Tt]he \Z")
NUMBERED_EVENT = re.compile(rf"\s+(?:[A-Z][a-z]+ )?{any_of(NUMBERED_EVENTS)}\b")
PRONOUN = re.compile(rf"'|\s+(?i:{any_of(AFTER_PRONOUN_I)})\b")
AT_END_OF_CLAUSE = re.compile(r"[.;:)]|\s*\Z|\s+of\b")
AT_END_OF_SMALL_CLAUSE = re.compile(r"[,.;:)]|\s*\Z|\s+(?:of|and|to|scene)\b")
REIGN = re.compile(rf"\s+(?:{any_of(AFTER_RULER)})\b|[,.;:)]|'s\b")
DEED = re.compile(rf"\s+(?!{any_of(FEELINGS)}\b)(?:[a-z]{{2,}}ed|{any_of(DEEDS)})\b")
SUBJECT = re.compile(
    r"(?:(?:\A|[.!?]['\")]*\s|\n)['\"(]*"
    r"|\b(?:King|Queen|Emperor|Pope|Tsar|Czar|Kaiser|Prince)\s)\w+\s+\Z"
)
NAMESAKE = re.compile(
    rf"\b(?!King |Part ){any_of(FIRST_NAMES)}(?: [A-Z]\.?)?(?: [A-Z][a-z][\w'-]*)?(?: [A-Z][a-z][\w'-]*),? \Z"
)
MALCOLM = re.compile(r"\b(?i:Malcolm)\s+\Z")  # Malcolm X
INITIAL = re.compile(r"[VX]\.\s+[A-Z]")
FOURTH_OR_NINTH = re.compile(r"\((?:four|nine)\)(?s:.*)\Z")


def cardinals(numerals: str) -> str:
    """Write "I–III" as "one to three", and "II and IV" as "two and four"."""
    numerals = re.sub(r"\s?[-–]\s?", " to ", numerals)
    return re.sub(
        rf"\b(?:{NUMERAL}|{SMALL})", lambda match: number_words.cardinal(number_words.roman(match[0])), numerals
    )


def expand_numerals(match: re.Match) -> str:
    """Read Chapter IV as "Chapter four", Henry VIII as "Henry the eighth", and XX century as "twentieth century".

    Without such a word, XII is "twelve". Next to words in capitals, the number is in capitals too (ACT TWO), so that a
    later rule recognises a line in capitals. The I of "the part I like" is the pronoun.
    """
    numerals, text, end = match[0], match.string, match.end()
    lone, heading = numerals == "I", follows(match, HEADING)
    pronoun = (
        lone and heading and (PRONOUN.match(text, end) if heading["sure"] else not AT_END_OF_CLAUSE.match(text, end))
    )
    if heading and not pronoun:
        if heading[0].rstrip().endswith("."):
            return re.sub(r"[A-Z]+", lambda numeral: str(number_words.roman(numeral[0])), numerals)
        words = cardinals(numerals)
        return words.upper() if heading[0].isupper() else words
    ruler = follows(match, RULER) if not (numerals == "X" and follows(match, MALCOLM)) else None
    ruler = ruler or (numerals in ("II", "III", "IV") and follows(match, NAMESAKE, 60)) or None
    if ruler and (is_first(match) if lone else not INITIAL.match(text, match.start())):
        first, rest = re.match(r"(\w+)(.*)", numerals, re.S).groups()
        ordinal = f"the {number_words.ordinal(number_words.roman(first))}"
        return (ordinal.upper() if ruler[0].isupper() else ordinal) + cardinals(rest)
    if lone:
        return numerals
    if CENTURY.match(text, end) or (numerals.isalpha() and NUMBERED_EVENT.match(text, end) and follows(match, THE)):
        return number_words.ordinal(number_words.roman(numerals)) if numerals.isalpha() else numerals
    return re.sub(rf"\b{BARE}", lambda bare: number_or_year(number_words.roman(bare[0])), numerals)


def is_first(match: re.Match) -> bool:
    """Return whether the I after a ruler's name means "the first", because a verb of reigning or of a deed follows."""
    text, end = match.string, match.end()
    return bool(REIGN.match(text, end) or (DEED.match(text, end) and follows(match, SUBJECT, 40)))


def expand_small_numerals(match: re.Match) -> str:
    """Read page iv as "page four", and write pp. xii-xiv as "pp. 12 to 14", which a later rule reads."""
    numerals, heading = match[0], follows(match, SMALL_HEADING)
    if not heading and numerals in SMALL_CASES and follows(match, SMALL_CASE):
        return cardinals(numerals)
    if not heading or (numerals == "i" and not AT_END_OF_SMALL_CLAUSE.match(match.string, match.end())):
        return numerals
    if heading[0].rstrip().endswith("."):
        numerals = re.sub(r"\s?[-–]\s?", " to ", numerals)
        return re.sub(rf"\b{SMALL}", lambda numeral: str(number_words.roman(numeral[0])), numerals)
    return cardinals(numerals)


def expand_lettered_numeral(match: re.Match) -> str:
    """Read stage IIIb as "stage three B". VIA, IVb and Id are numerals only after such a word."""
    heading = follows(match, LETTERED_HEADING)
    sure = heading or (len(match[1]) > 2 and match[2].islower())
    if not sure or not re.fullmatch(TENS, match[1]):
        return match[0]
    words = number_words.cardinal(number_words.roman(match[1]))
    words = words.upper() if heading and heading[0].rstrip().isupper() else words
    return f"{words} {match[2].upper()}{' to ' if match[3] else ''}"


def expand_progression(match: re.Match) -> str:
    """Read the chords ii–V–I as "two five one". I-I-I is a stutter."""
    chords = re.findall("[IVXivx]+|7", match[0])
    if len(set(map(str.lower, chords))) < 2:
        return match[0]
    return " ".join("seven" if chord == "7" else number_words.cardinal(number_words.roman(chord)) for chord in chords)


def number_or_year(n: int) -> str:
    return number_words.year(n) if 1100 <= n < 2100 else number_words.cardinal(n)


def expand_heading(match: re.Match) -> str:
    """Read IV as "four" if it is alone on a line, or before a title. A single letter, such as V, must be alone."""
    mark, numeral, after = match["mark"], match["numeral"], match["after"]
    text, marked = match.string, mark.lstrip(" \t*_")[:1] in ("#", "<")
    if len(numeral) == 1:
        whole = not text[: match.start()].strip() and not text[match.end() :].strip() and not after
        alone = after is not None and text[max(0, match.start() - 2) : match.start()].strip(" ") in ("", "\n\n")
        if not marked and not whole and not (alone and LINE_ALONE.match(text, match.end())):
            return match[0]
    elif not marked and numeral in ("CC", "CI", "CL", "CV", "MIX", "XL") and not text[match.end() :].strip():
        return match[0]
    ends = "." if not after and text.startswith("<b", match.end()) else after or ""
    return f"{mark}{number_or_year(number_words.roman(numeral))}{ends}"


TITLE_WORD = r"(?: (?:[A-Z][\w'-]*|of|the|and|a|an|in|to|on|for|at|by|with|from|or|as)(?![\w'-]))"
LINE_ALONE = re.compile(
    r"[.:]?[ \t*_]*(?:</h\d>|<br ?/?>|\n[ \t]*\n)|[.:]?[^\n.!?]{1,80}\n[ \t]*\n"
    rf"|[.:]?{TITLE_WORD}{{1,12}}[.:]\n[ \t]*\n|[.:]?{TITLE_WORD}{{2,12}}[.:]?\s*\Z"
)
HEADINGS: tuple[TextRule, ...] = (
    rule(
        "IV. Title",
        rf"(?m)^(?P<mark>[ \t]*+(?:#{{1,6}}[ \t]+|<h[1-6][^<>\n]{{0,100}}>)?+[ \t*_]*+)(?P<numeral>{NUMERAL})"
        r"(?:(?P<after>[.:]?)(?=[ \t*_]*(?:</?[hb][^>\n]{1,80}>|$)|[.:)] +[\"'(]?[A-Z])|(?<=[ #>*_]..)(?= +[A-Z]))",
        expand_heading,
    ),
    rule(
        "WWII",
        r"\bWW(?:(I{1,3})\b|([123])\b)",
        lambda match: "World War " + number_words.cardinal(len(match[1]) if match[1] else int(match[2])),
    ),
)
CHORD = "(?:IV|VI{0,2}|I{1,3}|iv|vi{0,2}|i{1,3})7?"
NUMERALS: tuple[TextRule, ...] = (
    rule(
        "XIXth",
        rf"\b(?=[IVXL]{{2}}){TENS}(?:th|st|nd|rd)\b",
        lambda match: number_words.ordinal(number_words.roman(match[0][:-2])),
    ),
    rule("ii–V–I", rf"(?<![\w'–-])(?=[IVXivx])(?:{CHORD}(?: ?[-–] ?)){{2,7}}{CHORD}(?![\w'–-])", expand_progression),
    rule(
        "stage IIIb",
        r"([IVX](?<![\w'][IVX])[IVX]{0,4})([a-dAB])\b(\s?[-–]\s?(?=[IVX]{1,4}[a-dAB]\b))?",
        expand_lettered_numeral,
    ),
    rule("Chapter IV, Henry VIII, XII", rf"\b(?=[IVXLCDM])(?:I\b|{NUMERAL}){MORE}", expand_numerals),
    rule("page iv, pp. xii-xiv", rf"(?<![\w'.-])(?=[ivxl]+\b){SMALL}{MORE_SMALL}", expand_small_numerals),
    rule("(iii)", rf"(?<=\()(?![vx]\)){SMALL}(?=\))", lambda match: cardinals(match[0])),
    rule(
        "(v) after (iv)",
        r"(?<=\()[vx](?=\))",
        lambda match: cardinals(match[0]) if follows(match, FOURTH_OR_NINTH, 2000) else match[0],
    ),
    rule("ii. in a list", rf"(?m)^[ \t]*(?![vx][.)]){SMALL}(?=[.)][ \t])", lambda match: cardinals(match[0])),
)
