"""The default normaliser: English text as it is read aloud, in the characters that the tokenizer knows.

``normalise_english`` applies ``RULES`` from top to bottom; each rule is a line that says where it matches and what is
read there, so to change how something is read, change that line. Addresses and layout are in ``markup.py``, dates and
times in ``moments.py``, money, measures and numbers in ``amounts.py``, capitals in ``capitals.py``, and the words in
``lexicon.py``.

Choices where English leaves one:

* Dates are American: 12/05/2024 is "december fifth", unless the month would be above 12 (25/12/2024) or the separator
  is a dot (24.12.2024). ISO dates (2024-05-01) are dates too. Four digits from 1100 to 2099 are read as a year.
* 24-hour times stay so: 14:00 is "fourteen hundred", 14:30 "fourteen thirty". 10:00 is "ten o'clock".
* Decimals, telephone numbers, IP addresses and numbers with a leading zero are read digit by digit.
* A word in capitals is spelled ("f b i") when it has up to three letters and is not in ``SHORT_WORDS``, has no vowel,
  or is listed in ``SPELLED``; otherwise it is a word (UNESCO), as is one in ``SAID_AS_WORDS``. In a run of three or
  more capitalised words with ordinary ones among them someone is shouting, and only what is in ``SPELLED`` is spelled.
* Roman numerals are numbers after words such as "Chapter" and names of rulers, and where they have two or more of the
  letters I, V, X and are no common abbreviation (XII, but not IV).
* Square brackets, double quotation marks, Markdown and emoji are not read. Dashes between words become commas.
"""

import html
import re

from ane.text.amounts import REMAINING, plural
from ane.text.amounts import RULES as AMOUNTS
from ane.text.capitals import NUMERALS
from ane.text.capitals import RULES as CAPITALS
from ane.text.characters import to_ascii
from ane.text.lexicon import BARE_TITLES, ENDINGS, INTERJECTIONS, NUMBERED, PHRASES, TITLES, UNITS
from ane.text.markup import LAYOUT, WEB
from ane.text.moments import RULES as MOMENTS
from ane.text.rules import Rule, any_of, rule, stop_after


def normalise_english(text: str) -> str:
    """``text`` in lower-case words: only a–z, single spaces and ``! ' ( ) , - . : ; ?``; empty if nothing can be said.

    Works on any Unicode text and never raises. The module's docstring says how things are read.
    """
    text = to_ascii(ENTITIES(text))
    for each in RULES:
        text = each(text)
    return text.strip()


ENTITIES = rule("&amp;", r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});", lambda match: html.unescape(match[0]))

# --- abbreviations ---------------------------------------------------------------------------------------------------


def say_title(match: re.Match) -> str:
    return f"{TITLES[match[1].lower()]} "


def say_ending(match: re.Match) -> str:
    return ENDINGS[match[1].lower()] + stop_after(match)


def say_street(match: re.Match) -> str:
    """St. and Dr. behind a name ("5 Main St.") are no saint and no doctor."""
    return match[1] + {"st": "street", "dr": "drive"}[match[2].lower()] + (stop_after(match) if match[3] else "")


def say_initials(match: re.Match) -> str:
    """U.S. → "U S": single letters, which no later rule takes for a word."""
    return " ".join(re.findall("[A-Za-z]", match[0])) + stop_after(match)


def say_limit(match: re.Match) -> str:
    return {"max": "maximum", "min": "minimum"}[match[1]] + stop_after(match)


NAME_BEFORE = r"(?:\b[A-Z][a-z]+|\d(?:st|nd|rd|th)|\b(?:first|second|third|[a-z]{2,12}th))"
ABBREVIATIONS = (
    rule("with and without", r"\b[wW]/(o\b|(?=\s|[a-z]))", lambda match: "without" if match[1] else "with "),
    rule("Main St.", rf"({NAME_BEFORE}\s+)(St)\b(\.?)(?!\s+[A-Z][a-z])", say_street),
    rule("12 Main Dr.", r"(\d\s+(?:[A-Z][a-z]+\s+){1,3})(Dr)\b(\.?)(?!\s+[A-Z][a-z])", say_street),
    rule("Elm Dr.", r"(\b[A-Z][a-z]+\s+)(Dr)(\.)(?=[,;])", say_street),
    rule("Dr. who", rf"\b((?i:{any_of(BARE_TITLES - {'st', 'mt'})}))\.(?=\s*[A-Za-z&])\s*", say_title),
    rule("Gen. Lee", rf"\b((?i:{any_of(TITLES)}))\.\s*(?=[A-Z])", say_title),
    rule("Dr Brown", rf"\b({any_of(title.capitalize() for title in BARE_TITLES)})\s+(?=[A-Z])", say_title),
    rule("No. 5", rf"\b((?i:{any_of(NUMBERED)}))\.\s?(?=\d)", lambda match: f"{NUMBERED[match[1].lower()]} "),
    rule("#5", r"#\s?(?=\d)", "number "),
    rule("Roe v. Wade", r"(?<=[a-z])\s+v\.?\s+(?=[A-Z])", " versus "),
    rule("vs", r"\b[vV]s\b\.?", "versus"),
    rule("e.g.", rf"\b((?i:{any_of(PHRASES)}))\.", lambda match: PHRASES[match[1].lower()]),
    rule("etc.", rf"\b((?i:{any_of(ENDINGS)}))\.(?!\w)", say_ending),
    rule("max.", r"\b(max|min)\.", say_limit),
    rule("Ph.D.", r"\bPh\.\s?D\.?", lambda match: "p h d" + stop_after(match)),
    rule("U.S.A.", r"\b(?:[A-Za-z]\.){2,}(?:[A-Za-z]\b(?!'))?", say_initials),
    rule("J. Smith", r"\b([B-HJ-Z])\.(?=\s+[A-Z])", lambda match: match[1] + stop_after(match)),
)

