"""Define the rules for dates and times of day."""

import re

from ane.text import number_words
from ane.text.lexicon import BIBLE_ABBREVIATIONS, BOOKS_OF_THE_BIBLE, DAYS, MONTHS, SURE_WITH_VERSE
from ane.text.number_rules import parts_in_words
from ane.text.rule import TextRule, any_of, follows, in_context, period_after, rule, with_digits

SHORT_MONTHS = {month[:3].capitalize(): month for month in MONTHS} | {"Sept": "september"}
# Names of months. "may" and "march" in lower case are verbs.
MONTH = (
    rf"(?=[JFMASONDjfmasond][aepucoAEPUCO])(?:(?i:{any_of(m for m in MONTHS if m not in ('may', 'march'))})"
    rf"|May|MAY|March|MARCH|(?i:{any_of(SHORT_MONTHS.keys() - {'May'})})\b\.?)(?![A-Za-z])"
)
SHORT_DAY = any_of(form for day in DAYS for form in (day.capitalize(), day.upper()))
DAY = r"(?:0?[1-9]|[12]\d|3[01])"
ORDINAL = r"(?:st|nd|rd|th)?"
LAST_DAY = rf"(?:\s?(?:[-–]|to)\s?(?P<last>{DAY}){ORDINAL}(?!\d))?"
BOOKS = BOOKS_OF_THE_BIBLE.union(BIBLE_ABBREVIATIONS)
BOOK_BEFORE = re.compile(r"\b([A-Z][a-z]+)\.?\s+\Z")
MONTH_AND_DAY = rf"(1[0-2]|0?[1-9])/(?!(?<=\b1/)[234]\b|(?<=\b[23]/)[34]\b)({DAY})(?![\d/]|\sof\b)"
BEFORE_DATE = re.compile(
    rf"\b(?:on|by|until|till|since|due|dated|before|after|(?:email|letter|memo|message|invoice|note|call|report) of"
    rf"|(?i:{any_of(DAYS.values())}),?)\s\Z"
)
YEAR = r"[12]\d{3}(?![\d:%]|[.,]\d)"
AM_PM = r"\s?(?P<am_pm>[AaPp])(?:\.\s?[Mm]\.|[Mm]\b)"  # am, PM, a.m.


def month_name(text: str) -> str:
    return next(month for month in MONTHS if month.startswith(text[:3].lower()))


def month_day_words(month: str | int, day: str | int, year: str | None = None) -> str:
    words = f"{MONTHS[int(month) - 1]} {number_words.ordinal(int(day))}"
    return f"{words}, {number_words.year(int(year))}" if year else words


def expand_month_day(match: re.Match) -> str:
    last = f" to {number_words.ordinal(int(match['last']))}" if match["last"] else ""
    year = f", {number_words.year(int(match['year']))}" if match["year"] else ""
    return f"{month_name(match['month'])} {number_words.ordinal(int(match['day']))}{last}{year}"


def expand_day_month(match: re.Match) -> str:
    last = f" to the {number_words.ordinal(int(match['last']))}" if match["last"] else ""
    year = f", {number_words.year(int(match['year']))}" if match["year"] else ""
    day = number_words.ordinal(int(match["day"]))
    return f"the {day}{last} of {month_name(match['month'])}{year}{period_after(match)}"


def expand_days(match: re.Match) -> str:
    """Read Mon–Fri as "monday to friday". "Sun and Sat" may be names, and are days only near a word such as "open"."""
    names = {name.lower() for name in re.findall(rf"{SHORT_DAY}\b", match[0])}
    unsure = not re.search("[-–/&]", match[0]) and {"sun", "sat"} & names and not names - {"mon", "wed", "sun", "sat"}
    if unsure and not (
        re.fullmatch(r"Sat\.? and Sun\.?", match[0])
        or follows(match, DAYS_BEFORE)
        or DAYS_AFTER.match(match.string, match.end())
    ):
        return match[0]
    days = re.sub(rf"({SHORT_DAY})\b\.?", lambda day: DAYS[day[1].lower()], match[0])
    return re.sub(r"\s?[-–]\s?", " to ", days).replace("/", " ") + period_after(match)


