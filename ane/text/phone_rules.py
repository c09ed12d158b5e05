"""Define the rules for telephone numbers, versions and other numbers with several groups of digits."""

import re

from ane.text import number_words
from ane.text.lexicon import words
from ane.text.places import EMERGENCY_NUMBERS
from ane.text.rule import TextRule, any_of, in_context, rule, with_digits


def expand_digit_groups(match: re.Match) -> str:
    """Read +44 20 7946 as "plus four four, two zero, seven nine four six"."""
    plus = "plus " if match[0].startswith("+") else ""
    return plus + number_words.digit_groups(match[0])


def expand_lettered_number(match: re.Match) -> str:
    """Read 1-800-GO-2-HAUL as "one, eight hundred, GO two HAUL"."""
    numbers, words = match[1].strip("-").split("-"), re.sub("-", " ", match[2])
    spoken = [number_words.number(n) if n in ("800", "900") else number_words.digits(n) for n in numbers]
    return ", ".join([*spoken, re.sub(r"\d+", lambda n: number_words.digits(n[0]), words)])


def expand_version(match: re.Match) -> str:
    """Read 2.0.1 as "two point zero point one". Four groups are an IP address, read digit by digit."""
    parts = match[0].split(".")
    if re.fullmatch(r"\d{1,3}(\.\d{3}){2}", match[0]):  # 1.234.567 has points between thousands
        return number_words.number(match[0].replace(".", ""))
    if len(parts) == 4:
        return " dot ".join(map(number_words.digits, parts))
    return " point ".join(map(number_words.number, parts))


DIAL = r"\b(?i:(?:call|dial|phone|text|ring)(?:l?ing|l?ed|s)?|r[au]ng)"
NOT_COUNTED = r"(?! (?:people|(?:wo)?men|(?!(?:always|perhaps|this|its|as|is|us|unless)\b)[a-z]+[a-rt-z]s)\b)"
HTTP_ERRORS = "(?:40[1-9]|41[0-8]|42[69]|50[1-4])"
AFTER_PAGE = words("and or is was for when if in on instead that with from to error not but because every after again")
RULES: tuple[TextRule, ...] = (
    rule("press #", r"(?<=\b[pP]ress )([#*])(?!\w)", lambda match: "pound" if match[0] == "#" else "star"),
    *with_digits(
        rule("2.0-beta.3", r"-(?<=\d-)(alpha|beta|rc|dev|pre|preview|canary)\.?(?=\d)", r" \1 "),
        rule("555-0147 x23", r"(?<=\d{3}-\d{4}) ?x(?=\d{1,5}\b)", " extension "),
        rule(
            "call 911, error 404",
            r"(?<![\w.,$£€#/-])\d{3}\b(?![-:/]?\d|[.,]\d|%)",
            in_context(
                (
                    (rf"{DIAL}\s+", NOT_COUNTED),
                    (rf"{DIAL}\s[^.!?\n]{{0,60}}(?:,|\band|\bor)\s", rf"(?<={any_of(EMERGENCY_NUMBERS)}){NOT_COUNTED}"),
                    (
                        r"\b(?:[Aa]n?|[Tt]he|[Tt]h(?:is|at)|[Ee]very|[Hh]is|[Hh]er) ",
                        rf"(?<={any_of(EMERGENCY_NUMBERS)}) (?:call|operator|dispatcher|emergency|service|line)"
                        r"(?=[.,;:!?)]|\s*\Z| (?:is|was|and|or|asked|said|told|came|from|for|to|at|about)\b)",
                    ),
                    ("", r"(?<=911) (?:calls|operators|dispatchers)\b(?! (?:today|yesterday|this|last|work|from)\b)"),
                ),
                lambda match: number_words.digits(match[0]),
                in_context(
                    (
                        (r"\b(?i:error|https?|status)(?: code)?:? ", r"(?<=[1-9]\d\d)"),
                        ("", r"(?<=[45]\d\d)(?<!00) error\b"),
                        ("", rf"(?<={HTTP_ERRORS}) (?:Bad [GR]|Not Found|Forbidden|Unauthorized|Internal S|Service U)"),
                        ("", rf"(?<={HTTP_ERRORS}) (?:page|response)\b(?! [a-z])"),
                        ("", rf"(?<={HTTP_ERRORS}) (?:page|response) (?:{any_of(AFTER_PAGE)})\b"),
                    ),
                    lambda match: number_words.year(int(match[0])),
                ),
            ),
        ),
        rule(
            "+1 (555) 123-4567",
            r"(?<![\w+])\+(?=(?:[\s().-]{0,3}\d){7,15}(?!\d))\d{1,3}(?:[\s.-]?\(?\d{1,4}\)?){2,6}"
            r"(?!\d)",
            expand_digit_groups,
        ),
        rule(
            "555-123-4567",
            r"(?<![\w.-])(?:1[-.\s])?(?:\(\d{3}\)[-.\s]?|\d{3}[-.\s])\d{3}[-.\s]\d{4}(?![\w-])",
            expand_digit_groups,
        ),
        rule("1-800-FLOWERS", r"(?<![\w-])((?:1-)?8\d\d-)([A-Z][A-Z\d]*(?:-[A-Z\d]+)*)", expand_lettered_number),
        rule("555-1234", r"(?<![\w.-])\d{3}-\d{4}(?![\w-])", expand_digit_groups),
        rule("(020) 7946 0958", r"(?<![\w.-])\(?0\d{2,4}\)?[\s-]\d{3,4}[\s-]?\d{3,4}(?![\w-])", expand_digit_groups),
        rule("0800 00 1066", r"(?<![\w.-])0\d{3} \d\d (?:\d{4}|\d\d \d\d)(?![\w-])", expand_digit_groups),
        rule("06 12 34 56 78", r"(?<![\w.-])0\d(?:[ .]\d\d){4}(?!\w)", expand_digit_groups),
        rule("4111 1111 1111 1111", r"(?<![\w.-])\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?!\w)", expand_digit_groups),
        rule("978-3-16-148410-0", r"(?<![\w.-])(?=(?:\d-?){9,20}(?![\w-]))\d+-\d+-\d[\d-]*", expand_digit_groups),
        rule("v2.0", r"\b[vV](?:er)?\.?\s?(?=\d+\.\d)", "version "),
        rule("2.0.1 and 192.168.0.1", r"(?<![\w.])\d+(?:\.\d+){2,}(?!\w)", expand_version),
    ),
)
