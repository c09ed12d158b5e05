"""Numbers in English words, American style: 342 is "three hundred forty-two", and no commas inside a number.

Cardinals and ordinals are Unicode's (CLDR, package unicode-rbnf).
"""

import re
from functools import cache

from unicode_rbnf import RbnfEngine

LONGEST = 15  # digits; longer numbers are read digit by digit
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@cache
def spelling(language: str) -> RbnfEngine:
    return RbnfEngine.for_language(language)


def digits(text: str) -> str:
    """Each decimal digit of ``text`` as a word; other characters are skipped. "007" → "zero zero seven"."""
    return " ".join(DIGITS[int(character)] for character in text if character.isdecimal())


def digit_groups(text: str) -> str:
    """Digits one by one, with a comma between groups. "555-1234" → "five five five, one two three four"."""
    return ", ".join(digits(group) for group in re.findall(r"\d+", text))


def cardinal(n: int) -> str:
    """0 → "zero"; 1234 → "one thousand two hundred thirty-four". ``n`` has at most ``LONGEST`` digits, n >= 0."""
    return spelling("en").format_number(n, ruleset_names=["spellout-cardinal"]).text


def ordinal(n: int) -> str:
    """1 → "first"; 121 → "one hundred twenty-first"."""
    return spelling("en").format_number(n, ruleset_names=["spellout-ordinal"]).text


def number(text: str) -> str:
    """A number as written, thousands separators and one decimal point allowed, in words.

    Decimals are read digit by digit ("3.14" → "three point one four"), and so are numbers with a leading zero ("007")
    or more than ``LONGEST`` digits.
    """
    whole, _, decimals = text.replace(",", "").partition(".")
    spelled = len(whole) > LONGEST or (len(whole) > 1 and whole.startswith("0") and not decimals)
    words = digits(whole) if spelled else cardinal(int(whole or 0))
    return f"{words} point {digits(decimals)}" if decimals else words


def year(n: int) -> str:
    """1984 → "nineteen eighty-four"; 1905 → "nineteen oh five"; 1900 → "nineteen hundred"; 2007 → "two thousand seven".

    ``n`` from 1000 to 2999.
    """
    century, rest = divmod(n, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(n)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def decade(n: int) -> str:
    """1990 → "nineteen nineties"; 90 → "nineties"; 1900 → "nineteen hundreds"."""
    words = year(n) if n >= 1000 else cardinal(n)
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def clock(hour: int, minute: int, twelve_hour: bool) -> str:
    """10:30 → "ten thirty"; 10:05 → "ten oh five"; 10:00 → "ten o'clock"; 14:00 → "fourteen hundred".

    ``twelve_hour``: "a m" or "p m" follows, and 10:00 is "ten". 0:00 is "midnight".
    """
    if minute:
        return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    if twelve_hour:
        return cardinal(hour)
    if hour in (0, 24):
        return "midnight"
    return f"{cardinal(hour)} o'clock" if hour <= 12 else f"{cardinal(hour)} hundred"


def fraction(numerator: int, denominator: int) -> str:
    """1/2 → "one half"; 3/4 → "three quarters"; 8/10 → "eight out of ten" (a rating); 50/50 → "fifty fifty".

    Proper fractions with denominators up to 100 are read as fractions, except n/10 and n/100 with n > 1, which in prose
    are ratings. Others are "over": 22/7 → "twenty-two over seven".
    """
    rating = (denominator in (10, 100) and numerator > 1) or (denominator == numerator == 5)
    if rating:
        return f"{cardinal(numerator)} out of {cardinal(denominator)}"
    if numerator == denominator:
        return f"{cardinal(numerator)} {cardinal(denominator)}"
    if not 2 <= denominator <= 100 or (numerator >= denominator and denominator > 4):
        return f"{cardinal(numerator)} over {cardinal(denominator)}"
    part = {2: "half", 4: "quarter"}.get(denominator) or ordinal(denominator)
    if numerator == 1:
        return f"one {part}"
    return f"{cardinal(numerator)} {'halves' if part == 'half' else part + 's'}"


ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def roman(numeral: str) -> int:
    """XIV → 14."""
    values = [ROMAN[letter] for letter in numeral.upper()] + [0]
    return sum(-values[i] if values[i] < values[i + 1] else values[i] for i in range(len(numeral)))
