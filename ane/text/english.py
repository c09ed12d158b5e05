"""Normalise English text: spell out numbers, dates, abbreviations and signs in words. This is the default normaliser.

``normalise_english`` applies ``RULES`` from top to bottom. Each rule is one substitution. To change how the normaliser
reads an expression, change its rule. The rules are in these modules:

* ``markup_rules.py``: web addresses, markup and layout
* ``address_rules.py``: postal addresses and codes
* ``date_time_rules.py``: dates and times
* ``chess_rules.py``: moves in a game of chess
* ``math_rules.py``: formulas
* ``phone_rules.py``: telephone numbers and versions
* ``number_rules.py``: money, units and numbers
* ``length_rules.py``: lengths, heights and weights
* ``count_rules.py``: fractions, years and counts
* ``capital_rules.py``: words in capitals and Roman numerals
* ``letter_rules.py``: single letters
* ``abbreviation_rules.py``: titles, credits and other short forms
* ``lexicon.py`` and ``places.py``: the lists of words that the rules use

Where English has several readings, the rules choose one:

* Dates are American: 12/05/2024 is "december fifth". But if the month would be above 12 (25/12/2024), or the separator
  is a dot (24.12.2024), the day comes first. ISO dates (2024-05-01) are dates too. Four digits from 1100 to 2099 are a
  year.
* 24-hour times stay 24-hour times: 14:00 is "fourteen hundred", and 14:30 is "fourteen thirty". 10:00 is "ten o'clock".
* A minus sign (U+2212) is never a range: 5 − 3 is "five minus three". 5-3 and 5–3 are "five to three", but the dashes
  of formulas such as 2x – 1 and 5 – 3 = 2 are minus signs.
* House numbers are read in pairs of digits: 1428 Elm St. is "fourteen twenty-eight". Codes after a word such as "PIN"
  are read digit by digit.
* The digits after a decimal point, telephone numbers, IP addresses and numbers with a leading zero are read digit by
  digit.
* A word in capitals is spelled ("f b i") if it has no vowel, is in ``SPELLED``, or has up to three letters and is not
  in ``SHORT_WORDS``. Other words in capitals (UNESCO), and the words in ``PRONOUNCED``, are spoken as words. Three or
  more consecutive words in capitals, unless all are acronyms, are ordinary words, except those in ``SPELLED``.
* HTML tags, square brackets, double quotation marks, Markdown and emoji are not read. A placeholder such as <name> is
  read without its brackets. Dashes between words become commas.
"""

import html
import re

from ane.text import (
    abbreviation_rules,
    address_rules,
    capital_rules,
    chess_rules,
    count_rules,
    date_time_rules,
    length_rules,
    letter_rules,
    markup_rules,
    math_rules,
    number_rules,
    phone_rules,
    unicode_to_ascii,
)
from ane.text.lexicon import CURRENCIES, ENDINGS, INTERJECTIONS, TITLES, UNITS
from ane.text.number_rules import plural
from ane.text.rule import WORD_END, TextRule, apply_rules, rule, with_digits, with_signs


def normalise_english(text: str) -> str:
    """Turn ``text`` into lower-case words. The result has only a–z, single spaces and ``! ' ( ) , - . : ; ?``.

    The text can be any Unicode text. This never raises an error, and its time is linear in the text's length. The
    result is empty if the text has no words.
    """
    return apply_rules(RULES, text).strip()


def normalise_cased(text: str) -> str:
    """Normalise ``text`` like ``normalise_english``, but keep its capitals. The result has A–Z as well as a–z.

    A word in capitals stays one word ("FBI"). Other letters that are read by name have periods between them ("P.M").
    """
    return apply_rules(CASED, text).strip()


# --- remaining signs -------------------------------------------------------------------------------------------------

SIGN_WORDS = {
    "%": "percent",
    "@": "at",
    "+": "plus",
    "±": "plus or minus",
    "×": "times",
    "÷": "divided by",
    "≈": "is about",
    "≠": "is not equal to",
    "≤": "less than or equal to",
    "≥": "greater than or equal to",
    "√": "the square root of",
    "∞": "infinity",
    "§": "section",
    "¶": "paragraph",
    "©": "copyright",
    "°": "degrees",
    "µ": "micro",
    "‰": "per mille",
    **{sign: names[1] for sign, names in CURRENCIES.items() if len(sign) == 1},
}


