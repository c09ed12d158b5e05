"""Define the rules for postal addresses, and for numbers that are names, such as codes, accounts and ports.

The text around an abbreviation shows whether it is a street: a house number and a name come before "St" or "Dr", and a
name comes before "Ave". A code is read digit by digit if a word such as "PIN" comes before it, or if letters and digits
alternate in it.
"""

import re

from ane.text import number_words
from ane.text.count_rules import NOT_PLURAL
from ane.text.lexicon import LETTERED, MONTHS, SENTENCE_STARTERS, words
from ane.text.places import (
    AIRLINES,
    CODE_WORDS,
    COMPASS,
    CUED_STATES,
    DIRECTIONS,
    OLD_STATES,
    STATES,
    STREETS,
    SURE_STREETS,
    TOWNS,
    UNSURE_STATES,
    WITHIN_ADDRESS,
)
from ane.text.rule import NEXT_WORD, TextRule, any_of, follows, in_context, period_after, rule, with_digits

DIRECTION = any_of(DIRECTIONS)
STREET = f"(?i:{any_of([*STREETS, *STREETS.values()])})"
NAME_BEFORE = re.compile(r"(?<!\w)([A-Z][\w']*|(?:[a-z]+|\d+)(?:st|nd|rd|th))\s+\Z")
PLACE_BEFORE = re.compile(r"[a-z], \Z")
TOWN_OF_STATE = re.compile(r"\b[A-Z](?:[a-z]+|\.A\.), \Z")
TOWN_BEFORE = re.compile(rf"\b{any_of(TOWNS)}, \Z")
CUE_BEFORE = re.compile(r"\b(?:in|near|outside|from|to) (?:[A-Z][\w.'-]+ ){0,2}[A-Z][\w'-]+[a-z], \Z")
UNLETTERED = f"(?i:{''.join(rf'(?<!{word} )' for word in sorted(LETTERED))})"  # no word such as "group" before


def expand_address(match: re.Match) -> str:
    """Read 1211 E Arques Ave as "twelve eleven East Arques avenue".

    "Dr" before a name is a title, not a drive: "3 Is Dr. Who".
    """
    house, letter, before, name, street, dot, after = match.groups()
    if street.lower() in ("st", "dr") and (is_title(match) or name.lower() in SENTENCE_STARTERS):
        return match[0]
    n = int(house)
    number = number_words.year(n) if 100 <= n < 10_000 else house
    words = [number, letter, DIRECTIONS.get(before or ""), name, STREETS.get(street.lower(), street)]
    end = period_after(match) if dot and not after else ""
    return " ".join(filter(None, [*words, DIRECTIONS.get(after or "")])) + end


def is_title(match: re.Match) -> bool:
    """Return whether a name follows, so that "Dr" or "St" is a title. "Apt" and words that begin sentences are not."""
    following = NEXT_WORD.match(match.string, match.end())
    return following is not None and following[1].lower() not in (*SENTENCE_STARTERS, *WITHIN_ADDRESS)


def expand_street(match: re.Match) -> str:
    """Read Main St. as "Main street" and Oak Dr. as "Oak drive", unless the name before it begins a sentence."""
    before = follows(match, NAME_BEFORE)
    if not before or before[1].lower() in SENTENCE_STARTERS or (match[1] in ("St", "ST") and is_title(match)):
        return match[0]
    if match[1] == "ST":
        return f"STREET{period_after(match)}" if before[1].isupper() and match[2] else match[0]
    return STREETS[match[1].lower()] + period_after(match)


def expand_streets(match: re.Match) -> str:
    """Read 5th & 6th Aves. as "fifth and sixth avenues"."""
    return f"{STREETS[match[1].lower()]}s{period_after(match)}"


def expand_state(match: re.Match) -> str:
    """Read Santa Clara, CA 95051 as "Santa Clara, California nine five zero five one"."""
    return f"{STATES.get(match[1], match[1])} {number_words.digit_groups(match[2])}"


def expand_state_of_town(match: re.Match) -> str:
    """Read Boise, ID as "Boise, Idaho". ID, OK and others are states only after a town that is known to be one."""
    state = match[1]
    known = follows(match, PLACE_BEFORE) and (
        state not in UNSURE_STATES
        or follows(match, TOWN_BEFORE)
        or (state in CUED_STATES and follows(match, CUE_BEFORE, 48))
    )
    return STATES.get(state, state) if known else state


