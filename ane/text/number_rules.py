"""Rules for digits other than dates and times: money, units, telephone numbers, ranges, fractions, years."""

import re

from ane.text import number_words
from ane.text.lexicon import (
    CURRENCIES,
    DOLLARS,
    IRREGULAR_PLURALS,
    MAGNITUDES,
    PER_WORDS,
    SPACED_UNITS,
    UNITS,
    UNSPACED_UNITS,
)
from ane.text.rule import NUMBER, TextRule, any_of, rule

SIGN = "[$£€¥₹₩₽]"
COMMA_DECIMAL = r"(?:\d{1,3}(?:\.\d{3})+|\d+),\d\d(?![\d,])"       # 1.299,50 €: decimal comma
CODE = any_of(code for code in CURRENCIES if code.isalpha())
MAGNITUDE = (rf"(?:(?:\s?(?P<magnitude>{any_of(word for word in MAGNITUDES if len(word) > 1)})"
             r"|(?P<letter>[kKmMbBtT]))\b)?")
PER_UNIT = rf"(?:\s?/\s?(?P<per>{any_of([*PER_WORDS, *UNITS])})(?P<of>[²³]|(?<=[ms])[23])?(?![A-Za-z0-9]))?"
POWERS = {"": "", "²": "square ", "2": "square ", "³": "cubic ", "3": "cubic "}
ARTICLE = r"(?P<article>\b[Aa]n?\s+)?"      # "a $5 note" is a "five dollar note"
YEAR_CUE = r"(?:in|since|by|until|till|of|year|during|before|after|around|circa|from|early|late|mid)"
NOT_PLURAL = r"(?:as|is|was|has|its|this|us|thus|his|yes|always|perhaps|plus|versus|across|besides|towards)"


# --- telephone numbers and versions ----------------------------------------------------------------------------------

def expand_digit_groups(match: re.Match) -> str:
    """+44 20 7946 → "plus four four, two zero, seven nine four six"."""
    plus = "plus " if match[0].startswith("+") else ""
    return plus + number_words.digit_groups(match[0])


def expand_version(match: re.Match) -> str:
    """2.0.1 → "two point zero point one". Four groups are an IP address, read digit by digit."""
    parts = match[0].split(".")
    if re.fullmatch(r"\d{1,3}(\.\d{3}){2}", match[0]):      # 1.234.567: points as thousands separators
        return number_words.number(match[0].replace(".", ""))
    if len(parts) == 4:
        return " dot ".join(map(number_words.digits, parts))
    return " point ".join(map(number_words.number, parts))


# --- money -----------------------------------------------------------------------------------------------------------

def expand_money(match: re.Match) -> str:
    """£1.50 → "one pound and fifty pence", €3 million → "three million euros", $2/h → "two dollars per hour"."""
    groups = match.groupdict()
    one, many, hundredth, hundredths = CURRENCIES[groups["sign"]]
    if groups.get("country"):
        one, many = f"{DOLLARS[groups['country']]} {one}", f"{DOLLARS[groups['country']]} {many}"
    amount = groups["amount"]
    if re.fullmatch(COMMA_DECIMAL, amount):
        amount = amount.replace(".", "").replace(",", ".")
    whole, _, decimals = amount.replace(",", "").partition(".")
    magnitude = MAGNITUDES.get(groups.get("magnitude") or groups.get("letter") or "")
    article = groups.get("article") or ""
    if article or match.string.startswith("-", match.end()):
        many = one
    if magnitude:
        words = f"{number_words.number(amount)} {magnitude} {many}"
    elif len(decimals) == 2 and hundredth:
        words = amount_with_cents(whole, decimals, (one, many, hundredth, hundredths))
    else:
        words = f"{number_words.number(amount)} {one if whole == '1' and not decimals else many}"
    return article + words + expand_per_unit(groups)


def expand_per_unit(groups: dict[str, str | None]) -> str:
    """"/km" → " per kilometer", "/s²" → " per second squared", "/cm³" → " per cubic centimeter"."""
    per = groups.get("per")
    if not per:
        return ""
    unit, power = PER_WORDS.get(per) or UNITS[per], groups["of"]
    return f" per {unit} squared" if power and unit == "second" else f" per {POWERS[power or '']}{unit}"


