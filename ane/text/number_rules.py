"""Define the rules for ranges, money, units and magnitudes."""

import re
from collections.abc import Iterable, Sequence

from ane.text import number_words
from ane.text.lexicon import (
    CURRENCIES,
    DOLLARS,
    IRREGULAR_PLURALS,
    MAGNITUDES,
    MEASURED_ACTIONS,
    MEASURED_THINGS,
    PER_WORDS,
    RECIPE_UNITS,
    SPACED_UNITS,
    UNITS,
    UNSPACED_UNITS,
    words,
)
from ane.text.places import DIRECTIONS
from ane.text.rule import NUMBER, TextRule, any_of, follows, in_context, period_after, rule, with_digits

SIGN = f"[{''.join(sign for sign in CURRENCIES if len(sign) == 1 and sign != '¢')}]"
COMMA_DECIMAL = r"(?:\d{1,3}(?:\.\d{3})+|\d+),\d\d(?![\d,])"  # amount with a decimal comma: 1.299,50 €
CODE = any_of(code for code in CURRENCIES if code.isalpha())
CURRENCY_NAME = any_of(
    words("franc francs mark marks kronar krone kroner lire lira yen pesetas zloty crowns").union(
        name for row in CURRENCIES.values() if row[0] != row[1] for name in row[:2]
    )
)
MAGNITUDE = (
    rf"(?:(?:\s|-(?=[a-z]{{5}}))?(?:(?P<magnitude>{any_of(word for word in MAGNITUDES if len(word) > 1)})"
    r"|(?P<letter>[kKmMbBtT]))\b(?!'|-[A-Za-z]))?"
)
LONG_UNIT = any_of(unit for unit in UNITS if len(unit) > 1 and unit != "in")
COUNTED = re.compile(r"(?:\d|\d [a-z]{1,20}|\btimes|\bper [a-z]{1,20}) ?\Z")
COUNTED_THING = re.compile(r"\d ?[a-z]{1,20}\Z")
UNIT_POWER = r"(?P<power>[²³]|(?<=m)[23])?"
PER_UNIT = rf"(?:\s?/\s?(?P<per>{any_of([*PER_WORDS, *UNITS])})(?P<of>[²³]|(?<=[mns])[23])?(?![A-Za-z0-9]))?"
# The unit after a number in powers of ten: 3×10^8 m/s.
UNIT_AFTER = rf"(?:\s?(?P<unit>(?!in\b){any_of(UNITS)}){UNIT_POWER}{PER_UNIT}(?![A-Za-z0-9°²³]))?"
POWERS = {"": "", "²": "square ", "2": "square ", "³": "cubic ", "3": "cubic "}
# An article before money or a unit, which is then singular: "a $5 note" is "a five dollar note", and "a £5 to £10 note"
# is "a five to ten pound note".
JEWELLERY = words(
    "gold ring bracelet necklace chain pendant earring bangle brooch locket band jewelry jewellery plating diamond"
)
ARTICLE = re.compile(r"\b[Aa]n?\s+(?:[\d.,]+(?:ft|in)? (?:to|by) )*\Z")
MEASURED = re.compile(rf" (?:{any_of(MEASURED_THINGS)})s?\b")  # a unit before these nouns is singular: "50 m pool"
MEASURED_ACTION = re.compile(rf" (?:{any_of(MEASURED_ACTIONS)})\b")
DETERMINER = re.compile(r"\b(?:the|this|that|each|every|his|her|its|my|our|your|their|[\w.]+['’]s)\s+\Z", re.IGNORECASE)
QUOTED = re.compile(r"(?:^|\s)[\"“]\S*\Z")  # text before a closing quotation mark
NEGATIVE_BEFORE = r"[=<>≤≥(:,] ?|\A|\b(?:is|are|was|were|be|of|at|to|from|and|between|below|above|about|than|under)\s"
BEFORE_MONEY = re.compile(r"-| (?:bank)?(?:note|bill|coin)s?\b")
# --- money -----------------------------------------------------------------------------------------------------------


