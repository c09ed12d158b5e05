"""Rules for money, measures, telephone numbers, ranges, fractions, ordinals, years, and at last all other numbers."""

import re

from ane.text import numbers
from ane.text.lexicon import ATTACHED_ONLY, CURRENCIES, DOLLARS, IRREGULAR_PLURALS, MULTIPLES, PER, SPACED_ONLY, UNITS
from ane.text.rules import NUMBER, Rule, any_of, rule

SIGN = "[$£€¥₹₩₽]"
COMMA_DECIMAL = r"(?:\d{1,3}(?:\.\d{3})+|\d+),\d\d(?![\d,])"       # 1.299,50 €, as in many languages
CODE = any_of(code for code in CURRENCIES if code.isalpha())
MULTIPLE = rf"(?:(?:\s?(?P<multiple>{any_of(word for word in MULTIPLES if len(word) > 1)})|(?P<letter>[kKmMbBtT]))\b)?"
PER_UNIT = rf"(?:\s?/\s?(?P<per>{any_of([*PER, *UNITS])})(?P<of>[²³]|(?<=[ms])[23])?(?![A-Za-z0-9]))?"
POWERS = {"": "", "²": "square ", "2": "square ", "³": "cubic ", "3": "cubic "}
ARTICLE = r"(?P<article>\b[Aa]n?\s+)?"      # "a $5 note" is a "five dollar note"
YEAR_CUE = r"(?:in|since|by|until|till|of|year|during|before|after|around|circa|from|early|late|mid)"
NO_PLURAL = r"(?:as|is|was|has|its|this|us|thus|his|yes|always|perhaps|plus|versus|across|besides|towards)"


# --- telephone numbers and the like ----------------------------------------------------------------------------------

def say_groups(match: re.Match) -> str:
    plus = "plus " if match[0].startswith("+") else ""
    return plus + numbers.digit_groups(match[0])


def say_version(match: re.Match) -> str:
    """Four groups are an IP address, read by its digits; others are versions. 2.0.1 → "two point zero point one"."""
    parts = match[0].split(".")
    if re.fullmatch(r"\d{1,3}(\.\d{3}){2}", match[0]):      # 1.234.567, as many languages write it
        return numbers.number(match[0].replace(".", ""))
    if len(parts) == 4:
        return " dot ".join(map(numbers.digits, parts))
    return " point ".join(map(numbers.number, parts))


# --- money -----------------------------------------------------------------------------------------------------------

def say_money(match: re.Match) -> str:
    """£1.50 → "one pound and fifty pence", €3 million → "three million euros", $2/h → "two dollars per hour"."""
    groups = match.groupdict()
    one, many, hundredth, hundredths = CURRENCIES[groups["sign"]]
    if groups.get("country"):
        one, many = f"{DOLLARS[groups['country']]} {one}", f"{DOLLARS[groups['country']]} {many}"
    amount = groups["amount"]
    if re.fullmatch(COMMA_DECIMAL, amount):
        amount = amount.replace(".", "").replace(",", ".")
    whole, _, decimals = amount.replace(",", "").partition(".")
    multiple = MULTIPLES.get(groups.get("multiple") or groups.get("letter") or "")
    article = groups.get("article") or ""
    if article or match.string.startswith("-", match.end()):
        many = one
    if multiple:
        said = f"{numbers.number(amount)} {multiple} {many}"
    elif len(decimals) == 2 and hundredth:
        said = say_cents(whole, decimals, (one, many, hundredth, hundredths))
    else:
        said = f"{numbers.number(amount)} {one if whole == '1' and not decimals else many}"
    return article + said + say_per(groups)


def say_per(groups: dict[str, str | None]) -> str:
    """"/km" → " per kilometer", "/s²" → " per second squared", "/cm³" → " per cubic centimeter"."""
    per = groups.get("per")
    if not per:
        return ""
    unit, power = PER.get(per) or UNITS[per], groups["of"]
    return f" per {unit} squared" if power and unit == "second" else f" per {POWERS[power or '']}{unit}"