def expand_ampersand(match: re.Match) -> str:
    """Read AT&T as "A T and T"."""
    plural_ending = "'s" if match[3] else ""
    return f"{' '.join(match[1])} and {' '.join(match[2])}{plural_ending}"


SIGN_RULES = (
    rule("AT&T, M&Ms", r"\b([A-Z]{1,3})&([A-Z]{1,3})(s?)\b", expand_ampersand),
    rule("&", r"&+", " and "),
    rule("Copyright © 2021", r"©(?<=opyright ©)(?=\s)", ""),
    rule("§§ 3", r"§§ ?|¶¶ ?", lambda match: f"{SIGN_WORDS[match[0][0]]}s "),
    rule("->", r" ?(?:[-=]{1,5}>|→) ?", " to "),
    *with_signs(rule("squared", r"²", " squared"), rule("cubed", r"³", " cubed")),
    rule("!=", r" ?!= ?", " is not equal to "),
    rule("5*3", r"(?<=\d) ?[*×x] ?(?=\d)", " times "),
    rule("C++", r"(?<=\w)\+\+", " plus plus"),
    rule("C#m7", r"#(?<=\b[A-G]#)m(?=\d|\b)", " sharp minor "),
    rule("C#", r"(?<=\b[A-G])#", " sharp"),
    rule(
        "Bb",
        r"\b(?:([BE])b|([AD])b(?= (?:major|minor|chord|scale|maj|min)\b|[m7]))\b(?!-)(?!\.\w)",
        lambda match: f"{match[1] or match[2]} flat",
    ),
    rule("=", r" ?={1,3} ?", " equals "),
    rule("°C", r"°([CF])\b", lambda match: f" {plural(UNITS[match[0]])}"),
    rule("four(two)", r"\((?<=[A-Za-z]{2}\()(?=[A-Za-z]{3})(?!(?:ies|ren|men|ing)\))", " ("),
    rule("Art. 5(2)", r"\((?<=\d\()(?=\d{1,2}\))", " ("),
    rule("single signs", rf"[{re.escape(''.join(SIGN_WORDS))}]", lambda match: f" {SIGN_WORDS[match[0]]} "),
    rule("|", r" ?\| ?", ", "),
    rule("dash", r" ?(?:—|-{2,}|(?<=\s)[–-](?=\s)) ?", ", "),
    rule("Paris–Rome", r"–", "-"),
    *with_digits(
        rule("F-16", r"(?<=[A-Za-z])-(?=\d)", " "),
        rule("t3.micro", r"\.(?<=\b[a-z]\d\.)(?=(?:[a-z]{3}|\d{0,2}x?large))", " dot "),
        rule("3D, MP3", r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])", " "),
        rule("2019/20", r"(?<=\d{4})/(?=\d{2}\b)", " "),
        rule("3/4567", r"(?<=\d)\s?/\s?(?=\d)", " over "),
        rule("1/f", r"(?<=\d) ?/ ?(?=[a-z]\b)", " over "),
    ),
    rule("he/she", r" ?/ ?", " "),
)

# --- lower case, punctuation and whitespace --------------------------------------------------------------------------


CONSONANTS = "[b-df-hj-np-tv-xz]{2,5}"


def end_word(match: re.Match) -> str:
    """Mark the end of a word before other initials."""
    return f"{match[0][:-1]}{WORD_END} "


def expand_consonants(match: re.Match) -> str:
    """Expand a lower-case word without a vowel: an abbreviation without its period ("mr"), or initials ("html")."""
    word = match[0]
    if word in INTERJECTIONS:
        return word
    if word in TITLES or word in ENDINGS:
        return "street" if word == "st" else TITLES.get(word) or ENDINGS[word]
    return plural(UNITS[word]) if word in UNITS else " ".join(word)