def expand_money(match: re.Match) -> str:
    """Read £1.50 as "one pound and fifty pence", €3 million as "three million euros", and the "/h" of $2/h, too."""
    groups = match.groupdict()
    one, many, hundredth, hundredths = CURRENCIES[groups["sign"]]
    amount = groups["amount"]
    if re.fullmatch(COMMA_DECIMAL, amount):
        amount = amount.replace(".", "").replace(",", ".")
    whole, _, decimals = amount.replace(",", "").partition(".")
    magnitude = MAGNITUDES.get(groups.get("magnitude") or groups.get("letter") or "")
    if follows(match, ARTICLE) or BEFORE_MONEY.match(match.string, match.end()):
        many = one
    if magnitude:
        words = f"{number_words.number(amount)} {magnitude} {many}"
    elif hundredth and re.fullmatch(r"\d\d?|\d\d0+", decimals):  # "$20.5" and "$0.010" are cents as well
        words = amount_with_cents(whole, decimals[:2].ljust(2, "0"), (one, many, hundredth, hundredths))
    else:
        words = f"{number_words.number(amount)} {one if whole == '1' and not decimals else many}"
    return words + expand_per_unit(groups)


def expand_per_unit(groups: dict[str, str | None]) -> str:
    """Read "/km" as " per kilometer", "/s²" as " per second squared", and "/cm³" as " per cubic centimeter"."""
    per = groups.get("per")
    if not per:
        return ""
    unit, power = PER_WORDS.get(per) or UNITS[per], groups["of"]
    return f" per {unit} squared" if power and unit == "second" else f" per {POWERS[power or '']}{unit}"


def expand_shillings(match: re.Match) -> str:
    """Read £3 7s. 6d. as "three pounds seven shillings and sixpence"."""
    pounds, shillings, pence = match.groups()
    words = f"{pounds} pound{'' if pounds == '1' else 's'} " if pounds else ""
    words += f"{number_words.number(shillings)} shilling{'' if shillings == '1' else 's'}"
    if pence:
        words += " and " + ("one penny" if pence == "1" else f"{number_words.number(pence)}pence")
    return words + period_after(match)


def expand_range_of_money(match: re.Match) -> str:
    """Write $5-$10 as "5 to $10", but $5.50-$10 as "$5.50 to $10"."""
    return f"{match[1] if match[3] and '.' in match[2] else ''}{match[2]} to {match[1]}"


def amount_with_cents(whole: str, decimals: str, currency: tuple[str, str, str, str]) -> str:
    """Read "1" and "50" as "one pound and fifty pence". ``currency`` is a value of ``CURRENCIES``."""
    one, many, hundredth, hundredths = currency
    amounts = []
    if whole.strip("0"):
        amounts.append(f"{number_words.number(whole)} {one if whole == '1' else many}")
    if decimals != "00":
        amounts.append(f"{number_words.cardinal(int(decimals))} {hundredth if decimals == '01' else hundredths}")
    return " and ".join(amounts) or f"zero {many}"


# --- quantities with a unit ------------------------------------------------------------------------------------------


def plural(unit: str) -> str:
    """Put a unit in the plural: "miles per hour", "square feet", "degrees celsius"."""
    head, rest = re.fullmatch(r"(.*?)( per .*| of .*| celsius| fahrenheit|)", unit).groups()
    for one, many in IRREGULAR_PLURALS.items():
        if head.endswith(one):
            return f"{head.removesuffix(one)}{many}{rest}"
    return f"{head}s{rest}"


def expand_quantity(match: re.Match) -> str:
    """Read 5km as "five kilometers", 1 °C as "one degree celsius", and 20 m² as "twenty square meters".

    Before a noun, the unit is singular: "a 5 km walk", "5-km walk".
    """
    sign, gap, amount = match["unit"], match["gap"], match["amount"]
    labelled = not gap and len(sign) == 1 and sign.isupper() and follows(match, LABELLED)
    if (
        labelled
        or (gap.isspace() and sign in UNSPACED_UNITS)
        or (not gap and len(amount) == 1 and sign in SPACED_UNITS)
    ):
        return match[0]
    after = match.string, match.end()
    thing = MEASURED.match(*after) or (MEASURED_ACTION.match(*after) and follows(match, DETERMINER))
    single = amount == "1" or gap == "-" or follows(match, ARTICLE) or thing
    return f"{number_words.number(amount)} {expand_unit(match, bool(single))}"


def expand_unit(match: re.Match, single: bool = False) -> str:
    """Read the unit of a match, and the unit after a slash: m/s is "meters per second". ``single`` means singular."""
    unit = POWERS[match["power"] or ""] + UNITS[match["unit"]]
    return (unit if single else plural(unit)) + expand_per_unit(match.groupdict())