def amount_with_cents(whole: str, decimals: str, currency: tuple[str, str, str, str]) -> str:
    """"1", "50" and the pound's row of ``CURRENCIES`` → "one pound and fifty pence"."""
    one, many, hundredth, hundredths = currency
    amounts = []
    if whole.strip("0"):
        amounts.append(f"{number_words.number(whole)} {one if whole == '1' else many}")
    if decimals != "00":
        amounts.append(f"{number_words.cardinal(int(decimals))} {hundredth if decimals == '01' else hundredths}")
    return " and ".join(amounts) or f"zero {many}"


# --- quantities with a unit ------------------------------------------------------------------------------------------

def plural(unit: str) -> str:
    """"mile per hour" → "miles per hour", "square foot" → "square feet", "degree celsius" → "degrees celsius"."""
    head, rest = re.fullmatch(r"(.*?)( per .*| of .*| celsius| fahrenheit|)", unit).groups()
    for one, many in IRREGULAR_PLURALS.items():
        if head.endswith(one):
            return f"{head.removesuffix(one)}{many}{rest}"
    return f"{head}s{rest}"


def expand_quantity(match: re.Match) -> str:
    """5km → "five kilometers", 1 °C → "one degree celsius", 20 m² → "twenty square meters", 5-km → "five kilometer"."""
    sign, gap, amount = match["unit"], match["gap"], match["amount"]
    if (gap and sign in UNSPACED_UNITS) or (not gap and len(amount) == 1 and sign in SPACED_UNITS):
        return match[0]
    unit = POWERS[match["power"] or ""] + UNITS[sign]
    single = amount == "1" or gap == "-" or match["article"]
    words = f"{match['article'] or ''}{number_words.number(amount)} {unit if single else plural(unit)}"
    return words + expand_per_unit(match.groupdict())


def expand_height(match: re.Match) -> str:
    """5'10" → "five feet ten inches"."""
    return f"{number_words.number(match[1])} feet {number_words.number(match[2])} inch{'' if match[2] == '1' else 'es'}"


# --- fractions, ordinals, years and other numbers --------------------------------------------------------------------


def expand_ordinal(match: re.Match) -> str:
    return number_words.ordinal(int(match[1].replace(",", "")))


def expand_millions(match: re.Match) -> str:
    """5M → "five million". After a word such as "seat" the letter is part of a label, and nothing changes."""
    if match[1]:
        return match[0]
    return f"{number_words.number(match[2])} {MAGNITUDES[match[3]]}"


def expand_fraction(match: re.Match) -> str:
    """3/4 → "three quarters", 1 1/2 → "one and a half", 2 1/4 tsp → "two and a quarter teaspoons"."""
    whole, unit = match[1], match[4]
    words = number_words.fraction(int(match[2]), int(match[3]))
    if whole:
        words = f"{number_words.number(whole)} and {re.sub('^one ', 'a ', words)}"
    if unit:
        words += f" {plural(UNITS[unit]) if whole else UNITS[unit]}"
    return words


def expand_power(match: re.Match) -> str:
    """x^2 → "x squared", 10^-6 → "10 to the power of minus six"."""
    exponent, end = match[1].lstrip("-"), " " * match.string[match.end():match.end() + 1].isalpha()
    if exponent == "n":
        return f" to the power of {match[1].replace('-', 'minus ')}{end}"
    if match[1] in ("2", "3"):
        return (" squared" if exponent == "2" else " cubed") + end
    return f" to the power of {'minus ' if match[1] != exponent else ''}{number_words.number(exponent)}{end}"


def expand_year(match: re.Match) -> str:
    """1984 → "nineteen eighty-four". Before 1900 and in front of a plural it is a count: 1234 apples."""
    n = int(match["n"])
    is_count = match["plural"] is not None and n < 1900 and not match["cue"]
    return (match["cue"] or "") + (number_words.cardinal(n) if is_count else number_words.year(n))


COMPARISONS = {"<": "less than", ">": "greater than", "<=": "at most", "≤": "at most", ">=": "at least",
               "≥": "at least"}
LABELLED = r"(?:seat|row|room|apt|apartment|unit|gate|flat|suite|section|exhibit|platform|building|block|part|type)"
BEFORE_DECADES = ("[Tt]he", "his", "her", "their", "my", "your", "early", "late", "and", "of")

