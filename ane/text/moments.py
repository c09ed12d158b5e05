"""Rules for dates and times of day."""

import re

from ane.text import numbers
from ane.text.lexicon import DAYS, MONTHS
from ane.text.rules import Rule, any_of, rule, stop_after

SHORT_MONTHS = {month[:3].capitalize(): month for month in MONTHS} | {"Sept": "september"}
# "may" and "march" are also verbs, so without a capital they are no months
MONTH = (rf"(?:(?i:{any_of(m for m in MONTHS if m not in ('may', 'march'))})|May|MAY|March|MARCH"
         rf"|{any_of(SHORT_MONTHS)}\b\.?)(?![A-Za-z])")
SHORT_DAY = any_of(day.capitalize() for day in DAYS)
DAY = r"(?:0?[1-9]|[12]\d|3[01])"
ORDINAL = r"(?:st|nd|rd|th)?"
LAST_DAY = rf"(?:\s?(?:[-–]|to)\s?(?P<last>{DAY}){ORDINAL}(?!\d))?"
YEAR = r"[12]\d{3}(?![\d:%]|[.,]\d)"
HALF = r"\s?(?P<half>[AaPp])(?:\.\s?[Mm](?P<stop>\.)|[Mm]\b)"           # am, PM, a.m.


def month_name(text: str) -> str:
    return next(month for month in MONTHS if month.startswith(text[:3].lower()))


def month_first(month: str, day: int, year: str | None) -> str:
    said = f"{month} {numbers.ordinal(day)}"
    return f"{said}, {numbers.year(int(year))}" if year else said


def say_month_day(match: re.Match) -> str:
    last = f" to {numbers.ordinal(int(match['last']))}" if match["last"] else ""
    year = f", {numbers.year(int(match['year']))}" if match["year"] else ""
    return f"{month_name(match['month'])} {numbers.ordinal(int(match['day']))}{last}{year}"


def say_day_month(match: re.Match) -> str:
    last = f" to the {numbers.ordinal(int(match['last']))}" if match["last"] else ""
    year = f", {numbers.year(int(match['year']))}" if match["year"] else ""
    return f"the {numbers.ordinal(int(match['day']))}{last} of {month_name(match['month'])}{year}"


def say_iso(match: re.Match) -> str:
    return month_first(MONTHS[int(match[3]) - 1], int(match[4]), match[1]) + (", " if match[5] else "")


def say_numeric(match: re.Match) -> str:
    """12/05/2024 is December 5th, American style, unless that is no date; with dots the day comes first."""
    first, second, year = int(match[1]), int(match[3]), match[4]
    day, month = (first, second) if match[2] == "." or first > 12 else (second, first)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    if len(year) == 2:
        year = ("20" if int(year) < 70 else "19") + year
    return month_first(MONTHS[month - 1], day, year)


def say_time(match: re.Match) -> str:
    hour, minute, second, half = int(match["hour"]), int(match["minute"]), match["second"], match["half"]
    said = numbers.clock(hour, minute, twelve_hour=bool(half))
    if second and int(second):
        if not minute and not half:
            said = f"{numbers.cardinal(hour)} hour{'' if hour == 1 else 's'}"
        said += f" and {numbers.cardinal(int(second))} second{'' if int(second) == 1 else 's'}"
    return said + (say_half(match) if half else " u t c" if match["utc"] else "")


def say_half(match: re.Match) -> str:
    return f" {match['half'].lower()} m" + (stop_after(match) if match["stop"] else "")


def say_day_name(match: re.Match) -> str:
    return DAYS[match[1].lower()] + match[2]


def say_days(match: re.Match) -> str:
    return f"{DAYS[match[1].lower()]} to {DAYS[match[2].lower()]}"


def say_year_month(match: re.Match) -> str:
    return f"{MONTHS[int(match[2]) - 1]} {numbers.year(int(match[1]))}"


def say_month_year(match: re.Match) -> str:
    return f"{month_name(match['month'])} {numbers.year(int(match['year']))}"