def expand_flight(match: re.Match) -> str:
    """Read flight BA 2490 as "flight B A twenty-four ninety"."""
    code = match[1] or ""
    number = number_words.year(int(match[2])) if len(match[2]) > 2 and match[2][0] != "0" else match[2]
    return f"{code[0]}.{code[1]}. {number}" if len(code) == 2 else f"{code} {number}".strip()


def spoken_code(code: str) -> str:
    """Read 2021-00123 as "two zero two one dash zero zero one two three". Only the letters of a VIN are spelled."""
    capitals = bool(SERIAL.fullmatch(code))
    return " ".join(
        number_words.digits(part) if part.isdigit() else "dash" if part == "-" else " ".join(part) if capitals else part
        for part in re.findall(r"\d+|[A-Za-z]+|-", code)
    )


SERIAL = re.compile(r"(?=(?:[A-Z]*\d){6})(?=.{10})(?:\d*[A-Z]+\d+){2,}[A-Z]*")
CODE_BEFORE = re.compile(
    rf"\b(?i:{any_of(CODE_WORDS)})(?:\s(?:no\.|(?:code|number|id|is|was|of|ending in"
    r"|[a-z]+ing with)\b)|:)*\s(?:#|number )?\Z"
)
# A code that is said after more words: "The PIN for the door is 7351", "the code she gave me was 4417."
CODE_SAID = re.compile(
    r"\b(?i:(?:pin|passcode|otp|cvv)(?: [a-z'-]+)?|(?:code|password|combination)(?= (?:for|to)\b)"
    r"|(?:code|password)(?= (?:on|that|which|I|you|we|he|she|they|my|your|his|her)\b))"
    r"(?: (?!(?:because|since|when|it)\b)[A-Za-z'-]+){1,8}(?: is| was|:)(?: now| still)?:? \Z"
)
CODE_ENDS = re.compile(r"[.,;:!?)\"']|\s*\Z| (?:and|but|so|then|until|unless)\b")
ORDER_BEFORE = re.compile(
    r"\b(?i:order|invoice|ticket|case|part|ref|reference|item|flight)"
    r"(?P<number>\s(?:number|no\.))?:?\s\Z"
)


def expand_code(match: re.Match) -> str:
    """Read PIN 4821, t2000, AB-10293 and 1-413-te-5 digit by digit.

    After a word such as "order", this happens only if the number looks like a code: order 2021-00123, not order 500.
    """
    code = match[1]
    known = follows(match, CODE_BEFORE, 60) and len(re.findall(r"\d", code)) > 2
    known = known or (
        re.fullmatch(r"\d{3,8}", code) and CODE_ENDS.match(match.string, match.end()) and follows(match, CODE_SAID, 90)
    )
    order = follows(match, ORDER_BEFORE, 30)
    numbered = order and re.fullmatch(
        r"\d[\d-]*-\d{3,}|0\d{2,}|\d{6,}|[A-Z]{2,4}-\d{4}"
        + r"|\d{4,}|[A-Z]{1,4}\d{3,}(?:-\d+)?" * bool(order["number"]),
        code,
    )
    parts = set(re.findall("[A-Za-z]+", code))
    serial = parts and code.count("-") > 1 and not {part.lower()[:3] for part in parts} & JOINING
    return (
        spoken_code(code)
        if known
        or numbered
        or serial
        or SERIAL.fullmatch(code)
        or re.fullmatch(r"[a-z]{1,4}\d{3,}[a-z]?|[A-Z]{1,4}-\d{5,}", code)
        else code
    )


