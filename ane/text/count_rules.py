"""Define the rules for fractions, scores, ordinals, decades, years, and plurals of models such as "two F-16s"."""

import re
from math import gcd

from ane.text import number_words
from ane.text.lexicon import CRICKET_TEAMS, ISOTOPES, MODELS, SPACED_UNITS, UNITS, UNSPACED_UNITS
from ane.text.number_rules import plural
from ane.text.rule import NUMBER, TextRule, any_of, follows, in_context, rule, with_digits

YEAR_CUE = re.compile(
    r"\b(?i:in|since|by|until|till|of|year|during|before|after|around|circa|from|early|late|mid)"
    r"\s+\Z"
)
NOT_PLURAL = (
    r"(?:as|is|was|has|its|this|us|thus|his|yes|always|perhaps|plus|minus|versus|equals|across|besides"
    r"|towards)"
)


def expand_ordinal(match: re.Match) -> str:
    return number_words.ordinal(int(match[1].replace(",", "")))


def expand_fraction(match: re.Match) -> str:
    """Read 3/4 as "three quarters", 1 1/2 as "one and a half", 2 1/4 tsp as "two and a quarter teaspoons"."""
    whole, unit = match[1], match[4]
    if not (whole or unit) and is_score(match):
        return f"{match[2]} out of {match[3]}"
    words = number_words.fraction(int(match[2]), int(match[3]))
    if whole:
        words = f"{number_words.number(whole)} and {re.sub('^one ', 'a ', words)}"
    if unit:
        words += f" {plural(UNITS[unit]) if whole or int(match[2]) > int(match[3]) else UNITS[unit]}"
    return words


def is_score(match: re.Match) -> bool:
    """Return whether 17/20 is a score, because it is out of 15, 20, 25, …, or next to "scored" or "on the test"."""
    n, total = int(match[2]), int(match[3])
    if n > total or total < 4 or PART_OF.match(match.string, match.end()) or follows(match, OPERATOR):
        return False
    return bool(
        (total >= 15 and total % 5 == 0 and 3 < n < total)
        or follows(match, SCORED)
        or TEST.match(match.string, match.end())
    )


PART_OF = re.compile(r"-|\s(?:of\b|in\b(?!\s[a-z])|inch|[-+*=<>×÷])")
OPERATOR = re.compile(r"[-+=*<>×÷] ?\Z")
SCORED = re.compile(r"(?i)\b(?:(?:scor|grad|rat|mark)(?:e[ds]?|ing)|marks?|grades?)(?: (?:of|was|is|it|him|her))?:? \Z")
TEST = re.compile(
    r" (?:on|in|for) (?:the|a|an|his|her|my|your|our|their|this|that|each|every) (?:[a-z]+ )?"
    r"(?:test|exam|quiz|paper|essay|assignment|homework|project|midterm|final)"
)


def expand_count(match: re.Match) -> str:
    """Read 3/48 files as "three of forty-eight files". Common fractions (2/3, 5/8) and ratings (9/10) do not change."""
    n, total = (int(group.replace(",", "")) for group in match.groups())
    usual = total <= 10 or total in (16, 32, 64, 100)
    if n > total or total < 5 or n == total == 50 or (usual and (gcd(n, total) == 1 or total in (5, 10, 100))):
        return match[0]
    return f"{match[1]} of {match[2]}"


def expand_year(match: re.Match) -> str:
    """Read 1984 as "nineteen eighty-four". A number below 1900 before a plural is a count, not a year: 1234 apples."""
    n, cue = int(match["n"]), follows(match, YEAR_CUE)
    is_count = ((match["plural"] is not None and n < 1900) or n < 1100) and not cue
    return number_words.cardinal(n) if is_count else number_words.year(n)


def expand_decade(match: re.Match) -> str:
    """Read the 90s as "the nineties". "90s" is a decade only after a word such as "the", or after an apostrophe."""
    known = match[0].startswith("'") or follows(match, BEFORE_DECADES)
    return number_words.decade(int(match[1])) if known else match[0]


def expand_models(match: re.Match) -> str:
    """Read two F-16s as "two F sixteens", and Boeing 747s as "Boeing seven forty-sevens"."""
    n, before = int(match[1]), match.string[match.start() - 1 : match.start()]
    known = follows(match, MODEL_JOINED) or (n > 9 and follows(match, MODEL_BEFORE))
    if not known and (not re.fullmatch("7[0-8]7", match[1]) or re.match(r"[\w.,$£€-]", before)):
        return match[0]
    words = number_words.decade(n) if n < 100 else re.sub("ys$", "ies", f"{number_words.year(n)}s")
    return "-" * before.isalpha() + re.sub("xs$", "xes", words)


