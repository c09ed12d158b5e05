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
* ``count_rules.py``: fractions, years and counts
* ``capital_rules.py``: words in capitals and Roman numerals
* ``letter_rules.py``: single letters
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
    address_rules,
    capital_rules,
    chess_rules,
    count_rules,
    date_time_rules,
    letter_rules,
    markup_rules,
    math_rules,
    number_rules,
    phone_rules,
    unicode_to_ascii,
)
from ane.text.lexicon import (
    BARE_TITLES,
    CREDITS,
    CURRENCIES,
    DAYS,
    ENDINGS,
    INTERJECTIONS,
    LETTERED,
    MONTHS,
    NUMBERED,
    PHRASES,
    SHORT_FORMS,
    TITLES,
    UNITS,
)
from ane.text.number_rules import plural
from ane.text.rule import TextRule, any_of, apply_rules, follows, period_after, rule


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


# --- abbreviations ---------------------------------------------------------------------------------------------------


def expand_title(match: re.Match) -> str:
    """Write Gen. Lee as "general Lee". A small letter may follow only the commonest titles: "Dr. who".

    Among words in capitals, the title is in capitals too: AT ST. MARY'S is "AT SAINT MARY'S".
    """
    key, after = match[1].lower(), match.string[match.end() : match.end() + 2]
    if key not in TITLES or not (after[:1].isupper() or key in ALWAYS_TITLES):
        return match[0]
    return f"{TITLES[key].upper() if match[1].isupper() and after.isupper() else TITLES[key]} "


def expand_numbered(match: re.Match) -> str:
    """Write No. 5 as "number 5".

    A single capital letter, or any letter after a word such as "class", is not an abbreviation: "Class D. 4 went".
    "Secs. 8–10" are sections, but "10 secs." are seconds.
    """
    word = match[1]
    if word in ("Ex", "Exs") and LEGAL.search(match.string[max(0, match.start() - 120) : match.end() + 60]):
        return f"exhibit{'s' * (word == 'Exs')} "
    if word in ("cat", "ex", "exs") or (word == "ll" and match.string.startswith("'", match.start() - 1)):
        return match[0]
    if word.lower() in ("arts", "secs") and not SEVERAL_AFTER.match(match.string, match.end()):
        return match[0]
    if len(word) == 1 and (
        follows(match, LETTER_BEFORE) or (word not in "pP" and not YEAR_AFTER.match(match.string, match.end()))
    ):
        return match[0]
    return f"{NUMBERED[word.lower()]} " if word.lower() in NUMBERED else match[0]


def expand_abbreviation(match: re.Match) -> str:
    """Write E.g. as "for example", and Inc. as "incorporated". The period stays if it also ends the sentence."""
    key = match[1].lower()
    if key in ENDINGS and not match.string[match.end() : match.end() + 1].isalnum():
        return ENDINGS[key] + period_after(match)
    return PHRASES.get(key, match[0])


def expand_short_form(match: re.Match) -> str:
    """Read "Pls" as "Please", and "£2 ea." as "£2 each"."""
    words = SHORT_FORMS[match[1].lower()]
    spoken = words.capitalize() if match[1][0].isupper() and len(words.split()[0]) > 1 else words
    return spoken + (period_after(match) if match[0].endswith(".") else "")


def expand_credit(match: re.Match) -> str:
    """Read "ed. by J. Lee" and ", ed. J. Lee" as "edited by J. Lee"."""
    if match[2]:
        return CREDITS[match[1].lower()]
    return f"{CREDITS[match[1]]} by" if match[1].islower() and follows(match, CREDIT_BEFORE) else match[0]


def expand_editor(match: re.Match) -> str:
    """Read "(ed.)" and ", eds.," as "editor" and "editors"."""
    return "editor" + (match[1] or match[2] or "")