# --- signs that are left ---------------------------------------------------------------------------------------------

SIGN_WORDS = {
    "%": "percent", "@": "at", "+": "plus", "±": "plus or minus", "×": "times", "÷": "divided by", "≈": "is about",
    "≠": "is not equal to", "√": "the square root of", "∞": "infinity", "§": "section", "©": "copyright",
    "°": "degrees", "¢": "cents", "£": "pounds", "€": "euros", "¥": "yen", "₹": "rupees", "₩": "won", "₽": "rubles",
    "$": "dollars", "µ": "micro",
}


def say_ampersand(match: re.Match) -> str:
    """AT&T → "a t and t"."""
    plural_ending = "'s" if match[3] else ""
    return f"{' '.join(match[1].lower())} and {' '.join(match[2].lower())}{plural_ending}"


SIGNS = (
    rule("AT&T, M&Ms", r"\b([A-Z]{1,3})&([A-Z]{1,3})(s?)\b", say_ampersand),
    rule("&", r"&+", " and "),
    rule("->", r" ?(?:[-=]{1,5}>|→) ?", " to "),
    rule("squared", r"²", " squared"),
    rule("cubed", r"³", " cubed"),
    rule("!=", r" ?!= ?", " is not equal to "),
    rule("5*3", r"(?<=\d) ?[*×x] ?(?=\d)", " times "),
    rule("C++", r"(?<=\w)\+\+", " plus plus"),
    rule("C#", r"(?<=\b[A-G])#", " sharp"),
    rule("=", r" ?={1,3} ?", " equals "),
    rule("single signs", rf"[{re.escape(''.join(SIGN_WORDS))}]", lambda match: f" {SIGN_WORDS[match[0]]} "),
    rule("|", r" ?\| ?", ", "),
    rule("dash", r" ?(?:—|-{2,}|(?<=\s)[–-](?=\s)) ?", ", "),
    rule("Paris–Rome", r"–", "-"),
    rule("F-16", r"(?<=[A-Za-z])-(?=\d)", " "),
    rule("3D, MP3", r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])", " "),
    rule("2019/20", r"(?<=\d{4})/(?=\d{2}\b)", " "),
    rule("3/4567", r"(?<=\d)\s?/\s?(?=\d)", " slash "),
    rule("he/she", r" ?/ ?", " "),
)

# --- the last touch --------------------------------------------------------------------------------------------------


def say_consonants(match: re.Match) -> str:
    """A lower-case word without a vowel: an abbreviation that lacks its period, or letters ("tv", "html")."""
    word = match[0]
    if word in INTERJECTIONS:
        return word
    if word in TITLES or word in ENDINGS:
        return "street" if word == "st" else TITLES.get(word) or ENDINGS[word]
    return plural(UNITS[word]) if word in UNITS else " ".join(word)


TIDY = (
    rule("lower case", r"[A-Z]+", lambda match: match[0].lower()),
    rule("quotation marks", r'"', ""),
    rule("unknown characters", r"[^a-z!'(),\-.:;?\s]+", " "),
    rule("mr, html", r"(?<![\w'])(?!\w*(\w)\1\1)[b-df-hj-np-tv-xz]{2,5}(?![\w'])", say_consonants),
    rule("stray hyphen", r"(?<![a-z])-+|-+(?![a-z])", " "),
    rule("stray apostrophe", r"(?<![a-z,.!?])'+(?![a-z])", " "),
    rule("empty brackets", r"\(\s*\)", " "),
    rule("whitespace", r"\s+", " "),
    rule("space before a mark", r" +(?=[,;:!?)]|\.(?!\.))", ""),
    rule("space after a bracket", r"\( +", "("),
    rule("no space after a mark", r"(?<=[a-z])[,.;:!?](?=[a-z])", r"\g<0> "),
    rule("!!!", r"([!?,;:])\1+", r"\1"),
    rule("?!?!", r"(?:\?!|!\?)[!?]*", "?!"),
    rule(".....", r"\.{4,}", "..."),
    rule("two marks", r"[,;:]+(?=[,.;:!?])", ""),
    rule("a mark, then a comma", r"(?<=[.!?:;]),", ""),
    rule("..", r"(?<!\.)\.\.(?!\.)", "."),
    rule("a mark to begin with", r"^[\s,.;:)-]+", ""),
)

RULES: tuple[Rule, ...] = (
    *WEB, *LAYOUT, *MOMENTS, *AMOUNTS, *NUMERALS, *ABBREVIATIONS, *SIGNS, *CAPITALS, *REMAINING, *TIDY)