def cleanup_rules(letters: str) -> tuple[TextRule, ...]:
    """Return the rules that remove all other characters, and clean up spaces and punctuation.

    ``letters`` are the letters that may be in words, such as "a-z".
    """
    return (
        rule("unknown characters", rf"[^{letters}!'(),\-.:;?\s]+", " "),
        rule("mr, html", rf"(?<![\w'])(?!\w*(\w)\1\1)({CONSONANTS})(?![\w'])(?!-\2)", expand_consonants),
        rule("stray hyphen", rf"(?<![{letters}])-+|-+(?![{letters}])", " "),
        rule("stray apostrophe", rf"(?<![{letters},.!?])'+(?![{letters}])", " "),
        rule("empty brackets", r"\(\s*\)", " "),
        rule("whitespace", r"\s+", " "),
        rule("space before a mark", r" +(?=[,;:!?)]|\.(?!\.))", ""),
        rule("space after a bracket", r"\( +", "("),
        rule("no space after a mark", rf"(?<=[{letters}])[,.;:!?](?=[{letters}])", r"\g<0> "),
        rule("!!!", r"([!?,;:])\1+", r"\1"),
        rule("?!?!", r"(?:\?!|!\?)[!?]*", "?!"),
        rule(".....", r"\.{4,}", "..."),
        rule("two marks", r"[,;:]+(?=[,.;:!?])", ""),
        rule("a mark, then a comma", r"(?<=[.!?:;]),", ""),
        rule("..", r"(?<!\.)\.\.(?!\.)", "."),
        rule("leading mark", r"^[\s,.;:)-]+", ""),
    )


CLEANUP_RULES = (
    rule("lower case", r"[A-Z]+", lambda match: match[0].lower()),
    rule("quotation marks", r'"', ""),
    *cleanup_rules("a-z"),
)

# The rules of ``normalise_cased``, whose result is turned into phonemes.
CASED_RULES = (
    rule("quotation marks", r'"', ""),
    rule(
        "idk tbh",
        rf"(?<=[A-Z] [A-Z]) (?={CONSONANTS}(?![\w']))|(?<![\w'])(?={CONSONANTS} {CONSONANTS}(?![\w']))\w+ ",
        end_word,
    ),
    *cleanup_rules(f"A-Za-z{WORD_END}"),
    rule("ninety-nine", r"(?<=ty)-(?=(?:one|two|three|four|five|six|seven|eight|nine)\b)", " "),
    rule("F B I", r"(?<![\w'-])[A-Z](?: [A-Z])+(?![\w'-])", lambda match: match[0].replace(" ", ".")),
    # Join single letters again, with periods between them, because the phonemes treat them as one word.
    rule(
        "p m, h t m l",
        r"(?<![-'])\b(?:[b-hj-zB-HJ-Z]|[aA](?= [mMtT]\b))(?: [A-Za-z])+\b(?!['-])",
        lambda match: match[0].upper().replace(" ", "."),
    ),
    rule("end of initials", WORD_END, ""),
)

EXPANSIONS: tuple[TextRule, ...] = (
    rule("colours of a terminal", r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)", ""),
    rule("&amp;", r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});", lambda match: html.unescape(match[0])),
    *unicode_to_ascii.RULES,
    *capital_rules.HEADINGS,
    *markup_rules.RULES,
    *address_rules.RULES,
    *date_time_rules.RULES,
    *chess_rules.RULES,
    *math_rules.RULES,
    *count_rules.RECORD_RULES,
    *phone_rules.RULES,
    *number_rules.SIGN_RULES,
    *length_rules.RULES,
    *number_rules.RULES,
    *count_rules.RULES,
    *number_rules.UNIT_RULES,
    *capital_rules.NUMERALS,
    *letter_rules.RULES,
    *abbreviation_rules.RULES,
    *SIGN_RULES,
)
RULES: tuple[TextRule, ...] = (*EXPANSIONS, *capital_rules.RULES, *count_rules.REMAINING_NUMBERS, *CLEANUP_RULES)
CASED: tuple[TextRule, ...] = (*EXPANSIONS, *capital_rules.WORDS, *count_rules.REMAINING_NUMBERS, *CASED_RULES)