DAYS_BEFORE = re.compile(r"\b(?i:on|every|next|until|till|closed|open|shut|from|between|daily|work)\s\Z")
HOUR = r"\d{1,2}(?:[:.][0-5]\d)?"
DATE_AFTER = rf",?\s+(?:{MONTH}|\d{{1,2}}{ORDINAL}\s+{MONTH}|{MONTH_AND_DAY})"
# Times after a day: " 10am", ", 9:30", " 10–2.", ": closed". The numbers of "Sat 10–15 minutes" are not hours.
HOURS_AFTER = (
    rf"[:,]?\s(?:{HOUR}(?:\s?[-–]\s?{HOUR})?\s?(?:[AaPp]\.?[Mm]\b)|\d{{1,2}}:\d\d\b|noon\b|midnight\b"
    rf"|{HOUR}(?:\s?[-–]\s?| to ){HOUR}"
    r"(?:\s?[AaPp]\.?[Mm]\b|(?=[.,;:!?)]|\s*\n|\s*\Z|\s(?:and|or|&|only|except|[A-Z]))))"
    r"|:\s(?i:closed|open)\b"
)
DAYS_AFTER = re.compile(rf"{HOURS_AFTER}|{DATE_AFTER}|\s(?:at|from)\s(?:\d|noon\b)")
# Where a short name is a day. "Sat" may also be a verb, and "on Mon Repos" is a place.
DAY_CASES = (
    ("", DATE_AFTER),
    ("", HOURS_AFTER),
    ("", r" \d{1,2}(?:st|nd|rd|th)\b"),
    (r"\b(?i:closed|shut)\s", r"(?<=\.)"),
    (
        r"\b(?:ON|BY|EVERY|NEXT|UNTIL|TILL)\s",
        r"(?:(?<=FRI)|(?<=TUE)|(?<=WED)|(?<=THU)|(?<=FRI\.)|(?<=TUE\.)|(?<=WED\.)|(?<=THU\.))",
    ),
    ("", r"(?<=(?:Tue|Thu|Wed|Fri)\.)|(?<=(?:Tues|Thur|Weds)\.)|(?<=Thurs\.)"),
    (r"\b(?i:on|every|next|until|till)\s", r"\.?(?<!Sun)(?<!Sun\.)(?<![A-Z])(?<![A-Z]\.)(?! (?!I\b)[A-Z])"),
)


def expand_numeric_date(match: re.Match) -> str:
    """Read 12/05/2024 as "december fifth, twenty twenty-four".

    The day comes first if the separator is a dot, or if the month would be above 12.
    """
    first, second, year = int(match[1]), int(match[3]), match[4]
    day, month = (first, second) if match[2] == "." or first > 12 else (second, first)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    if len(year) == 2:
        year = ("20" if int(year) < 70 else "19") + year
    return month_day_words(month, day, year)


def expand_time(match: re.Match) -> str:
    """Read 10:30 pm as "ten thirty p m", 14:00 as "fourteen hundred", 1:00:05 as "one hour and five seconds"."""
    hour, minute, second, am_pm = int(match["hour"]), int(match["minute"]), match["second"], match["am_pm"]
    words = number_words.clock(hour, minute, twelve_hour=bool(am_pm))
    if second and int(second):
        if not minute and not am_pm:
            words = f"{number_words.cardinal(hour)} hour{'' if hour == 1 else 's'}"
        words += f" and {number_words.cardinal(int(second))} second{'' if int(second) == 1 else 's'}"
    return words + (expand_am_pm(match) if am_pm else " u t c" if match["utc"] else "")


# Where 7.45 is a time.
TIME_CASES = (
    ("", r"(?<!\d)"),  # "a.m." or "pm" belongs to the match
    (
        r"(?:\A|[.!?\n] ?|\b(?i:at|by|until|till|before|after|around|about|past|or|come|there|here|back)\s)",
        r",? (?:sharp\b|at the (?:latest|earliest)(?=[.,;:!?)\n]|\s*\Z| (?:and|or|but|so|on|if|when)\b))",
    ),
    (
        r"(?<!rose )(?<!fell )(?<!dropped )(?<!stood )\b(?i:at|from|until|till|before|after|around|about|past)\s"
        r"|(?:\A|[.,;:!?\n]\s?|\b(?i:be|get|back|there|here|home|done|ready|out|up|off|it|me|us|come|arrive|finish|leave"
        r"|and|or|just|only)\s)(?i:by)\s",
        r" (?:in the (?:morning|afternoon|evening)\b(?! (?:session|trad))|at night|tonight|tomorrow|o'clock)\b",
    ),
    (r"\b[Tt]he\s", r" (?:train|bus|coach|flight|ferry|boat|service|(?:from|to) [A-Z])(?! (?:fare|ticket|pass))"),
    (
        r"\b(?:leav|depart|arriv)(?:e[ds]?|s|ed|ing)?(?: (?!at)\w+)? at\s",
        r"[.,;:!?)]|\s*\Z| (?:and|or|on|from|sharp|with|for|by)\b",
    ),
)