def say_cents(whole: str, decimals: str, words: tuple[str, str, str, str]) -> str:
    one, many, hundredth, hundredths = words
    said = []
    if whole.strip("0"):
        said.append(f"{numbers.number(whole)} {one if whole == '1' else many}")
    if decimals != "00":
        said.append(f"{numbers.cardinal(int(decimals))} {hundredth if decimals == '01' else hundredths}")
    return " and ".join(said) or f"zero {many}"


# --- measures --------------------------------------------------------------------------------------------------------

def plural(unit: str) -> str:
    """"mile per hour" → "miles per hour", "square foot" → "square feet", "degree celsius" → "degrees celsius"."""
    head, rest = re.fullmatch(r"(.*?)( per .*| of .*| celsius| fahrenheit|)", unit).groups()
    for one, many in IRREGULAR_PLURALS.items():
        if head.endswith(one):
            return f"{head.removesuffix(one)}{many}{rest}"
    return f"{head}s{rest}"


def say_measure(match: re.Match) -> str:
    """5km → "five kilometers", 1 °C → "one degree celsius", 20 m² → "twenty square meters", 5-km → "five kilometer"."""
    sign, gap, amount = match["unit"], match["gap"], match["amount"]
    if (gap and sign in ATTACHED_ONLY) or (not gap and len(amount) == 1 and sign in SPACED_ONLY):
        return match[0]
    unit = POWERS[match["power"] or ""] + UNITS[sign]
    single = amount == "1" or gap == "-" or match["article"]
    said = f"{match['article'] or ''}{numbers.number(amount)} {unit if single else plural(unit)}"
    return said + say_per(match.groupdict())


def say_prime(match: re.Match) -> str:
    return "ft" if match[1] == "'" else "in"


def say_height(match: re.Match) -> str:
    """5'10" → "five feet ten inches"."""
    return f"{numbers.number(match[1])} feet {numbers.number(match[2])} inch{'' if match[2] == '1' else 'es'}"


# --- fractions, ordinals, years, the rest ----------------------------------------------------------------------------

def say_postcode(match: re.Match) -> str:
    return f"{match[1]} {numbers.digit_groups(match[2])}"


def say_ordinal(match: re.Match) -> str:
    return numbers.ordinal(int(match[1].replace(",", "")))


def say_short_year(match: re.Match) -> str:
    """'99 → "ninety-nine", '05 → "oh five"."""
    return ("oh " if match[1].startswith("0") else "") + numbers.cardinal(int(match[1]))


def say_millions(match: re.Match) -> str:
    if match[1]:
        return match[0]
    return f"{numbers.number(match[2])} {MULTIPLES[match[3]]}"


def say_pence(match: re.Match) -> str:
    return say_cents("0", match[1].zfill(2), CURRENCIES["£"])


def say_fraction(match: re.Match) -> str:
    """3/4 → "three quarters", 1 1/2 → "one and a half", 2 1/4 tsp → "two and a quarter teaspoons"."""
    whole, unit = match[1], match[4]
    said = numbers.fraction(int(match[2]), int(match[3]))
    if whole:
        said = f"{numbers.number(whole)} and {re.sub('^one ', 'a ', said)}"
    if unit:
        said += f" {plural(UNITS[unit]) if whole else UNITS[unit]}"
    return said


def say_power(match: re.Match) -> str:
    exponent = match[1].lstrip("-")
    if match[1] in ("2", "3"):
        return " squared" if exponent == "2" else " cubed"
    return f" to the power of {'minus ' if match[1] != exponent else ''}{numbers.number(exponent)}"


def say_year(match: re.Match) -> str:
    """Four digits from 1100 to 2099 are a year, or sound well as one ("fifteen hundred people")."""
    n = int(match["n"])
    counts_things = match["things"] is not None and n < 1900 and not match["cue"]
    return (match["cue"] or "") + (numbers.cardinal(n) if counts_things else numbers.year(n))


COMPARISONS = {"<": "less than", ">": "greater than", "<=": "at most", "≤": "at most", ">=": "at least",
               "≥": "at least"}
PLACES = r"(?:seat|row|room|apt|apartment|unit|gate|flat|suite|section|exhibit|platform|building|block|part|type)"
BEFORE_DECADES = ("[Tt]he", "his", "her", "their", "my", "your", "early", "late", "and", "of")