def parts_in_words(amounts: Iterable[str | None], units: Sequence[str]) -> list[str]:
    """Write ("1", "05") and ("hour", "minute") as ["one hour", "five minutes"]. An amount ``None`` is skipped."""
    known = [(re.sub(r"^0+(?=\d)", "", amount), unit) for amount, unit in zip(amounts, units, strict=True) if amount]
    return [f"{number_words.number(amount)} {unit}{'' if amount == '1' else 's'}" for amount, unit in known]


def expand_duration(match: re.Match) -> str:
    """Read 1m23s as "one minute twenty-three seconds". If there is only one unit, another rule reads it."""
    parts = parts_in_words(match.groups(), ("hour", "minute", "second"))
    return " ".join(parts) if len(parts) > 1 else match[0]


def expand_position(match: re.Match) -> str:
    """Read 49° 17' N as "forty-nine degrees seventeen minutes north"."""
    parts = parts_in_words(match.groups()[:3], ("degree", "minute", "second"))
    return " ".join([*parts, DIRECTIONS.get(match[4] or "", "").lower()]).strip()


def expand_kt(match: re.Match) -> str:
    """Read kt as karats before "gold", as kilotons before "bomb", and as knots near "wind" or "boat"."""
    if match["gold"] or match["blast"]:
        return "karat" if match["gold"] else "kton"
    around = match.string[max(0, match.start() - 90) : match.end() + 60]
    return "kts" if AT_SEA.search(around) else match[0]


AT_SEA = re.compile(
    r"°|\bkts\b|\b(?i:(?:wind|gust|breeze|gale|speed|boat|ship|sail|vessel|yacht|ferr|aircraft|plane|cruis|runway"
    r"|current|tide|storm|hurricane|helicopter|submarine|knot)[a-z]*|(?:air|head|tail|cross)(?:speed|winds?))\b"
)


# --- magnitudes --------------------------------------------------------------------


def expand_millions(match: re.Match) -> str:
    """Read 5M as "five million". After a word such as "seat", 5M is a label, and stays unchanged."""
    if follows(match, LABELLED):
        return match[0]
    return f"{number_words.number(match[1])} {MAGNITUDES[match[2]]}"


# After "3.2m", these plurals show that m means million, not meters.
COUNTED_IN_MILLIONS = words("""
    units people users customers views viewers visitors visits downloads followers subscribers subscriptions members
    jobs copies homes households barrels vehicles shares votes voters residents workers employees children students
    pupils passengers tourists players accounts doses dollars pounds euros deaths cases patients albums streams tickets
    tweets refugees migrants readers citizens adults women men inhabitants""")