JOINING = words("to and or by in on of for per x vs foo yea") | {month[:3] for month in MONTHS}  # 10-to-15, 15-Jan-2020
RULES: tuple[TextRule, ...] = (
    rule(
        "12 Oak Dr., 1211 E Arques Ave",
        rf"(?<![\w.,$£€#:-])(\d{{1,5}})([A-D]?)\s+(?:({DIRECTION})\.?\s+)?"
        rf"((?:[A-Z][\w'-]+\.?|\d{{1,3}}(?:st|nd|rd|th))(?:\s+[A-Z][\w']+){{0,3}}?)\s+({STREET})\b(\.?)"
        rf"(?:\s+({DIRECTION})\b(?:\.(?=,))?)?",
        expand_address,
    ),
    rule(
        "E Arques Ave",
        rf"\b({DIRECTION})\.?\s+(?=(?:[A-Z][a-z']+|\d{{1,3}}(?:st|nd|rd|th))\s+{STREET}\b)",
        lambda match: f"{DIRECTIONS[match[1]]} ",
    ),
    rule("Main St.", r"\b(S[tT])\b(\.?)", expand_street),
    rule(
        "1st st, 5th Fl.",
        r"(?<=\d(?:st|nd|rd|th) )(st\b|[Ff]l\b(?=\.)|Cir\b(?=\.))(\.?)",
        lambda match: {"st": "street", "Cir": "circuit"}.get(match[1], "floor") + period_after(match),
    ),
    rule("Oak Dr. with me", r"\b(Dr)(\.)(?=[,;)]|\s+(?!who\b)[a-z]|\s*(?:\n|\Z))", expand_street),
    rule("Fifth Ave", rf"\b({any_of(name.capitalize() for name in SURE_STREETS)})\b(\.?)", expand_street),
    rule(
        "Apt 4B, Hwy 101",
        rf"\b({any_of(name.capitalize() for name in WITHIN_ADDRESS)})\.?\s+(?=#?\w?\d)",
        lambda match: f"{WITHIN_ADDRESS[match[1].lower()]} ",
    ),
    *with_digits(
        rule("OX2 6PN", r"\b([A-Z])([A-Z])(?=\d[\dA-Z]? \d[ABD-HJLNP-UW-Z]{2}\b)", r"\1 \2 "),
        rule("BA1 2TW", r"(?<=[A-Z] \d )(\d)([A-Z])([A-Z])\b", r"\1 \2 \3"),
        rule("5th & 6th Aves.", r"(?<=\d(?:st|nd|rd|th) )(Ave|St)s\b(\.?)", expand_streets),
        rule(
            "I-95 N",
            r"(?<=\d )[NSEW]\b(?![.'&-]?\w)",
            in_context(
                ((r"\b(?:I-|US[- ]|(?:[Hh]wy|[Hh]ighway|[Rr]oute|[Ii]nterstate)[- ])\d{1,3} ", ""),),
                lambda match: DIRECTIONS[match[0]],
            ),
        ),
        rule(
            "heading 270",
            r"(?<![\w.,$£€-])[0-3]\d\d\b(?![.,:/-]?\d|%|°)",
            in_context(
                (
                    (
                        r"(?<!\b[Ii]n )(?<!nder )(?<!see )(?<!See )\b(?i:heading)(?: (?:of|is))? ",
                        r"[.,;:!?)]|\s*\Z| (?:and|at|for|then|on|from|until|to)\b",
                    ),
                ),
                lambda match: number_words.digits(match[0]),
            ),
        ),
        rule("CA 90210", r"\b([A-Z]{2}),? (\d{5}(?:-\d{4})?)(?![\d,.]\d|\w)", expand_state),
    ),
    rule("Austin, TX", r"\b([A-Z]{2})(?=[.,;)]|\s*(?:\n|\Z))", expand_state_of_town),
    rule(
        "Boston, Mass.",
        rf"\b({any_of(OLD_STATES)})\.",
        lambda match: OLD_STATES[match[1]] + period_after(match) if follows(match, TOWN_OF_STATE) else match[0],
    ),
    *with_digits(
        rule(
            "account no. 12, Case No. 21-cv-0456", r"(?<=[a-z] )[nN]o\.\s?(?=\d{3}|[A-Z]{1,4}-\d|\d+-\w+-\d)", "number "
        ),
        rule(
            "ref. AB-1", r"\b([rR]ef)\.\s?(?=[A-Z]{1,4}-\d|(?<!the ref\. )(?<!a ref\. )(?<!our ref\. )\d)", r"\1erence "
        ),
        rule(
            "FL350",
            r"FL(?<!\wFL) ?(\d{2,3})\b(?![,-]?\d| (?:miles|km|people)\b)",
            lambda match: (
                match[0]
                if match[0][2] == " " and follows(match, PLACE_BEFORE)
                else f"flight level {number_words.digits(match[1])}"
            ),
        ),
        rule(
            "runway 27L",
            r"unway (?<=[rR]unway )(\d{2})(?:(L)|(R)|(C))?\b",
            lambda match: (
                f"unway {number_words.digits(match[1])}"
                f"{' left' * bool(match[2])}{' right' * bool(match[3])}{' center' * bool(match[4])}"
            ),
        ),
    ),
    rule(
        "winds NW",
        r"[NSEW](?<![\w'&.-][NSEW])[NSEW]{0,2}\b(?!['&.-]\w)",
        in_context(
            (
                (r"\b(?i:winds?|breezes?)(?: (?:from|out|of|in|is|are|was|will|be|light|the)){0,3}:? ", ""),
                (UNLETTERED, r" (?:winds?|breezes?|gusts?|gales?)\b(?! (?:up|down|through|along|its|their|back)\b)"),
                ("", r" \d+(?: ?[-–] ?\d+)? ?(?:mph|km/h|kts?|knots)\b"),
                ("", r"(?<=[NS][EW]) (?:of|corner|coast|side|slope)\b"),
            ),
            lambda match: COMPASS.get(match[0], match[0]),
        ),
    ),
    *with_digits(
        rule(
            "code: 4938",
            r"(?<![\w.,-])\d{4,}\b(?![.,:]\d|-)",
            in_context(
                (
                    (r"\b[tT]ext [A-Z]\w* to ", r"(?! (?:people|[a-z]+s)\b)"),
                    (  # not "the code is 4000 lines long" and "the code is 2024 compliant"
                        r"(?<!building )(?<!tax )(?<!dress )\b(?i:code)(?: (?:is|was)|:) ",
                        r"[\"')\]]*(?:[.,;:!?\n]|\s*\Z"
                        r"| (?:and|or|but|for|to|on|at|in|not|so|if|when|until|from|it|please)\b)",
                    ),
                ),
                lambda match: number_words.digits(match[0]),
            ),
        ),
        rule(
            "flight BA 2490, Flight 370",
            r"(?<![\w.,$£€/-])(?:([A-Z]{2}) ?)?(\d{2,4})\b(?![.,:/-]?\d|%|-[a-z])",
            in_context(
                (
                    (
                        r"\b[fF]lights?(?: (?:number|no\.))? (?:#|number )?",
                        rf"(?!\s(?:(?!{NOT_PLURAL}\b)[a-z]+s|people|km|hour|ft|feet)\b)",
                    ),
                    (r"\bFlight ", ""),
                ),
                expand_flight,
            ),
        ),
        rule(
            "on AA 102 to Dallas",
            rf"(?<![\w.,$£€/-])({any_of(AIRLINES)}) ?(\d{{3,4}})\b(?![.,:/-]?\d|%|-[a-z])",
            in_context(
                (
                    (r"\b(?:flew|flying|fly|board(?:ed|ing)?|aboard|booked)(?: on)? ", ""),
                    (
                        "",
                        r" (?:(?:to|from) [A-Z]|(?:departs|departed|landed|lands|arrives|arrived|took off|takes off)\b"
                        r"|(?:is|was|has been) (?:now |still )?(?:boarding|delayed|cancell?ed|on time|late|due)\b)",
                    ),
                ),
                expand_flight,
            ),
        ),
        rule(
            "zip code 90210, order 2021-00123, t2000",
            r"(?<![\w.,$£€@/#-])((?:[A-Za-z]{1,4}-?)?\d[\w-]*\d(?:[a-z]\b)?)"
            r"(?![\w@-]|[.,:]\d|\.\w)",
            expand_code,
        ),
        rule(
            "10.0.0.1:8080",
            r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3}|localhost)(?::|,? port )(\d{2,5})\b",
            lambda match: f"{match[1]} port {number_words.digits(match[2])}",
        ),
        rule(
            "401(k), 501(c)(3), 401k",
            r"(?<![\w$£€.,])([45])0(\d)(?:\s?\(([a-z])\)(?:\((\d)\))?|(?:(?<=401)k|(?<=403)b)\b)",
            lambda match: " ".join(
                filter(
                    None,
                    [
                        number_words.digits(match[1]),
                        "oh",
                        *map(number_words.digits, match[2]),
                        match[3] or match[0][-1],
                        number_words.digits(match[4] or ""),
                    ],
                )
            ),
        ),
    ),
)
