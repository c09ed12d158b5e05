"""Words for what a rule of ``published_text`` matches: money, times, units, fractions and so on.

Each function of a form takes the match; its groups are the parts of the form in their order. ValueError: a part is no
number. Numbers are spelled exactly as KittenTTS's TextPreprocessor does, with its peculiarities: 1200 is "twelve
hundred"; 20th is "twentyth"; groups above the trillions are dropped.
"""

import re

SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
GROUPS = ("", " thousand", " million", " billion", " trillion")
IRREGULAR_ORDINALS = {"one": "first", "two": "second", "three": "third", "four": "fourth", "five": "fifth",
                      "six": "sixth", "seven": "seventh", "eight": "eighth", "nine": "ninth", "twelve": "twelfth"}
CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee", "₩": "won", "₿": "bitcoin"}
SCALES = {"K": "thousand", "M": "million", "B": "billion", "T": "trillion"}
UNIT_NAMES = {
    "km": "kilometers", "kg": "kilograms", "mg": "milligrams", "ml": "milliliters",
    "gb": "gigabytes", "mb": "megabytes", "kb": "kilobytes", "tb": "terabytes",
    "hz": "hertz", "khz": "kilohertz", "mhz": "megahertz", "ghz": "gigahertz",
    "mph": "miles per hour", "kph": "kilometers per hour",
    "ms": "milliseconds", "ns": "nanoseconds", "µs": "microseconds",
    "°c": "degrees Celsius", "c°": "degrees Celsius", "°f": "degrees Fahrenheit", "f°": "degrees Fahrenheit",
}
DECADES = ("hundreds", "tens", "twenties", "thirties", "forties", "fifties", "sixties", "seventies", "eighties",
           "nineties")


def ip_address_words(match: re.Match[str]) -> str:
    """"10.0.0.1" → "one zero dot zero dot zero dot one"."""
    return " dot ".join(map(digit_words, match.groups()))


def digits_of_groups(match: re.Match[str]) -> str:
    """A telephone number, digit by digit: "555-1234" → "five five five one two three four"."""
    return " ".join(map(digit_words, match.groups()))


def currency_words(match: re.Match[str]) -> str:
    """"$4.99" → "four dollars and ninety-nine cents"; "$2.5M" → "two point five million dollars"."""
    unit, amount, scale = CURRENCIES[match[1]], match[2].replace(",", ""), match[3]
    if scale:
        return f"{number_words(amount)} {SCALES[scale]} {unit}s"
    whole, point, decimals = amount.partition(".")
    value = int(whole)
    if not point:
        return f"{cardinal_words(value)} {unit}{'' if value == 1 else 's'}"
    cents = int(decimals[:2].ljust(2, "0"))
    coins = f" and {cardinal_words(cents)} cent{'' if cents == 1 else 's'}" if cents else ""
    return f"{cardinal_words(value)} {unit}s{coins}"


def percent_words(match: re.Match[str]) -> str:
    """"-2.50%" → "negative two point five percent"."""
    return f"{_measure_words(match[1].replace(',', ''))} percent"


def unit_words(match: re.Match[str]) -> str:
    """"25°C" → "twenty-five degrees Celsius"."""
    return f"{_measure_words(match[1])} {UNIT_NAMES.get(match[2].lower(), match[2])}"


def _measure_words(text: str) -> str:
    """A number in words, its decimals those of Python's float: "2.50" is "two point five"."""
    return decimal_words(str(float(text))) if "." in text else cardinal_words(int(text))


def scientific_words(match: re.Match[str]) -> str:
    """"1e-4" → "one times ten to the negative four"."""
    return f"{number_words(match[1])} times ten to the {cardinal_words(int(match[2]))}"


def time_words(match: re.Match[str]) -> str:
    """"9:05 AM" → "nine oh five am"; "14:00" → "fourteen hundred". Seconds are left out."""
    hour, minutes = cardinal_words(int(match[1])), int(match[2])
    half = f" {match[4].lower()}" if match[4] else ""
    if minutes == 0:
        return hour + (half or " hundred")
    return f"{hour} {'oh ' if minutes < 10 else ''}{cardinal_words(minutes)}{half}"