DATE_NAMES = {name.capitalize() for name in (*DAYS.values(), *MONTHS)}
CREDIT_BEFORE = re.compile(r"(?:[,;(] ?| and | & )\Z")
LEGAL = re.compile(
    r"\b(?i:plaintiff|defendant|court|deposition|dkt|docket|trial|counsel|motion|exhibit|affidavit|declaration"
    r"|testimony|attorney|judge|jury)s?\b"
)
LETTER_BEFORE = re.compile(rf"\b(?i:{any_of(LETTERED)})\s+\Z")
ALWAYS_TITLES = BARE_TITLES - {"st", "mt"}
SEVERAL_AFTER = re.compile(r"\d+(?:\(\d+\))?(?:,| (?:to|and|or|&) \d)")
YEAR_AFTER = re.compile(r"1?\d{3}\b|20\d\d\b|\d{1,5} (?:B\.?C\.?E?|C\.?E|A\.?D)\b")
ABBREVIATION_RULES = (
    rule("with and without", r"\b[wW]/(o\b|(?=\s|[a-z]))", lambda match: "without" if match[1] else "with "),
    rule("Dr. who", r"\b([A-Za-z]{2,6})\.\s*(?=[A-Za-z&])", expand_title),
    rule("Dr Brown", rf"\b({any_of(title.capitalize() for title in BARE_TITLES)})\s+(?=[A-Z])", expand_title),
    rule("Ex. B", r"\bEx(s?)\.\s(?=[B-HJ-Z]\b(?!\.\s*\S)|A(?: and [B-H])?\b(?! [a-z]))", r"Exhibit\1 "),
    rule(
        "No. 5",
        r"\b([A-Za-z]{2,5}|[bcdp]|(?<=\()P)\.\s?(?=\d|(?:(?<=[eE]q\. )|(?<=[eE]q[ns]\. ))\(\d)",
        expand_numbered,
    ),
    rule(
        "ed. by, trans. M. Jones",
        rf"\b({any_of(CREDITS)})\.(?=(?:,? (?:and|&) [a-z]{{2,6}}\.)? (?:(by) (?!{any_of(DATE_NAMES)})"
        r"(?:[A-Z]|the (?:author|editor|translator|composer)\b)|(?:[A-Z]\. ?){1,3}[A-Z][a-z]))",
        expand_credit,
    ),
    rule("(eds.), rev. ed.", r"(?<=\()(?:[eE]d(s)\.?|ed\.?|Ed\.)(?=\))|(?<=[a-z.], )ed(s?)\.(?!\w)", expand_editor),
    rule("rev. ed.", r"\b([rR])ev\. ed\.", lambda match: f"{match[1]}evised edition{period_after(match)}"),
    rule("#5", r"#\s?(?=\d)", "number "),
    rule("Roe v. Wade", r" v(?:(?<=[a-z] v)\.?|(?<=[a-zA-Z]\. v)\.)\s+(?=[A-Z])", " versus "),
    rule("vs", r"\b[vV]s\b\.?", "versus"),
    rule(
        "Smith & Co",
        r"\b(and|AND|&) (C[oO])\b(?![.-])",
        lambda match: f"{match[1]} {'COMPANY' if match[2].isupper() else 'company'}",
    ),
    rule("ca 1850", r"\bca (?=[1-9]\d{2,3}\b)", "circa "),
    rule("Man. Utd.", r"\bMan\.(?= (?:Utd|United|City)\b)", "Man"),
    rule(
        "DEPT",
        r"\b([dD]ept|DEPT|[gG]ovt|GOVT|[iI]ntl|INTL|[aA]ssn|ASSN|Utd|UTD)\b(?!\.)",
        lambda match: ENDINGS[match[1].lower()].upper() if match[1].isupper() else ENDINGS[match[1].lower()],
    ),
    rule("e.g., etc.", r"\b([A-Za-z]{2,6}|[eia]\.[a-z](?:\.a)?|[EIA]\.[A-Za-z](?:\.[Aa])?)\.", expand_abbreviation),
    rule("b/c", r"(?<![\w/=+*-])(?<![=+*/-] )b/c(?= (?:[a-z]{2,}|I\b))(?! is\b)", "because"),
    rule(
        "D min.",
        r"(?<!\d )\b([B-G](?:[b#]| flat| sharp)?|(?:(?<=\b[Ii]n )|(?<=key of ))A(?:[b#]| flat| sharp)?)"
        r" (?:m(in)|maj)(?:\.|\b(?=[.,;:!?)]|\s*\Z))(?! ?\d)",
        lambda match: (
            match[0]
            if follows(match, LETTER_BEFORE)
            else f"{match[1]} {'minor' if match[2] else 'major'}{period_after(match) * match[0].endswith('.')}"
        ),
    ),
    rule(
        "Qty, pls, B.Sc.",
        rf"(?<![\w.'/@&#-])({any_of(form for key in SHORT_FORMS for form in {key, key.title()} - {'Ea'})})"
        r"(?:\.(?!\w)|(?![\w'/@&-]|\.\w| dot\b))",
        expand_short_form,
    ),
    rule("(Hons)", r"Hons(?:(?<=\(Hons)|(?<=[AcDd] Hons))\b\.?", "honors"),
    rule(
        "s. 2(1)",
        r"(?<![\w.'])[sS](s?)\. ?(?=\d{1,4}[A-Z]?(?:\(\d| of the\b|(?:[-–]| to )\d{1,4} of the\b))",
        lambda match: f"section{match[1]} ",
    ),
    rule(
        "est. in 1990, the est. cost",
        r"st\.(?<=\b[eE]st\.)(?= (?:(in \d)|(?!in\b|since\b|by\b|c\b|is\b|was\b|of\b)[a-z]))",
        lambda match: "stablished" if match[1] else "stimated",
    ),
    rule("54-y/o", r"y/o\b(?:(?<=\dy/o)|(?<=\d[ -]y/o))(?!-)", " year old"),
    rule(
        "Pt. is ill",
        r"Pt(?<!\wPt)\.?(?= (?:is|was|has|had|reports?|reported|denie[sd]|presents|presented)\b)",
        "Patient",
    ),
    rule("King's X", r"X(?<=\bKing's X)\b(?!-)", "Cross"),
    rule("Yr 9", r"Yr(?<!\wYr)(s?) (?=\d{1,2}\b)", r"Year\1 "),
    rule("max.", r"\b(max|min)\.", lambda match: f"{match[1]}imum{period_after(match)}"),
    rule("Ph.D.", r"\bPh\.\s?D\.?", lambda match: "p h d" + period_after(match)),
    rule("A.D", r"\b[A-Z](?:\.[A-Z]){1,9}\b(?![.']?\w|\.)", lambda match: " ".join(match[0].split("."))),
    rule(
        "U.S.A.",
        r"\b(?:[A-Za-z]\.){2,}(?:[A-Za-z]\b(?!'))?",  # the initials become single letters
        lambda match: " ".join(re.findall("[A-Za-z]", match[0])) + period_after(match),
    ),
    rule("J. Smith", r"\b([B-HJ-Z])\.(?=\s+[A-Z])", lambda match: match[1] + period_after(match)),
)

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
    """Read AT&T as "a t and t"."""
    plural_ending = "'s" if match[3] else ""
    return f"{' '.join(match[1].lower())} and {' '.join(match[2].lower())}{plural_ending}"