def expand_verse(match: re.Match) -> str:
    """Write Hebrews 11:1 as "Hebrews 11 1"."""
    book = follows(match, BOOK_BEFORE)
    return f"{match[1]} {match[2]}" if book and book[1] in BOOKS else match[0]


def expand_book(match: re.Match) -> str:
    """Write 1 Cor. 13:4 as "1 Corinthians 13:4". With neither a number nor a period, Tim and Dan are people."""
    number, book, period, verse = match.groups()
    known = number or period if verse else period and (number or book not in SURE_WITH_VERSE)
    return f"{number or ''}{BIBLE_ABBREVIATIONS[book]} " if known else match[0]


def expand_am_pm(match: re.Match) -> str:
    return (
        f" {match['am_pm'].lower()} m{period_after(match)}"
        + " " * match.string[match.end() : match.end() + 1].isalpha()
    )


def expand_minutes(match: re.Match) -> str:
    """Read 26:11 as "26 eleven". This must be minutes and seconds, because no day has an hour 26."""
    return f"{match[1]} {'oh ' if match[2].startswith('0') else ''}{number_words.cardinal(int(match[2]))}"


def no_zero(amount: str | None) -> str | None:
    return amount if amount and amount.strip("0.") else None


DATE_RULES = (
    rule(
        "Mon-Fri, Sat & Sun",
        rf"\b(?=[MTWFS][a-uA-U])(?:{SHORT_DAY}\.?(?:\s?[-–/&]\s?|,\s?(?:and |or |& )?|\s(?:and|or|to|through)\s))+"
        rf"{SHORT_DAY}\b\.?",
        expand_days,
    ),
    rule(
        "Jan.-Mar.",
        rf"\b(?=[JFMASOND])({any_of(SHORT_MONTHS)})\.?\s?[-–]\s?({any_of(SHORT_MONTHS)})\b(?!-|\.?\s?\d{{1,2}}\b)(\.?)",
        lambda match: f"{month_name(match[1])} to {month_name(match[2])}{period_after(match)}",
    ),
    rule(
        "Mon., 5 May, Sat 10-2, on Tue",
        rf"\b(?=[MTWFS][a-uA-U])({SHORT_DAY})\b(\.?)",
        in_context(DAY_CASES, lambda match: DAYS[match[1].lower()] + period_after(match)),
    ),
    *with_digits(
        rule(
            "Jan 1 - Mar 3",
            rf"\b({MONTH}\s+{DAY}{ORDINAL}(?:,?\s+{YEAR})?)\s?[-–]\s?(?={MONTH}\s+{DAY}(?!\d))",
            r"\1 to ",
        ),
        rule(
            "1 Jan 2000–31 Dec 2010",
            rf"(?<![\w.,:-])({DAY}{ORDINAL}\s+{MONTH}(?:\s+{YEAR})?)\s?[-–]\s?(?={DAY}{ORDINAL}\s+{MONTH})",
            r"\1 to ",
        ),
        rule(
            "2024-05-01",
            rf"(?<![\w./-])([12]\d{{3}})([-/.])(0?[1-9]|1[0-2])\2({DAY})(?:(T)(?=\d)|(?!\d|\2\d))",
            lambda match: month_day_words(match[3], match[4], match[1]) + (", " if match[5] else ""),
        ),
        rule(
            "12/05/2024",
            r"(?<![\w./-])(\d{1,2})([-/.])(\d{1,2})\2((?:1[5-9]|20)\d\d|(?<=/)\d\d)(?!\d|\2\d)",
            expand_numeric_date,
        ),
        rule(
            "2024-05",
            r"(?<![\w./-])((?:19|20)\d\d)-(0[1-9])(?![\d-])",
            lambda match: f"{MONTHS[int(match[2]) - 1]} {number_words.year(int(match[1]))}",
        ),
        rule(
            "1-May-2024, May-1-2024",
            rf"\b(?:(?P<day>{DAY})-(?P<month>{MONTH})|(?P<other>{MONTH})-(?P<number>{DAY}))"
            rf"(?:-(?P<year>{YEAR}))?(?![\w-])",
            lambda match: month_day_words(
                MONTHS.index(month_name(match["month"] or match["other"])) + 1,
                match["day"] or match["number"],
                match["year"],
            ),
        ),
        rule(
            "may 1, 2024",
            rf"\b(?P<month>ma(?:y|rch))\s+(?P<day>{DAY}){ORDINAL}(?P<last>(?!))?,?\s+(?P<year>{YEAR})",
            expand_month_day,
        ),
        rule(
            "1 may 2024",
            rf"(?<![\w.,:$£€-])(?:the\s+)?(?P<day>{DAY}){ORDINAL}(?P<last>(?!))?\s+(?:of\s+)?"
            rf"(?P<month>may|march),?\s+(?P<year>{YEAR})",
            expand_day_month,
        ),
        rule(
            "May 1st, 2024",
            rf"\b(?P<month>{MONTH})\s+(?P<day>{DAY}){ORDINAL}{LAST_DAY}(?![\w:%]|[.,]\d)"
            rf"(?:,?\s+(?P<year>{YEAR}))?",
            expand_month_day,
        ),
        rule(
            "1 May 2024",
            rf"(?<![\w.,:$£€-])(?:the\s+)?(?P<day>{DAY}){ORDINAL}{LAST_DAY}\s+(?:of\s+)?(?P<month>{MONTH})"
            rf"(?:,?\s+(?P<year>{YEAR}))?",
            expand_day_month,
        ),
        rule(
            "May 2024",
            rf"\b(?P<month>{MONTH}),?\s+(?P<year>{YEAR})",
            lambda match: f"{month_name(match['month'])} {number_words.year(int(match['year']))}",
        ),
        rule(
            "12/23–1/2",
            r"(?<![\w/])(1[0-2]|0?[1-9])/(1[3-9]|2\d|3[01])\s?[-–]\s?(1[0-2]|0?[1-9])/(?!\2\b)([12]?\d|3[01])\b"
            r"(?![/\w\"]| ?(?:in|inch|of|cup|mile)\b)",
            lambda match: f"{month_day_words(match[1], match[2])} to {month_day_words(match[3], match[4])}",
        ),
        rule(
            "on 2/14, Saturday 4/12",
            MONTH_AND_DAY,
            lambda match: month_day_words(match[1], match[2]) if follows(match, BEFORE_DATE) else match[0],
        ),
    ),
    rule("Jan '24", rf"\b({any_of(SHORT_MONTHS)})\b\.?(?= '\d\d\b)", lambda match: month_name(match[1])),
    rule(
        "Sept.",
        r"\b(Jan|Feb|Aug|Sept?|Oct|Nov|Dec|JAN|FEB|AUG|SEPT?|OCT|NOV|DEC)\.",
        lambda match: month_name(match[1]) + period_after(match),
    ),
    *with_digits(
        rule("Q1-Q3", r"(?<=\bQ[1-4])\s?[-–]\s?(?=Q?[1-4]\b)", " to "),
        rule("Q1'24", r"(?<=\b[QH][1-4])'(?=\d\d\b)", " '"),
        rule(
            "06/2024",
            r"(?<![\w./-])(0[1-9]|1[0-2])/((?:19|20)\d\d)(?![\d/])",
            lambda match: f"{MONTHS[int(match[1]) - 1]} {number_words.year(int(match[2]))}",
        ),
        rule(
            "exp. 12/26",
            r"(?<![\w./-])(0[1-9]|1[0-2])/(\d\d)(?![\d/])",
            in_context(
                ((r"\b(?i:exp(?:\.|ires?|iry|iration)?(?: date)?|valid (?:thru|through|until)):? ", ""),),
                lambda match: f"{MONTHS[int(match[1]) - 1]} {number_words.year(2000 + int(match[2]))}",
            ),
        ),
        rule("3rd ed.", r"(?<=\d(?:st|nd|rd|th) )ed\.(?!\w)", lambda match: f"edition{period_after(match)}"),
        rule(
            "2Q22, 1H24",
            r"(?<!\w)([1-4])([QH])\s?'?(20)?(\d\d)\b",
            lambda match: (
                f"{number_words.ordinal(int(match[1]))} {'quarter' if match[2] == 'Q' else 'half'} of "
                f"{number_words.year(2000 + int(match[4]))}"
            ),
        ),
        rule(
            "19th c.",
            r"[cC](?:\.(?<=\d(?:st|nd|rd|th)[ -]..)|ent\.(?<=\d(?:st|nd|rd|th)[ -].{5}))( (?=[AB]\.?[CD]))?",
            lambda match: f"century{match[1] or period_after(match)}",
        ),
        rule(
            "FY24", r"\bFY\s?'?(?:20)?(\d\d)\b", lambda match: f"fiscal year {number_words.year(2000 + int(match[1]))}"
        ),
    ),
)
TIME_RULES = (  # the rules for ranges come first, and replace only the dash
    *with_digits(
        rule(
            "dep. London 08:05",
            r"\b([dD]ep|[aA]rr)\.(?= (?:[A-Z][\w']* ){0,3}\d{1,2}[:.][0-5]\d\b)",
            lambda match: "departs" if match[1].endswith("p") else "arrives",
        ),
        rule("9-11am", r"(?<![\w:.-])(\d{1,2}(?::\d\d)?)\s?[-–]\s?(?=\d{1,2}(?::\d\d)?\s?[AaPp]\.?[Mm]\b)", r"\1 to "),
    ),
    rule(
        "9am-5pm",
        r"[-–](?:(?<=[AaPp][Mm].)|(?<=[AaPp][Mm] .)|(?<=[AaPp]\.[Mm]\..)|(?<=[AaPp]\.[Mm]\. .)"
        r"|(?<=\bnoon.)|(?<=\bmidnight.)|(?<=\d.)(?=midnight\b|noon\b))\s?"
        r"(?=\d|noon\b|midnight\b)",
        " to ",
    ),
    *with_digits(
        rule(
            "3:59.4, 1:02:45.7, a ratio of 1:10.5",
            r"(?<![\w:.])(?:(\d{1,2}):)?(\d{1,2}):([0-5]\d\.\d{1,3})(?![\d:%]|\.\d)",
            in_context(
                (
                    (
                        r"(?<!ratio of )(?<!ratio is )(?<!scale of )(?<!scale is )",
                        r"(?! (?:scale|ratio|gradient|dilution)\b)",
                    ),
                ),
                lambda match: " ".join(parts_in_words(map(no_zero, match.groups()), ("hour", "minute", "second"))),
                lambda match: match[0].replace(":", " to "),
            ),
        ),
        rule("1:25,000", r"(?<![\w:.])1:(?=\d{1,3},\d{3}|\d{3,}(?!\d*:))", "1 to "),
        rule(
            "1 Cor. 13:4",
            rf"(?<![\w.,:])([123]\s+)?({any_of(BIBLE_ABBREVIATIONS)})\b(\.?)\s+"
            r"(?=\d{1,3}(?:(:\d{1,3}(?![\d:]|\s?[AaPp]\.?[Mm]))|(?=[.,;)\]–-]|\s*$|\s+and\b))(?!\w|[:,]\d))",
            expand_book,
        ),
        rule("Hebrews 11:1", r"(?<![\w:.])(\d{1,3}):(\d{1,3})(?![\d:]|\s?[AaPp]\.?[Mm])", expand_verse),
        rule("10:30-11:30", r"(?<=\d:\d\d)\s?[-–]\s?(?=\d{1,2}:\d\d)", " to "),
        rule(
            "10:30 pm",
            rf"(?<![\w:.])(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?![\d:])"
            rf"(?:{AM_PM}|(?P<utc>Z\b))?",
            expand_time,
        ),
        rule(
            "10.30pm, at 7.45 in the evening",
            rf"(?<![\w:.,$£€])(?P<hour>2[0-3]|1\d|0?[1-9])\.(?P<minute>[0-5]\d)(?P<second>(?!))?(?:{AM_PM}|(?![\d.%]\d|\w))"
            r"(?P<utc>(?!))?",
            in_context(TIME_CASES, expand_time),
        ),
        rule(
            "5pm",
            rf"(?<![\w:.$£€])(?<!\d,)(?P<hour>1[0-2]|0?[1-9]){AM_PM}",
            lambda match: number_words.cardinal(int(match["hour"])) + expand_am_pm(match),
        ),
        rule("26:11", r"(?<![\w:.])(\d{2,3}):([0-5]\d)(?![\d:])", expand_minutes),
        rule(
            "at 0835",
            r"0(?<![\w.,]0)([1-9])(?:00|([0-5]\d))\b(?![\w-]|[.,:]\d)",
            in_context(
                (
                    (
                        r"\b(?:at|by|until|from|since|before|after) ",
                        r"[.,;:!?)]|\s*\Z| (?:and|on|to|local|for|sharp|today|tomorrow)\b",
                    ),
                ),
                lambda match: f"oh {match[1]} {match[2] or 'hundred'}",
            ),
        ),
        rule(
            "1400 hrs",
            r"(?<![\w.,$£€-])(1[1-9]|2[1-3])00 ?(?:hrs?|hours)\b(?! (?:of|in|a|per|each|to)\b)",
            lambda match: f"{number_words.cardinal(int(match[1]))} hundred hours",
        ),
        rule(
            "0700 hrs",
            r"0(?<![\w.,]0)([1-9])(?:00|([0-5]\d)) ?(?:hrs?|hours)\b",
            lambda match: f"oh {match[1]} {match[2] or 'hundred'} hours",
        ),
        rule("2:1", r"(?<=\d):(?=\d)", " to "),
    ),
)
RULES: tuple[TextRule, ...] = (*DATE_RULES, *TIME_RULES)