def ordinal_number_words(match: re.Match[str]) -> str:
    """"21st" → "twenty-first"."""
    return ordinal_words(int(match[1]))


def scale_words(match: re.Match[str]) -> str:
    """"1.5K" → "one point five thousand"."""
    return f"{number_words(match[1])} {SCALES[match[2]]}"


def fraction_words(match: re.Match[str]) -> str:
    """"3/4" → "three quarters"; "1/2" → "one half". A denominator of 0 stays as it is."""
    count, parts = int(match[1]), int(match[2])
    if parts == 0:
        return match[0]
    if parts == 2:
        name = "half" if count == 1 else "halves"
    else:
        name = ("quarter" if parts == 4 else ordinal_words(parts)) + ("" if count == 1 else "s")
    return f"{cardinal_words(count)} {name}"


def decade_words(match: re.Match[str]) -> str:
    """"80s" → "eighties"; "1980s" → "nineteen eighties"."""
    century, decade = divmod(int(match[1]), 10)
    if int(match[1]) < 10:
        return DECADES[decade]
    return f"{cardinal_words(century)} {DECADES[decade]}"


def range_words(match: re.Match[str]) -> str:
    """"10-20" → "ten to twenty"."""
    return f"{cardinal_words(int(match[1]))} to {cardinal_words(int(match[2]))}"


def grouped_number_words(match: re.Match[str]) -> str:
    """"1,234.50" → "one thousand two hundred thirty-four point five zero"; long integers are rounded to a float."""
    number = match[0].replace(",", "")
    if "." in number:
        return decimal_words(number)
    value = float(number)
    if value in (float("inf"), float("-inf")):
        return match[0]
    return cardinal_words(int(value))


def digit_words(text: str) -> str:
    """Each digit as a word: "405" → "four zero five"."""
    return " ".join(SMALL[int(digit)] for digit in text)


def cardinal_words(n: int) -> str:
    """-42 → "negative forty-two"; 1200 → "twelve hundred"; 2500 → "two thousand five hundred"."""
    if n < 0:
        return f"negative {cardinal_words(-n)}"
    if n == 0:
        return SMALL[0]
    if n < 2000 and n % 100 == 0 and n % 1000:
        return f"{SMALL[n // 100]} hundred"
    words = []
    for group in GROUPS:
        n, rest = divmod(n, 1000)
        if rest:
            words.append(_below_thousand(rest) + group)
    return " ".join(reversed(words))


def _below_thousand(n: int) -> str:
    """1 … 999 in words."""
    hundreds, rest = divmod(n, 100)
    words = [f"{SMALL[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words.append(TENS[tens - 2] + (f"-{SMALL[ones]}" if ones else ""))
    elif rest:
        words.append(SMALL[rest])
    return " ".join(words)


def decimal_words(text: str) -> str:
    """A number as written: "-1.50" → "negative one point five zero"; without a point as ``cardinal_words``.

    Raises:
        ValueError: it is not digits with at most one point.
    """
    if text.startswith("-"):
        return f"negative {decimal_words(text[1:])}"
    whole, point, decimals = text.partition(".")
    if not point:
        return cardinal_words(int(whole))
    return f"{cardinal_words(int(whole or '0'))} point {digit_words(decimals)}"


def number_words(text: str) -> str:
    """Digits with or without a decimal point, in words. Raises ValueError for anything else."""
    return decimal_words(text) if "." in text else cardinal_words(int(text))


def ordinal_words(n: int) -> str:
    """21 → "twenty-first". What follows the last hyphen counts as one word, so 20 → "twentyth"."""
    words = cardinal_words(n)
    separator = "-" if "-" in words else " "
    before, found, last = words.rpartition(separator)
    if last not in IRREGULAR_ORDINALS:
        last = last.removesuffix("e") + ("h" if last.endswith("t") else "th")
    return before + found + IRREGULAR_ORDINALS.get(last, last)