SIGN_RULES = (
    rule("AT&T, M&Ms", r"\b([A-Z]{1,3})&([A-Z]{1,3})(s?)\b", expand_ampersand),
    rule("&", r"&+", " and "),
    rule("§§ 3", r"§§ ?|¶¶ ?", lambda match: f"{SIGN_WORDS[match[0][0]]}s "),
    rule("->", r" ?(?:[-=]{1,5}>|→) ?", " to "),
    rule("squared", r"²", " squared"),
    rule("cubed", r"³", " cubed"),
    rule("!=", r" ?!= ?", " is not equal to "),
    rule("5*3", r"(?<=\d) ?[*×x] ?(?=\d)", " times "),
    rule("C++", r"(?<=\w)\+\+", " plus plus"),
    rule("C#", r"(?<=\b[A-G])#", " sharp"),
    rule("=", r" ?={1,3} ?", " equals "),
    rule("°C", r"°([CF])\b", lambda match: f" {plural(UNITS[match[0]])}"),
    rule("Art. 5(2)", r"\((?<=\d\()(?=\d{1,2}\))", " ("),
    rule("single signs", rf"[{re.escape(''.join(SIGN_WORDS))}]", lambda match: f" {SIGN_WORDS[match[0]]} "),
    rule("|", r" ?\| ?", ", "),
    rule("dash", r" ?(?:—|-{2,}|(?<=\s)[–-](?=\s)) ?", ", "),
    rule("Paris–Rome", r"–", "-"),
    rule("F-16", r"(?<=[A-Za-z])-(?=\d)", " "),
    rule("t3.micro", r"\.(?<=\b[a-z]\d\.)(?=(?:[a-z]{3}|\d{0,2}x?large))", " dot "),
    rule("3D, MP3", r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])", " "),
    rule("2019/20", r"(?<=\d{4})/(?=\d{2}\b)", " "),
    rule("3/4567", r"(?<=\d)\s?/\s?(?=\d)", " over "),
    rule("1/f", r"(?<=\d) ?/ ?(?=[a-z]\b)", " over "),
    rule("he/she", r" ?/ ?", " "),
)

# --- lower case, punctuation and whitespace --------------------------------------------------------------------------


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
        rule("mr, html", r"(?<![\w'])(?!\w*(\w)\1\1)([b-df-hj-np-tv-xz]{2,5})(?![\w'])(?!-\2)", expand_consonants),
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
    *cleanup_rules("A-Za-z"),
    rule("ninety-nine", r"(?<=ty)-(?=(?:one|two|three|four|five|six|seven|eight|nine)\b)", " "),
    rule("F B I", r"(?<![\w'-])[A-Z](?: [A-Z])+(?![\w'-])", lambda match: match[0].replace(" ", ".")),
    # Join single letters again, with periods between them, because the phonemes treat them as one word.
    rule(
        "p m, h t m l",
        r"(?<![-'])\b(?:[b-hj-zB-HJ-Z]|[aA](?= [mMtT]\b))(?: [A-Za-z])+\b(?!['-])",
        lambda match: match[0].upper().replace(" ", "."),
    ),
)

EXPANSIONS: tuple[TextRule, ...] = (
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
    *number_rules.RULES,
    *count_rules.RULES,
    *number_rules.UNIT_RULES,
    *capital_rules.NUMERALS,
    *letter_rules.RULES,
    *ABBREVIATION_RULES,
    *SIGN_RULES,
)
RULES: tuple[TextRule, ...] = (*EXPANSIONS, *capital_rules.RULES, *count_rules.REMAINING_NUMBERS, *CLEANUP_RULES)
CASED: tuple[TextRule, ...] = (*EXPANSIONS, *capital_rules.WORDS, *count_rules.REMAINING_NUMBERS, *CASED_RULES)