MODEL_JOINED = re.compile(r"(?:[A-Z]|\b[A-Z]\w*-)\Z")
MODEL_BEFORE = re.compile(rf"(?:\b(?i:{any_of(MODELS)})|[a-z][A-Z]\w*) \Z")
COUNT = r"(\d{1,3}(?:,\d{3}){1,2}|\d{1,6})"
BEFORE_DECADES = re.compile(
    r"(?:\b(?:[Tt]he|his|her|their|my|your|early|late|and|of) "
    r"|(?i:mid|late|early|pre|post|non)-)\Z"
)

NOT_WON = (
    r"\A(?![\s\S]*\b(?i:w[io]ns?|lost|loses?|beat|drew|game|match|final|tie|half|votes?|jury|court|decision|odds|ratio"
    r"|aspect|stocks?|prices?|scores?|support)\b[^.!?\n]{0,16}\Z)[\s\S]*"
)


def record_words(match: re.Match) -> str:
    return f"{match[1]} and {'oh' if match[2] == '0' else match[2]}"


# These rules run before those for ranges and decimals.
RECORD_RULES = with_digits(
    rule(
        "improved to 5-0",
        r"(?<![\w.,$£€/-])(\d{1,2})[-–](\d{1,2})\b(?![-–:/]|[.,]\d|%)",
        in_context(
            ((NOT_WON, r" (?:record|start|mark|this season|on the (?:season|year)|overall)\b"),),
            record_words,
            in_context(
                (
                    (
                        rf"{NOT_WON}\b(?:improv\w+ to"
                        r"|(?:[Tt]hey|[Ww]e|then|[Tt]he [A-Z][a-z]+s) (?:falls?|fell|drop\w*|mov\w+) to|then went) ",
                        r"[.,;:!?)]|\s*\Z| (?:this|with|and|since)\b",
                    ),
                    (rf"{NOT_WON}\b(?:went|finished) ", r" and (?:miss|made|reach|qualif|clinch)"),
                ),
                lambda match: (
                    record_words(match) if int(match[1]) > int(match[2]) or match[2] > match[1] == "0" else match[0]
                ),
            ),
        ),
    ),
    rule(
        "The Lakers are 12-4",
        r"(?<![\w.,$£€/-])(\d{1,3})[-–](\d{1,3})\b(?![-–:/]|[.,]\d|%)",
        in_context(
            (
                (
                    r"\b(?:[Tt]he [A-Z][a-z]+s|[Tt]hey|[Ww]e) (?:are|were|sit|stand) ",
                    r" (?:and (?:sit|lead|rank|stand|first|second|third|fourth|fifth|last)"
                    r"|in (?:the|their) (?:league|division|conference|standings|season)|this season|overall)\b",
                ),
                (
                    r"\b(?:[Tt]he [A-Z][a-z]+s|[Tt]hey|[Ww]e)(?: (?:are|were|sit|stand)(?: now)?)? at ",
                    r"[.,;!?]|\s*\Z| (?:and (?:sit|lead|rank|stand)|in (?:the|their)|this season|overall)\b",
                ),
            ),
            lambda match: record_words(match) if int(match[1]) + int(match[2]) <= 162 else match[0],
        ),
    ),
    rule(
        "England are on 214/5",
        r"/(?<=\d\d/)(?=(?:\d|10)\b(?![/.,]\d|%))",
        in_context(
            (
                (
                    rf"\b{any_of(CRICKET_TEAMS)} (?:(?:were|are|was|is|on|at|reached|made|finished|closed|slumped|fell"
                    r"|to|with|now) ){0,3}\d{2,3}",
                    "",
                ),
                (
                    r"\b\d{2,3}",
                    r"\d+ (?:declared|at (?:stumps|lunch|tea|the close)|(?:after|from|in|off) [\d.]+ overs)\b",
                ),
            ),
            lambda match: " for ",
        ),
    ),
    rule(
        "Boeing 737, a 747",
        r"7[0-8]7(?:(?<=Boeing ...)|(?<=\b[Aa] ...))\b(?![-.,]?\d|%|s\b| [a-z]+s\b)",
        lambda match: number_words.year(int(match[0])),
    ),
    rule(
        "Airbus A320neo", r"(?<=Airbus )A(3[0-8]\d)(?=neo|\b)", lambda match: f"A {number_words.year(int(match[1]))} "
    ),
    rule(
        "RTX 4090, form 1040",
        rf"\d{{4}}\b(?:(?<=TX ....)|(?<=Ryzen \d ....)|(?<=\b[fF]orm ....))"
        rf"(?!-?\d|[.,]\d|%| (?!{NOT_PLURAL}\b)[a-z]+s\b)",
        lambda match: number_words.year(int(match[0])),
    ),
    rule("802.11ax", r"(?<![\w.])802\.11([a-z]{0,2})\b", lambda match: f"eight oh two dot eleven {match[1].upper()}"),
    rule(
        "Blink-182, uranium-235",
        r"-([1-9]\d{2})\b(?![-–.,/]?\d|[-%])",
        in_context(
            ((rf"\b(?:[A-Z][a-z](?:[a-z][a-z]+)?|{any_of(ISOTOPES)})", ""),),
            lambda match: f" {number_words.year(int(match[1]))}",
        ),
    ),
    rule("H.264", r"\b([Hx])\.?26([45])\b", lambda match: f"{match[1]} {number_words.year(260 + int(match[2]))}"),
    rule(
        "US-101, Route 128",
        r"[- ](?:(?<=\bUS-)|(?<=\bSR-)|(?<=oute )|(?<=ighway )|(?<=nterstate )|(?<=\b[rR]oom ))"
        r"([1-9]\d\d)\b(?![-.,]?\d|%| [a-z]+s\b)",
        lambda match: f" {number_words.year(int(match[1]))}",
    ),
    rule(
        "F-150, BMW 320d, A303",
        r"(?<![\w'.-])(?:([A-Z]-)|(BMW |Mercedes )|(?:(?<=[Tt]he )|(?<=on )|(?<=onto )|(?<=off ))([ABM]))(\d{3})"
        r"(?=[a-rt-z]{0,2}\b)(?![,.-]?\d|-[A-Z\d])([a-z])?",
        lambda match: " ".join(
            filter(None, [(match[1] or match[2] or match[3]).rstrip(" -"), number_words.year(int(match[4])), match[5]])
        ),
    ),
    rule(
        "batting .305",
        r"(?<![\w.])\.(\d{3})\b(?!%)",
        in_context(
            (
                (
                    r"\b(?i:bat(?:ted|ting)|slugg(?:ed|ing))(?: (?:average|of|is|was|at)){0,3} ",
                    r"(?! (?:inch|inches|mm|cm|in|per)\b)",
                ),
                (
                    r"(?<!tock )(?<!rice )(?<!rices )(?<!hares )\b(?i:bats?|hits?|hitting|shot|shoots?|shooting) ",
                    r" (?:with \w+ (?:homers?|home runs?|RBIs?|steals|doubles|hits|walks)"
                    r"|from (?:three|the (?:field|line))"
                    r"|(?:this|last|for the|in his|in her) (?:year|season|career)"
                    r"|against (?:left|right)|over his last)\b",
                ),
                ("", r" (?:hitter|batting|slugging)\b"),
            ),
            lambda match: (
                number_words.year(int(match[1]))
                if match[1] >= "100"
                else f"oh {'oh ' * (match[1] < '010')}{number_words.cardinal(int(match[1]))}"
            ),
        ),
    ),
)
FRACTION_RULES = with_digits(
    rule(
        "in 3/4 time",
        r"/(?:(?<=\bin [2-9]/)|(?<=\b[Aa] [2-9]/)|(?<=\bin 12/)|(?<=\b[Aa] 12/))"
        r"(?=(?:[248]|16) (?:time|waltz|beat|rhythm|meter|metre|signature)\b)",
        " ",
    ),
    rule(
        "play it in 3/4",
        r"/(?:(?<=\bin [2-9]/)|(?<=\bin 12/))(?=(?:[248]|16)\b(?!/| of\b| the\b"
        r"|[ -](?:inch|mile|cup|hour|foot|step|second|minute|mm|cm|in\b)))",
        in_context(
            (
                (
                    r"\b(?i:play\w*|written|notated|count\w*|conduct\w*|waltz|jig|tune|song|piece|movement|march|reel|minuet"
                    r"|mazurka|cadence|chords?|melody|waltz)(?: (?:is|are|was|it|them))? in \d\d?",
                    "",
                ),
                ("", r"\d+ at \d+ ?(?:bpm|BPM|beats)\b"),
            ),
            lambda match: " ",
        ),
    ),
    rule(
        "odds of 7/2",
        r"/(?<=\d/)(?=\d{1,2}\b(?!/))",
        in_context(
            (
                (r"\b[Oo]dds(?: (?:are|were|of|at|is|on|now|was|to|about)){0,3} \d{1,4}", r"\d{1,2}(?! of\b)"),
                (r"\b\d{1,4}", r"\d{1,2} (?:favou?rites?|outsiders?|shots?|odds|joint favou?rites?)\b"),
            ),
            lambda match: " to ",
        ),
    ),
    rule(
        "1/2-3/4",
        r"[-–](?=\d{1,3}/\d{1,3}(?![\d/]))",
        in_context(
            ((r"= ?\d{1,3}/\d{1,3}", ""), (r"(?<![\d/])\d{1,3}/\d{1,3}", r"\d{1,3}/\d{1,3} ?=")),
            lambda match: " minus ",
            in_context(((r"(?<![\d/])\d{1,3}/\d{1,3}", ""),), lambda match: " to "),
        ),
    ),
    rule("12/16 GiB", r"(?<=\d)\s?/\s?(?=\d+\s?[KMGTP]i?B\b)", " of "),
    rule(
        "1/4th",
        r"(?<![\w.,/])(\d{1,3})/(\d{1,3})(?i:ths?|n?ds?|rds?|sts?)\b",
        lambda match: number_words.fraction(int(match[1]), int(match[2])),
    ),
    rule(
        "(3/5)",
        r"\((\d{1,3})/(\d{1,3})\)",
        lambda match: match[0] if int(match[1]) < int(match[2]) <= 4 else f"({match[1]} of {match[2]})",
    ),
    rule("4.5/5", r"(?<![\w.,/])(\d+\.\d+)\s?/\s?(5|10|100)(?![\d/])", r"\1 out of \2"),
    rule(
        "3/48 files",
        rf"(?<![\w.,/-])(?<!\d ){COUNT}/{COUNT}(?=\s(?:(?!of\b)[A-Za-z]+\s)?(?!{NOT_PLURAL}\b)"
        r"(?:[A-Za-z]+[a-rt-z]s|people|children|(?:wo)?men)\b)",
        expand_count,
    ),
    rule(
        "1 1/2",
        rf"(?<![\w.,/])(?:(\d{{1,3}})(?:\s+|\s?-))?(\d{{1,3}})/(\d{{1,3}})"
        rf"(?:(?:\s?(?!{any_of(UNSPACED_UNITS)}\b)|(?=in\b))({any_of(UNITS.keys() - SPACED_UNITS)}))?(?![\w/])",
        expand_fraction,
    ),
)
COUNT_RULES = with_digits(
    rule("21st", r"(?<![\w.])(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?i:st|nd|rd|th)\b", expand_ordinal),
    rule("1960s-80s", r"(?<=\d0s)\s?[-–]\s?'?(\d0s)\b", r" to the '\1"),
    rule("1960s-1980s", r"(?<=\d0s)\s?[-–]\s?(?=[12]\d\d0s)", " to "),
    rule("1990s", r"(?<!\w)'?([12]\d\d0)'?s\b", lambda match: number_words.decade(int(match[1]))),
    rule(
        "49ers",
        r"(?<![\w.,])(\d{2})ers\b",
        lambda match: re.sub("ey?ers$", "ers", f"{number_words.cardinal(int(match[1]))}ers"),
    ),
    rule("the 90s", r"(?:(?<!\w)'|(?<![\w.,']))([2-9]0)'?s\b", expand_decade),
    rule("747s, F-16s, iPhone 15s", r"(\d{1,3})s\b(?!-)", expand_models),
    rule(
        "'99",
        r"(?<!\w)'(\d\d)(?![\w'])",
        lambda match: ("oh " if match[1].startswith("0") else "") + number_words.cardinal(int(match[1])),
    ),
)
RULES: tuple[TextRule, ...] = (*FRACTION_RULES, *COUNT_RULES)
# Rules for the numbers that are left after all other rules.
REMAINING_NUMBERS: tuple[TextRule, ...] = with_digits(
    rule(
        "1984",
        r"(?<![\w.,])(?P<n>1\d{3}|20\d\d)"
        r"(?![\w%]|[.,]\d)"
        rf"(?P<plural>(?=\s+(?!{NOT_PLURAL}\b)[a-z]+[a-rt-z]s\b))?",
        expand_year,
    ),
    rule("1,234.5", NUMBER, lambda match: number_words.number(match[0])),
)
