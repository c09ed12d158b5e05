"""Define the rules for abbreviations: titles, numbered parts, credits and other short forms of words."""

import re

from ane.text import number_words
from ane.text.lexicon import (
    BARE_TITLES,
    CREDITS,
    DAYS,
    ENDINGS,
    LETTERED,
    MONTHS,
    NUMBERED,
    PHRASES,
    SHORT_FORMS,
    TITLES,
    words,
)
from ane.text.rule import WORD_END, TextRule, any_of, follows, in_context, period_after, rule, with_digits


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
    return spoken + period_after(match)


def expand_credit(match: re.Match) -> str:
    """Read "ed. by J. Lee" and ", ed. J. Lee" as "edited by J. Lee"."""
    if match[2]:
        return CREDITS[match[1].lower()]
    return f"{CREDITS[match[1]]} by" if match[1].islower() and follows(match, CREDIT_BEFORE) else match[0]


def expand_editor(match: re.Match) -> str:
    """Read "(ed.)" and ", eds.," as "editor" and "editors"."""
    return "editor" + (match[1] or match[2] or "")


def citation_number(number: str) -> str:
    """Read the volume or the page of a law report: 410 is "four ten"."""
    return number_words.year(int(number)) if len(number) > 2 else number


# Pieces of music whose numbers in Mozart's catalogue follow K.
COMPOSITIONS = words(
    "Mozart Sonata Concerto Requiem Symphony Quartet Quintet Serenade Divertimento Mass Rondo Fantasia Trio"
)
DATE_NAMES = {name.capitalize() for name in (*DAYS.values(), *MONTHS)}
PERIODS = {"w": "week over week", "m": "month over month", "q": "quarter over quarter", "y": "year over year"}
HEAT = (
    r"\b(?i:oven|(?:pre)?heat|bak(?:e|ed|ing)|roast\w*|temps?|temperatures?|fever|grill|highs?|lows?|weather|thermostat"
    r"|smoker|boils?)\b(?:[^.!?\n]|\.(?=\d)){0,50}\d"
)
CREDIT_BEFORE = re.compile(r"(?:[,;(] ?| and | & )\Z")
LEGAL = re.compile(
    r"\b(?i:plaintiff|defendant|court|deposition|dkt|docket|trial|counsel|motion|exhibit|affidavit|declaration"
    r"|testimony|attorney|judge|jury)s?\b"
)
LETTER_BEFORE = re.compile(rf"\b(?i:{any_of(LETTERED)})\s+\Z")
ALWAYS_TITLES = BARE_TITLES - {"st", "mt"}
SEVERAL_AFTER = re.compile(r"\d+(?:\(\d+\))?(?:,| (?:to|and|or|&) \d)")
YEAR_AFTER = re.compile(r"1?\d{3}\b|20\d\d\b|\d{1,5} (?:B\.?C\.?E?|C\.?E|A\.?D)\b")
AFTER_INITIALS = re.compile(r"(?:[A-Za-z]\.[A-Za-z]\.|\b[ap] m) \Z")
RULES: tuple[TextRule, ...] = (
    rule("c/o", r"\bc/o(?= [A-Z])", "care of"),
    rule("the Rt. Hon. Lord Lee", r"\bRt\.? Hon\b\.?", "Right Honorable"),
    rule("§ 3, n. 4", r"(?<=\d, )(l|n)\. ?(?=\d)", lambda match: "line " if match[1] == "l" else "note "),
    rule("Act V, Sc. ii", r"(?<=, )Sc\. (?=[ivxIVX\d])", "Scene "),
    rule("foo.bar()", r"(?<=[a-z_])\.(?=[a-z_]\w*\()", " dot "),
    rule("Temp.: 21°C", r"\b([tT])emp\.?(?=:)", r"\1emperature"),
    rule("Pt. Reyes", r"\bPt\.(?= [A-Z][a-z])", "Point"),
    rule("Tel.: 555", r"\b([tT])el\b\.?(?=: )", r"\1elephone"),
    rule("up 5% y/y", r"(?<=percent )([wmqyWMQY])/\1(?!\w)", lambda match: PERIODS[match[1].lower()]),
    *with_digits(
        rule("123 F.3d", r"F\.(?<=\d F\.) ?([23])d\b", lambda match: f"F {'second' if match[1] == '2' else 'third'}"),
        rule(
            "410 U.S. 113",
            r"(?<![\w.,$])(\d{1,3}) U\. ?S\. (\d{1,4})\b(?![.,]\d|%|-| [a-z]+s\b)",
            lambda match: f"{citation_number(match[1])} U S {citation_number(match[2])}",
        ),
        rule(
            "Requiem, K. 626",
            r"\bK\. ?(?=\d{1,3}[a-d]?\b)",
            in_context(
                ((r"[,(] ?", r"\d+[a-d]?(?:[.,;:)]|\s*\Z)"), (rf"\b{any_of(COMPOSITIONS)}\b[^.!?\n]{{0,40}}", "")),
                lambda match: "K ",
            ),
        ),
        rule("q6h", r"(?<![\w-])q(\d{1,2})h\b", r"every \1 hours"),
    ),
    rule("F = ma", r"(?<=[A-Z] = )(?:ma|mgh|mv|kx|hf)\b", lambda match: " ".join(match[0])),
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
            else f"{match[1]} {'minor' if match[2] else 'major'}{period_after(match)}"
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
        r"(?:Pt(?<!\wPt)\.?|pt\.(?<=\b[Tt]he pt\.))(?= (?:is|was|has|had|report(?:s|ed)?|denie[sd]|present(?:s|ed))\b)",
        lambda match: f"{match[0][0]}atient",
    ),
    rule(
        "350F",
        r"(?<=\d)\s?([FC])\b(?!\.?[\w#])",
        in_context(((HEAT, ""),), lambda match: f" degrees {'fahrenheit' if match[1] == 'F' else 'celsius'}"),
    ),
    rule("King's X", r"X(?<=\bKing's X)\b(?!-)", "Cross"),
    rule("Yr 9", r"Yr(?<!\wYr)(s?) (?=\d{1,2}\b)", r"Year\1 "),
    rule("the 3rd min.", r"min\.(?<=(?:st|nd|rd|th) min\.)", lambda match: f"minute{period_after(match)}"),
    rule("max.", r"\b(max|min)\.", lambda match: f"{match[1]}imum{period_after(match)}"),
    rule("3-pt shots", r"(?<=\d-)pt\b(?! (?:bottle|jar|carton))", "point"),
    rule("pp. 4 ff.", r"(?<=\d) ?ff\b\.?", " and following"),
    rule("c. AD 120", r"\bc\. ?(?=(?:AD|A\.D\.|CE) \d)", "circa "),
    rule("Ph.D.", r"\bPh\.\s?D\.?", lambda match: "p h d" + period_after(match)),
    rule("A.D", r"\b[A-Z](?:\.[A-Z]){1,9}\b(?![.']?\w|\.)", lambda match: " ".join(match[0].split("."))),
    rule(
        "U.S.A.",
        r"\b(?:[A-Za-z]\.){2,}(?:[A-Za-z]\b(?!'))?",  # the initials become single letters
        lambda match: (
            f"{WORD_END if follows(match, AFTER_INITIALS) else ''}{' '.join(re.findall('[A-Za-z]', match[0]))}"
            f"{period_after(match)}"
        ),
    ),
    rule(
        "J. Smith",
        r"\b([B-HJ-Z])\.(?=\s+[A-Z])",
        lambda match: match[0] if follows(match, LETTER_BEFORE) else match[1] + period_after(match),
    ),
)