COMPARISON_RULES = (
    rule("3 < 4", r"(?<=\w) ?(<=|>=|<|>|≤|≥) ?(?=[\w-])", lambda match: f" is {COMPARISONS[match[1]]} "),
    rule("< 4", r"(<=|>=|<|>|≤|≥)\s*(?=\d)", lambda match: f" {COMPARISONS[match[1]]} "),
)
PHONE_RULES = (
    rule("call 911", r"(?i)\b(call|dial|phone|text)(ing|ed|s)?\s+(\d{3})\b(?![-.,]?\d)",
         lambda match: match[0][:-3] + number_words.digits(match[3])),
    rule("+1 (555) 123-4567", r"(?<![\w+])\+(?=(?:[\s().-]{0,3}\d){7,15}(?!\d))\d{1,3}(?:[\s.-]?\(?\d{1,4}\)?){2,6}"
         r"(?!\d)", expand_digit_groups),
    rule("555-123-4567", r"(?<![\w.-])(?:1[-.\s])?(?:\(\d{3}\)\s?|\d{3}[-.\s])\d{3}[-.\s]\d{4}(?![\w-])",
         expand_digit_groups),
    rule("1-800-FLOWERS", r"(?<![\w-])1-8\d\d-(?=[A-Z])", lambda match: number_words.digit_groups(match[0]) + ", "),
    rule("555-1234", r"(?<![\w.-])\d{3}-\d{4}(?![\w-])", expand_digit_groups),
    rule("(020) 7946 0958", r"(?<![\w.-])\(?0\d{2,4}\)?[\s-]\d{3,4}[\s-]?\d{3,4}(?![\w-])",
         expand_digit_groups),
    rule("06 12 34 56 78", r"(?<![\w.-])0\d(?:[ .]\d\d){4}(?!\w)", expand_digit_groups),
    rule("4111 1111 1111 1111", r"(?<![\w.-])\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?!\w)", expand_digit_groups),
    rule("978-3-16-148410-0", r"(?<![\w.-])(?=(?:\d-?){9,20}(?![\w-]))\d+-\d+-\d[\d-]*", expand_digit_groups),
    rule("CA 90210", r"\b([A-Z]{2}) (\d{5}(?:-\d{4})?)(?![\d,.]\d|\w)",
         lambda match: f"{match[1]} {number_words.digit_groups(match[2])}"),
    rule("v2.0", r"\b[vV](?:er)?\.?\s?(?=\d+\.\d)", "version "),
    rule("2.0.1 and 192.168.0.1", r"(?<![\w.])\d+(?:\.\d+){2,}(?!\w)", expand_version),
)
SIGN_RULES = (      # these expand signs between and before numbers; later rules expand the numbers
    rule("10 000", r"(?<![\w.,-])\d{1,3}(?:(?: \d{3}){2,}| 000)(?![\w-])",
         lambda match: match[0].replace(" ", "")),
    rule("24/7", r"(?<![\w/])(?:24/7|9/11)(?![\w/])", lambda match: match[0].replace("/", " ")),
    rule("2^10", r"(?:\^|(?<=\d)\*\*) ?(-?(?:\d+|n\b))", expand_power),
    rule("350°F/175°C", r"(?<=\d)(°?[A-Za-z]{1,4})/(?=\d)", r"\1, "),
    rule("10/2=5", r"(?<=\d)\s?/\s?(?=\d+\s*=)", " over "),
    rule("5-3=2", r"(?<=\d)\s?-\s?(?=\d+\s*=)", " minus "),
    rule("50-50", r"(?<![\w-])(\d+)[-–]\1(?![\w-])", r"\1 \1"),
    rule("$5-$10", rf"({SIGN})({NUMBER})\s?[-–]\s?\1?(?=\.?\d)(?!\d+-\d)", r"\2 to \1"),
    rule("10-20", rf"(?<![\w/-])({NUMBER}%?)\s?[-–]\s?(?={SIGN}?\.?\d)(?!\d+-\d|\d/\d)", r"\1 to "),
    rule("~5", rf"[~≈]\s?(?={SIGN}?\.?\d)", "about "),
    rule("6 ft. tall", r"(?<=\d)\s?(ft|oz|lbs?|in|hrs?|mins?|secs?|yds?|mi|yrs?|tsp|tbsp|gal|qt)\."
         r"(?=\s+[a-z\d(]|[,;])", r"\1"),
    rule("5 ft 10 in", r"(?<![\w.,])(\d) ?ft\.? (1[01]|\d) ?in\b", expand_height),
    rule("5'10\"", r"(?<![\w.,])(\d)'\s?(1[01]|\d)(?:\"|''|(?![\w']))", expand_height),
    rule("6' tall", r"(?<=\d)(['\"])(?=\s(?:tall|high|long|wide|deep)\b)",        # a later rule expands the unit
         lambda match: "ft" if match[1] == "'" else "in"),
    rule("-5", rf"(?<![\w)%])-(?={SIGN}?\.?\d)", "minus "),
    rule("+5", rf"(?<![\w)])\+(?={SIGN}?\.?\d)", "plus "),
)
MONEY_RULES = (
    rule("$5", rf"{ARTICLE}(?:(?<![A-Za-z])(?P<country>{any_of(DOLLARS)}))?(?P<sign>{SIGN})\s?"
         rf"(?P<amount>{COMMA_DECIMAL}|{NUMBER}){MAGNITUDE}(?:\s{CODE}\b)?{PER_UNIT}", expand_money),
    rule("5 €", rf"{ARTICLE}(?<![\w.,])(?P<amount>{COMMA_DECIMAL}|{NUMBER}){MAGNITUDE}\s?"
         rf"(?P<sign>[£€¥₹₩₽¢]|{CODE}\b)(?!\d){PER_UNIT}", expand_money),
    rule("USD 5", rf"\b(?P<sign>{CODE})\s?(?P<amount>{NUMBER}){MAGNITUDE}", expand_money),
    rule("50p", r"(?<![\w.,])(\d{1,2})p\b",
         lambda match: amount_with_cents("0", match[1].zfill(2), CURRENCIES["£"])),
    rule("5M", rf"(\b(?i:{LABELLED})\.?\s+)?(?<![\w.,#])({NUMBER})(M|B|[mbt]n)\b(?!\s+[A-Z])", expand_millions),
)
UNIT_RULES = (
    rule("4x4", r"(?<=\d)(\s?(?:mm|cm|m|km|ft|px)?)\s?(?<!\b0)[xX×]\s?(?=\d)"
         r"(?!\d+\s*=|10 (?:squared|cubed|to the power))", r"\1 by "),
    rule("10x", r"(?<=\d)[xX]\b", " times"),
    rule("5 km", rf"{ARTICLE}(?<![\w.,])(?P<amount>{NUMBER})(?P<gap>\s?|-)(?P<unit>{any_of(UNITS)})"
         rf"(?P<power>[²³]|(?<=m)[23])?{PER_UNIT}(?![A-Za-z0-9°²³])", expand_quantity),
)
FRACTION_RULES = (
    rule("4.5/5", r"(?<![\w.,/])(\d+\.\d+)\s?/\s?(5|10|100)(?![\d/])", r"\1 out of \2"),
    rule("1 1/2", rf"(?<![\w.,/])(?:(\d{{1,3}})(?:\s+|\s?-))?(\d{{1,3}})/(\d{{1,3}})"
         rf"(?:\s?({any_of(UNITS.keys() - SPACED_UNITS - UNSPACED_UNITS)}))?(?![\w/])", expand_fraction),
)
COUNT_RULES = (
    rule("21st", r"(?<![\w.])(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?i:st|nd|rd|th)\b", expand_ordinal),
    rule("1990s", r"(?<!\w)'?([12]\d\d0)'?s\b", lambda match: number_words.decade(int(match[1]))),
    rule("the 90s", rf"(?:(?<!\w)'|(?<=[Mm]id-)|{'|'.join(rf'(?<={word} )' for word in BEFORE_DECADES)})([2-9]0)'?s\b",
         lambda match: number_words.decade(int(match[1]))),
    rule("'99", r"(?<!\w)'(\d\d)(?![\w'])",
         lambda match: ("oh " if match[1].startswith("0") else "") + number_words.cardinal(int(match[1]))),
)
RULES: tuple[TextRule, ...] = (
    *COMPARISON_RULES, *PHONE_RULES, *SIGN_RULES, *MONEY_RULES, *COUNT_RULES, *FRACTION_RULES, *UNIT_RULES)

# Applied after all other rules have expanded their digits.
REMAINING_NUMBERS: tuple[TextRule, ...] = (
    rule("1984", rf"(?P<cue>\b(?i:{YEAR_CUE})\s+)?(?<![\w.,])(?P<n>1[1-9]\d\d|20\d\d|(?(cue)10\d\d|(?!)))"
         r"(?![\w%]|[.,]\d)"
         rf"(?P<plural>(?=\s+(?!{NOT_PLURAL}\b)[a-z]+[a-rt-z]s\b))?", expand_year),
    rule("1,234.5", NUMBER, lambda match: number_words.number(match[0])),
)