def say_month_slash_day(match: re.Match) -> str:
    return match[1] + month_first(MONTHS[int(match[2]) - 1], int(match[3]), None)


def say_hour(match: re.Match) -> str:
    return numbers.cardinal(int(match["hour"])) + say_half(match)


def say_minutes(match: re.Match) -> str:
    """26:11, beyond the hours of a day, is a duration in minutes and seconds: "twenty-six eleven"."""
    return f"{match[1]} {'oh ' if match[2].startswith('0') else ''}{numbers.cardinal(int(match[2]))}"


DATES = (
    rule("Mon-Fri", rf"\b({SHORT_DAY})\s?[-–]\s?({SHORT_DAY})\b", say_days),
    rule("Mon., 5 May", rf"\b({SHORT_DAY})\b\.?(,?\s+)(?={MONTH}|\d{{1,2}}{ORDINAL}\s+{MONTH})", say_day_name),
    rule("2024-05-01", rf"(?<![\w./-])([12]\d{{3}})([-/.])(0?[1-9]|1[0-2])\2({DAY})(?:(T)(?=\d)|(?!\d|\2\d))", say_iso),
    rule("12/05/2024", r"(?<![\w./-])(\d{1,2})([-/.])(\d{1,2})\2((?:19|20)\d\d|(?<=/)\d\d)(?!\d|\2\d)", say_numeric),
    rule("2024-05", r"(?<![\w./-])((?:19|20)\d\d)-(0[1-9])(?![\d-])", say_year_month),
    rule("May 1st, 2024", rf"\b(?P<month>{MONTH})\s+(?P<day>{DAY}){ORDINAL}{LAST_DAY}(?![\w:%]|[.,]\d)"
         rf"(?:,?\s+(?P<year>{YEAR}))?", say_month_day),
    rule("1 May 2024", rf"(?<![\w.,:$£€-])(?:the\s+)?(?P<day>{DAY}){ORDINAL}{LAST_DAY}\s+(?:of\s+)?(?P<month>{MONTH})"
         rf"(?:,?\s+(?P<year>{YEAR}))?", say_day_month),
    rule("May 2024", rf"\b(?P<month>{MONTH}),?\s+(?P<year>{YEAR})", say_month_year),
    rule("on 2/14", r"\b((?:on|by|until|till|since|due|before|after)\s)(?!1/[234]|[23]/[34])"
         rf"(1[0-2]|0?[1-9])/({DAY})(?![\d/])", say_month_slash_day),
    rule("Sept.", r"\b(Jan|Feb|Aug|Sept?|Oct|Nov|Dec)\.", lambda match: SHORT_MONTHS[match[1]] + stop_after(match)),
)
TIMES = (       # a range of times is parted before its ends are read
    rule("9-11am", r"(?<![\w:.-])(\d{1,2}(?::\d\d)?)\s?[-–]\s?(?=\d{1,2}(?::\d\d)?\s?[AaPp]\.?[Mm]\b)", r"\1 to "),
    rule("9am-5pm", r"(?<=[\d][AaPp][Mm])\s?[-–]\s?(?=\d)", " to "),
    rule("10:30-11:30", r"(?<=\d:\d\d)\s?[-–]\s?(?=\d{1,2}:\d\d)", " to "),
    rule("10:30 pm", rf"(?<![\w:.])(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?![\d:])"
         rf"(?:{HALF}|(?P<utc>Z\b))?", say_time),
    rule("10.30pm", rf"(?<![\w:.])(?P<hour>1[0-2]|0?[1-9])\.(?P<minute>[0-5]\d)(?P<second>(?!))?{HALF}(?P<utc>(?!))?",
         say_time),
    rule("5pm", rf"(?<![\w:.,$£€])(?P<hour>1[0-2]|0?[1-9]){HALF}", say_hour),
    rule("26:11", r"(?<![\w:.])(\d{2,3}):([0-5]\d)(?![\d:])", say_minutes),
    rule("2:1", r"(?<=\d):(?=\d)", " to "),
)
RULES: tuple[Rule, ...] = (*DATES, *TIMES)