COMPARED = (
    rule("3 < 4", r"(?<=\w) ?(<=|>=|<|>|≤|≥) ?(?=[\w-])", lambda match: f" is {COMPARISONS[match[1]]} "),
    rule("< 4", r"(<=|>=|<|>|≤|≥)\s*(?=\d)", lambda match: f" {COMPARISONS[match[1]]} "),
)
PHONES = (
    rule("call 911", r"(?i)\b(call|dial|phone|text)(ing|ed|s)?\s+(\d{3})\b(?![-.,]?\d)",
         lambda match: match[0][:-3] + numbers.digits(match[3])),
    rule("+1 (555) 123-4567", r"(?<![\w+])\+(?=(?:[\s().-]{0,3}\d){7,15}(?!\d))\d{1,3}(?:[\s.-]?\(?\d{1,4}\)?){2,6}"
         r"(?!\d)", say_groups),
    rule("555-123-4567", r"(?<![\w.-])(?:1[-.\s])?(?:\(\d{3}\)\s?|\d{3}[-.\s])\d{3}[-.\s]\d{4}(?![\w-])", say_groups),
    rule("1-800-FLOWERS", r"(?<![\w-])1-8\d\d-(?=[A-Z])", lambda match: numbers.digit_groups(match[0]) + ", "),
    rule("555-1234", r"(?<![\w.-])\d{3}-\d{4}(?![\w-])", say_groups),
    rule("(020) 7946 0958", r"(?<![\w.-])\(?0\d{2,4}\)?[\s-]\d{3,4}[\s-]?\d{3,4}(?![\w-])", say_groups),
    rule("06 12 34 56 78", r"(?<![\w.-])0\d(?:[ .]\d\d){4}(?!\w)", say_groups),
    rule("4111 1111 1111 1111", r"(?<![\w.-])\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?!\w)", say_groups),
    rule("978-3-16-148410-0", r"(?<![\w.-])(?=(?:\d-?){9,20}(?![\w-]))\d+-\d+-\d[\d-]*", say_groups),
    rule("CA 90210", r"\b([A-Z]{2}) (\d{5}(?:-\d{4})?)(?![\d,.]\d|\w)", say_postcode),
    rule("v2.0", r"\b[vV](?:er)?\.?\s?(?=\d+\.\d)", "version "),
    rule("2.0.1 and 192.168.0.1", r"(?<![\w.])\d+(?:\.\d+){2,}(?!\w)", say_version),
)
SPANS = (       # these only write the sign out: the ends are read by the rules below
    rule("10 000", r"(?<![\w.,-])\d{1,3}(?:(?: \d{3}){2,}| 000)(?![\w-])",
         lambda match: match[0].replace(" ", "")),
    rule("24/7", r"(?<![\w/])(?:24/7|9/11)(?![\w/])", lambda match: match[0].replace("/", " ")),
    rule("2^10", r"(?:\^|(?<=\d)\*\*) ?(-?\d+)", say_power),
    rule("350°F/175°C", r"(?<=\d)(°?[A-Za-z]{1,4})/(?=\d)", r"\1, "),
    rule("10/2=5", r"(?<=\d)\s?/\s?(?=\d+\s*=)", " over "),
    rule("5-3=2", r"(?<=\d)\s?-\s?(?=\d+\s*=)", " minus "),
    rule("50-50", r"(?<![\w-])(\d+)[-–]\1(?![\w-])", r"\1 \1"),
    rule("$5-$10", rf"({SIGN})({NUMBER})\s?[-–]\s?\1?(?=\.?\d)(?!\d+-\d)", r"\2 to \1"),
    rule("10-20", rf"(?<![\w/-])({NUMBER}%?)\s?[-–]\s?(?={SIGN}?\.?\d)(?!\d+-\d|\d/\d)", r"\1 to "),
    rule("~5", rf"[~≈]\s?(?={SIGN}?\.?\d)", "about "),
    rule("6 ft. tall", r"(?<=\d)\s?(ft|oz|lbs?|in|hrs?|mins?|secs?|yds?|mi|yrs?|tsp|tbsp|gal|qt)\."
         r"(?=\s+[a-z\d(]|[,;])", r"\1"),
    rule("5 ft 10 in", r"(?<![\w.,])(\d) ?ft\.? (1[01]|\d) ?in\b", say_height),
    rule("5'10\"", r"(?<![\w.,])(\d)'\s?(1[01]|\d)(?:\"|''|(?![\w']))", say_height),
    rule("6' tall", r"(?<=\d)(['\"])(?=\s(?:tall|high|long|wide|deep)\b)", say_prime),
    rule("-5", rf"(?<![\w)%])-(?={SIGN}?\.?\d)", "minus "),
    rule("+5", rf"(?<![\w)])\+(?={SIGN}?\.?\d)", "plus "),
)
MONEY = (
    rule("$5", rf"{ARTICLE}(?:(?<![A-Za-z])(?P<country>{any_of(DOLLARS)}))?(?P<sign>{SIGN})\s?"
         rf"(?P<amount>{COMMA_DECIMAL}|{NUMBER}){MULTIPLE}(?:\s{CODE}\b)?{PER_UNIT}", say_money),
    rule("5 €", rf"{ARTICLE}(?<![\w.,])(?P<amount>{COMMA_DECIMAL}|{NUMBER}){MULTIPLE}\s?"
         rf"(?P<sign>[£€¥₹₩₽¢]|{CODE}\b)(?!\d){PER_UNIT}", say_money),
    rule("USD 5", rf"\b(?P<sign>{CODE})\s?(?P<amount>{NUMBER}){MULTIPLE}", say_money),
    rule("50p", r"(?<![\w.,])(\d{1,2})p\b", say_pence),
    rule("5M", rf"(\b(?i:{PLACES})\.?\s+)?(?<![\w.,#])({NUMBER})(M|B|[mbt]n)\b(?!\s+[A-Z])", say_millions),
)
MEASURES = (
    rule("4x4", r"(?<=\d)(\s?(?:mm|cm|m|km|ft|px)?)\s?(?<!\b0)[xX×]\s?(?=\d)"
         r"(?!\d+\s*=|10 (?:squared|cubed|to the power))", r"\1 by "),
    rule("10x", r"(?<=\d)[xX]\b", " times"),
    rule("5 km", rf"{ARTICLE}(?<![\w.,])(?P<amount>{NUMBER})(?P<gap>\s?|-)(?P<unit>{any_of(UNITS)})"
         rf"(?P<power>[²³]|(?<=m)[23])?{PER_UNIT}(?![A-Za-z0-9°²³])", say_measure),
)
PARTS = (
    rule("4.5/5", r"(?<![\w.,/])(\d+\.\d+)\s?/\s?(5|10|100)(?![\d/])", r"\1 out of \2"),
    rule("1 1/2", rf"(?<![\w.,/])(?:(\d{{1,3}})(?:\s+|\s?-))?(\d{{1,3}})/(\d{{1,3}})"
         rf"(?:\s?({any_of(UNITS.keys() - SPACED_ONLY - ATTACHED_ONLY)}))?(?![\w/])", say_fraction),
)
COUNTS = (
    rule("21st", r"(?<![\w.])(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?i:st|nd|rd|th)\b", say_ordinal),
    rule("1990s", r"(?<!\w)'?([12]\d\d0)'?s\b", lambda match: numbers.decade(int(match[1]))),
    rule("the 90s", rf"(?:(?<!\w)'|(?<=[Mm]id-)|{'|'.join(rf'(?<={word} )' for word in BEFORE_DECADES)})([2-9]0)'?s\b",
         lambda match: numbers.decade(int(match[1]))),
    rule("'99", r"(?<!\w)'(\d\d)(?![\w'])", say_short_year),
)
RULES: tuple[Rule, ...] = (*COMPARED, *PHONES, *SPANS, *MONEY, *COUNTS, *PARTS, *MEASURES)

# To be applied last, when the digits that other rules wanted are gone.
REMAINING: tuple[Rule, ...] = (
    rule("1984", rf"(?P<cue>\b(?i:{YEAR_CUE})\s+)?(?<![\w.,])(?P<n>1[1-9]\d\d|20\d\d|(?(cue)10\d\d|(?!)))"
         r"(?![\w%]|[.,]\d)"
         rf"(?P<things>(?=\s+(?!{NO_PLURAL}\b)[a-z]+[a-rt-z]s\b))?", say_year),
    rule("1,234.5", NUMBER, lambda match: numbers.number(match[0])),
)
