"""Define the rules for lengths, heights and weights with signs or abbreviations, such as 5'10", 6 ft. and 13 st 4 lb.

These rules write the units so that later rules of ``number_rules.py`` read them.
"""

import re

from ane.text import number_words
from ane.text.lexicon import AFTER_INCHES, MEASURED_THINGS
from ane.text.number_rules import ARTICLE, QUOTED
from ane.text.rule import TextRule, any_of, follows, in_context, period_after, rule, with_digits


def expand_inches(match: re.Match) -> str:
    """Write 12" as "12in", unless the sign ends a quotation. A later rule reads the unit."""
    line = match.string[max(0, match.start() - 300) : match.start()].rpartition("\n\n")[2]
    quoted = False
    for mark in re.finditer('(\\d?)"', line):
        quoted = not quoted and not mark[1]
    if quoted:
        return match[0]
    return "in" if not NOUN_AFTER_INCHES.match(match.string, match.end()) else " inch"


NOUN_AFTER_INCHES = re.compile(rf" (?!{any_of(AFTER_INCHES)}\b)[a-z]")


def expand_height(match: re.Match) -> str:
    """Read 5'10" as "five feet ten inches", but a 5'10" man as "a five foot ten man"."""
    if follows(match, ARTICLE):
        return f"{number_words.number(match[1])} foot {number_words.number(match[2])}"
    return f"{number_words.number(match[1])} feet {number_words.number(match[2])} inch{'' if match[2] == '1' else 'es'}"


RULES: tuple[TextRule, ...] = with_digits(
    rule(
        "6 ft. tall",
        r"(?:(?<=\d)\s?|(?<=\d)(-))(ft|oz|lbs?|in|hrs?|mins?|secs?|yds?|mi|yrs?|tsp|tbsp|gal|qt)\."
        r"(?=\s+[a-z\d(]|[,;])",
        r"\1\2",
    ),
    rule("2 heaped tsp. cocoa", r"(?<=\d [a-z])([a-z]{2,9} (?:tsp|tbsp))\.(?=\s+[a-z])", r"\1"),
    rule("£9.99/mo.", r"(?<=[\da-z]/)(mo|yr|hr|wk|min|sec)\.(?=\s+[a-z]|[,;])", r"\1"),
    rule("8 fl. oz.", r"(?<=\d)\s?fl\.\s?oz\b\.?", lambda match: " fl oz" + period_after(match)),
    rule("120k mi.", r"k mi\b(?<=\dk mi)\.?", lambda match: f" thousand miles{period_after(match)}"),
    rule(
        "1 (14 oz) can",
        r"\((?<=\d \()([\d.]+) ?[ -]?(oz|lb|g|kg|ml|mL)\.?(?=\) (?:cans?|tins?|jars?|packs?|packets?|packages?|bags?"
        r"|box|bottles?|cartons?|tubs?|containers?)\b)",
        r"(\1-\2",
    ),
    rule(
        "13 st 4 lb, 11st 4",
        r" ?st\b(?:(?<=\d st)|(?<=[02-9]st)|(?<=11st))\.?(?= ?\d{1,2} ?(?:lbs?|oz)\b)|(?<=1\d)st\b|(?<=[ (]9)st\b",
        " stone",
    ),
    rule(
        "weighs 13 st",
        r" ?st\b(?<=\d.st)|st\b(?<=\dst)",
        in_context(((r"\bweigh\w*(?: \w+){0,2} \d{1,2}", ""),), lambda match: " stone"),
    ),
    rule("5 sq. m", r"(?<=\d )sq\. ?(?=(?:ft|m|mi|km|in|yd)\b)", "sq "),
    rule("5 ft 10 in", r"(?<![\w.,])(\d) ?ft\.? (1[01]|\d) ?in\b", expand_height),
    rule("5'10\"", r"(?<![\w.,])(\d)'[\s-]?(1[01]|\d)(?:\"|''|(?![\w']))", expand_height),
    rule(
        '12" x 8"',
        r"\d(?<![\w.,]\d)[\d./]{0,20}(?:['\"](?:\s?[xX×]\s?| by )\d[\d./]{0,20})+['\"]",
        lambda match: re.sub(r"\s?[xX×]\s?", " by ", match[0].replace("'", "ft").replace('"', "in")),
    ),
    rule(
        "6' tall",
        rf"(?<=\d)(['\"])(?=-?\s?(?:(tall|high|long|wide|deep)|(?:{any_of(MEASURED_THINGS)})s?)\b)",
        # a later rule expands the unit
        lambda match: (
            match[0] if follows(match, QUOTED) else "ft" if match[1] == "'" else "in" if match[2] else " inch"
        ),
    ),
    rule('12" apart', r'"(?<=\d")(?=[\s.,;:)]|\Z)', expand_inches),
)