AMPS_AFTER = (
    r"[ -](?:fuse|circuit|breaker|charger|power supply|supply|socket|outlet|plug|relay|load|current|service)s?\b"
)
AMPS_BEFORE = (
    r"\b(?i:currents?|draws?|drawing|drew|fuses?|rated|amperage|circuits?|breakers?|carry|carries)"
    r"(?: (?:of|is|was|at|up|to|about|for|over|under)){0,2} \d[\d.]*"
)
# Not "a freezing 10K run": a word such as "to" or "at" precedes a temperature, but no article does.
COLD = (
    r"\b(?i:temperatures?|cool(?:ed|s|ing)?|heat(?:ed|s|ing)?|warm(?:ed|s|ing)?|boil\w*|freez\w*|melt\w*|superconduct\w*"
    r"|cryo\w*|plasma|gas|blackbody|black body)\b(?:[^.!?\n]|\.(?=\d)){0,50}?"
    r"(?:\b(?:to|at|of|from|below|above|under|over|around|about|near|nearly|is|was|and|between|than|reach(?:es|ed|ing)?"
    r"|approximately|roughly|only|or) |[:=~≈<>(–-] ?)[\d.,]*\d"
)
ROUTE = re.compile(r"\b(?i:bus|route|line|train|tram|flight|model) \d+\Z")
LABELLED = re.compile(
    r"\b(?i:seat|row|room|apt|apartment|unit|gate|flat|suite|section|exhibit|platform|building|block"
    r"|part|type|exit|bus|route|line|lane|question|number|figure|table|house|cell|bed|track|door|page|bay|stall|berth"
    r"|pier|hall|stand|version|lot|grade|class|level|step|item|lesson|ex|exercise|module|year|form|paper|session|category"
    r"|course|rte|highway|interstate)\.?\s+\Z"
)
SIGN_RULES = with_digits(  # these rules expand signs before and between numbers, and later rules expand the numbers
    rule("10 000", r"(?<![\w.,-])\d{1,3}(?:(?: \d{3}){2,}| 000)(?![\w-])", lambda match: match[0].replace(" ", "")),
    rule(
        "a Boeing 747-400",
        r"7(?:(?<=Boeing 7)|(?<=\b[Aa] 7)|(?<=[Tt]he 7))([0-8]7)-(?=(?:[1-9]00|[89])(?:ER|LR|F|s)?\b(?!-))",
        lambda match: f"{number_words.year(700 + int(match[1]))} ",
    ),
    rule(
        "49° 17' N",
        r"(?<![\w.,])(\d{1,3}(?:\.\d+)?)°\s?(?:(\d{1,2}(?:\.\d+)?)'\s?)?"
        r"(?:(\d{1,2}(?:\.\d+)?)(?:\"|'')\s?)?(?:([NSEW])\b|(?<=['\"]))",
        expand_position,
    ),
    rule(
        "24/7, 60/40 split",
        r"(?<![\w/])(?:24/7(?:/365)?|9/11|\d\d/\d\d(?=[ -](?:split|mix|blend|rule)\b)"
        r"|20/\d{2,3}(?= vision))(?![\w/])",
        lambda match: match[0].replace("/", " "),
    ),
    rule(
        "8 tabs/24 hrs",
        r"/(?<=[a-z]/)(?=\d{1,3} ?(?:h|hrs?|hours?|days?|wks?|weeks?|min|mins?|minutes|months?|yrs?|years?)\b)",
        lambda match: " per " if follows(match, COUNTED_THING) else match[0],
    ),
    rule("350°F/175°C", r"(?<=\d)(°?[A-Za-z]{1,4})/(?=\d)", r"\1, "),
    rule(
        "10/2=5",
        r"\b(\d+)\s?/\s?(?=(\d+)\s*=)",
        lambda match: match[0] if int(match[1]) < int(match[2]) < 100 else f"{match[1]} over ",
    ),
    rule("50-50", r"(?<![\w-])(\d+)[-–]\1(?![\w-]| \d/\d)", r"\1 \1"),
    rule("$-5", rf"({SIGN})\s?-(?=\.?\d)", r"minus \1"),
    rule("$3M-$4M", rf"(({SIGN}){NUMBER}\s?(?:[mb]illion|thousand|[kKmMbB]n?))\s?[-–]\s?\2?(?=\.?\d)", r"\1 to \2"),
    rule(
        "$5-$10, $3 to $4 million",
        rf"({SIGN})({NUMBER})(?:\s?[-–]\s?|\sto\s(?=\1{NUMBER}\s?(?:[mb]illion|[mMbB]n?\b)))(\1)?(?=\.?\d)(?!\d+-\d)",
        expand_range_of_money,
    ),
    rule(
        "1234-2000 kg",
        rf"(?<![\w/.,-])(1[1-9]\d\d|20\d\d)\s?[-–]\s?(?=[\d.,]+\s?{LONG_UNIT}(?!\w))",
        lambda match: f"{number_words.number(match[1])} to ",
    ),
    rule("Q1–5", r"(Q(?<!\wQ)\d{1,2}) ?[-–] ?(?=Q?\d{1,2}\b(?!-))", r"\1 to "),
    rule(
        "Part 2 - 1945",
        r" [-–] (?=[12]\d{3}(?!\w|[,.]\d))",
        in_context(
            ((r"\b(?i:part|chapter|episode|book|volume|season|act|scene|lesson|unit|section|week|stage) \d{1,3}", ""),),
            lambda match: ", ",
        ),
    ),
    rule("10-20", rf"(?<![\w/-])({NUMBER}%?)\s?[-–]\s?(?={SIGN}?\.?\d)(?!\d+-\d|\d/\d)", r"\1 to "),
    rule("~5", rf"[~≈]\s?(?={SIGN}?\.?\d)", "about "),
    rule(
        "2 c. sugar",
        rf"(?<![\d,]\d)(?<=\d)\s?({any_of(RECIPE_UNITS)})\.(?=\s(?!and\b)(?:of\b|[a-z(]{{3}}))",
        lambda match: f" {RECIPE_UNITS[match[1]]}",
    ),
)
NEGATIVE_RULES = with_digits(
    rule("= –5", r"–(?=\.?\d)", in_context(((NEGATIVE_BEFORE, ""),), lambda match: "minus ")),
    rule("-5", rf"(?<![\w)%])-(?={SIGN}?\.?\d)", "minus "),
    rule("+5", rf"(?<![\w)])\+(?={SIGN}?\.?\d)", "plus "),
)
MONEY_RULES = with_digits(
    rule("£3 7s. 6d.", r"(?:£\s?(\d[\d,]*)[.,]?\s)(\d{1,2})s\b\.?(?:,?\s?(\d{1,2})d\b\.?)?", expand_shillings),
    rule("7s. 6d.", r"(?<![\w.,])()(\d{1,2})s\b\.?,?\s?(\d{1,2})d\b\.?", expand_shillings),
    rule(
        "in $20s",
        r"\$(\d{1,3})s\b",
        lambda match: re.sub("ys$", "ies", f"{number_words.cardinal(int(match[1])).removeprefix('one ')}s"),
    ),
    rule("the 3 Rs", r"(?<=\b[tT]he 3 )Rs\b(?! ?\d)", "R's"),
    rule(
        "$3 mil.",
        r"(?<=\d) ?([mb])il\b\.?",
        in_context(((rf"{SIGN} ?[\d.,]+", ""),), lambda match: f" {match[1]}illion{period_after(match)}"),
    ),
    rule("Rs. 500", r"\bRs\.\s?(?=\d)", "Rs "),
    rule(
        "84,50 francs",
        r"(?<![\w.,])(\d{1,3}(?:\.\d{3})+|\d{1,4}),(\d{1,2})"
        rf"(?=\s(?:[mb]illion\s)?{CURRENCY_NAME}\b|\s?(?:{LONG_UNIT})(?!\w))",
        lambda match: f"{match[1].replace('.', '')}.{match[2]}",
    ),
    rule("€1,5 million", rf"(?<={SIGN})(\d{{1,3}}),(\d)(?=\s?(?:[mbtr]+illion|[mb]n|m)\b)", r"\1.\2"),
    rule("US$5", rf"(?<![A-Za-z])({any_of(DOLLARS)})\$\s?(?=\.?\d)", lambda match: f"{DOLLARS[match[1]]} "),
    rule(
        "$5",
        rf"(?P<sign>{SIGN})\s?(?P<amount>{COMMA_DECIMAL}|{NUMBER}){MAGNITUDE}"
        rf"(?:\s{CODE}\b(?!\.?\s?\d))?{PER_UNIT}",
        expand_money,
    ),
    rule(
        "5 €",
        rf"(?<![\w.,])(?P<amount>{COMMA_DECIMAL}|{NUMBER}){MAGNITUDE}\s?"
        rf"(?P<sign>(?!\$){SIGN}|¢|{CODE}\b(?!\.?\s?\d))(?!\d){PER_UNIT}",
        expand_money,
    ),
    rule("USD 5", rf"\b(?P<sign>{CODE})\s?(?P<amount>{COMMA_DECIMAL}|{NUMBER}){MAGNITUDE}{PER_UNIT}", expand_money),
    rule("142.9p", r"(?<![\w.,])(\d{1,3}\.\d)p\b", r"\1 pence"),
    rule("50p", r"(?<![\w.,])(\d{1,2})p\b", lambda match: amount_with_cents("0", match[1].zfill(2), CURRENCIES["£"])),
    rule(
        "3.2m units",
        # not "the 100m women's final"
        rf"(?<![\w.,#])(?!(?:50|60|1[01]0|[248]00|1500|[35]000)m (?:wo)?men\b)({NUMBER})(m)"
        rf"(?= (?:more |new |daily )?{any_of(COUNTED_IN_MILLIONS)}\b(?!'s))",
        expand_millions,
    ),
    rule("5M", rf"(?<![\w.,#])({NUMBER})(M|B|[mbt]n)\b(?!\s+[A-Z])", expand_millions),
)
UNIT_RULES = (
    *with_digits(
        rule("256 gb", r"(?<=\d)([ -]?)([kmgtp]b)\b(?!['-]?\w|\.\w)", lambda match: match[1] + match[2].upper()),
        rule("2 x 500mg", r"(?<=\d)\s?[xX×]\s?(?=\d[\d.]*\s?(?:m?g|kg|mcg|m[lL]|[lL]|[MGT]B|k?W)\b)", " times "),
        rule(
            "4x4",
            r"(?<=\d)(\s?(?:mm|cm|m|km|ft|px)?)\s?(?<!\b0)[xX×]\s?(?=\d)"
            r"(?!\d[\d.]*(?:\s?[xX×]\s?\d[\d.]*){0,4}\s*(?:[=≠]|is (?:about|not|less|greater|at|\d))"
            r"|10 (?:squared|cubed|to the power))",
            r"\1 by ",
        ),
        rule("10x-20x", r"(?<![\w.,])(\d+)[xX]\s?[-–]\s?(?=\d+[xX]\b)", r"\1 to "),
        rule("10x", r"(?<=\d)[xX]\b", lambda match: " X" if match[0] == "X" and follows(match, ROUTE) else " times"),
        rule(
            "1080p",
            r"(?<![\w.,])(480|[57]\d{2}|1080|1440|2160|4320)([pi])\b",
            lambda match: f"{number_words.year(int(match[1]))} {match[2]}",
        ),
        rule("2h30", r"(?<![\w.,])(\d{1,2})h([0-5]\d)(?!\w)", r"\1h \2min"),
        rule(
            "1m23s, 2h 5min",
            r"(?<![\w.,])(?=\d+\s?[hm]\w{0,3}\s?\d)(?:(\d+)\s?(?:h|hrs?)\s?)?"
            r"(?:(\d+)\s?(?:m|mins?)\s?)?(?:(\d+)\s?(?:s|secs?))?(?![A-Za-z0-9])",
            expand_duration,
        ),
        rule("9600 bps", r"(?<![\w.,])(300|[1-9]\d{3,6})\s?bps\b", r"\1 bits per second"),
        rule(
            "14 kt gold, a 15 kt bomb, wind at 15 kt",
            r"[kK][tT]\b(?:(?<=\d..)|(?<=\d[\s-]..))"
            rf"(?:(?= (?:(?P<gold>(?:[a-z]+ ){{0,2}}{any_of(JEWELLERY)}s?)"
            r"|(?P<blast>of (?!wind|breeze)\w+|yield|bomb|warhead|blast))\b)|)",
            expand_kt,
        ),
        rule(
            "5 km",
            rf"(?<![\w.,])(?P<amount>{NUMBER})(?P<gap>\s?|-)(?P<unit>{any_of(UNITS)})"
            rf"{UNIT_POWER}{PER_UNIT}(?![A-Za-z0-9°²³])",
            expand_quantity,
        ),
        rule("a 5 A fuse", r"(?<=\d)[ -]?A\b(?=[ -])", in_context((("", AMPS_AFTER),), lambda match: " amp")),
        rule(
            "draws 5 A",
            r"(?<=\d) ?A\b(?!['&.-]?\w)",
            in_context(
                ((AMPS_BEFORE, r"[.,;:!?)]|\s*\Z| (?:at|and|or|from|when|while|on|in|of)\b"),), lambda match: " amps"
            ),
        ),
        rule(
            "cooled to 300 K",
            r"(?<=\d) ?K\b(?!['&.-]?\w)",
            in_context(((COLD, ""), ("", r" (?:white |LED )?(?:light|bulb|lamp|LED)s?\b")), lambda match: " kelvin"),
        ),
        rule("3 K/min", r"(?<=\d)\s?K(?=/(?:s|min|hr?|day|m|km|W)\b)", " kelvin"),
    ),
    rule(
        "12/kg, 3 requests/s",
        PER_UNIT.removesuffix("?").removeprefix("(?:\\s?").join(("(?:", "")),
        lambda match: expand_per_unit(match.groupdict()) if follows(match, COUNTED) else match[0],
    ),
)
RULES: tuple[TextRule, ...] = (
    *NEGATIVE_RULES,
    rule("$$$", r"\${2,}(?![\d$])", " dollars "),
    rule("$HOME", r"\$(?=[A-Z_]{3,}\b)", " dollar "),
    *MONEY_RULES,
)  # english.py adds the rules for counts and units later
