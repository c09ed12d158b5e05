"""Write numbers in American English words without commas: 342 is "three hundred forty-two".

Cardinal and ordinal numbers follow the rules of Unicode's CLDR (package unicode-rbnf).
"""

import re
from functools import cache

from unicode_rbnf import RbnfEngine

LONGEST = 15  # largest number of digits; longer numbers are read digit by digit
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@cache
def spelling(language: str) -> RbnfEngine:
    return RbnfEngine.for_language(language)


def digits(text: str) -> str:
    """Write each decimal digit of ``text`` as a word, and skip other characters: "007" is "zero zero seven"."""
    return " ".join(DIGITS[int(character)] for character in text if character.isdecimal())


def digit_groups(text: str) -> str:
    """Write digits one by one, with a comma between groups: "555-1234" is "five five five, one two three four"."""
    return ", ".join(digits(group) for group in re.findall(r"\d+", text))


def cardinal(n: int) -> str:
    """Write 1234 as "one thousand two hundred thirty-four". ``n`` is at least 0 and has at most ``LONGEST`` digits."""
    return spelling("en").format_number(n, ruleset_names=["spellout-cardinal"]).text


def ordinal(n: int) -> str:
    """Write 1 as "first", and 121 as "one hundred twenty-first"."""
    return spelling("en").format_number(n, ruleset_names=["spellout-ordinal"]).text


def number(text: str) -> str:
    """Write a number in words. It may have thousands separators and one decimal point.

    Decimals are read digit by digit ("3.14" is "three point one four"), and so are numbers with a leading zero ("007")
    or more than ``LONGEST`` digits.
    """
    whole, _, decimals = text.replace(",", "").partition(".")
    spelled = len(whole) > LONGEST or (len(whole) > 1 and whole.startswith("0") and not decimals)
    words = digits(whole) if spelled else cardinal(int(whole or 0))
    return f"{words} point {digits(decimals)}" if decimals else words


def year(n: int) -> str:
    """Write 1984 as "nineteen eighty-four", 1905 as "nineteen oh five", and 2007 as "two thousand seven".

    ``n`` is from 1000 to 2999, or the number of an airliner: 747 is "seven forty-seven".
    """
    century, rest = divmod(n, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(n)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def decade(n: int) -> str:
    """Write 1990 as "nineteen nineties", 90 as "nineties", and 1900 as "nineteen hundreds"."""
    words = year(n) if n >= 1000 else cardinal(n)
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def clock(hour: int, minute: int, twelve_hour: bool) -> str:
    """Write 10:30 as "ten thirty", 10:05 as "ten oh five", 10:00 as "ten o'clock", and 14:00 as "fourteen hundred".

    Args:
        hour: Hour of the day.
        minute: Minute of the hour.
        twelve_hour: Whether "a m" or "p m" follows, so that 10:00 is "ten". If not, 0:00 is "midnight".
    """
    if minute:
        return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    if twelve_hour:
        return cardinal(hour)
    if hour in (0, 24):
        return "midnight"
    return f"{cardinal(hour)} o'clock" if hour <= 12 else f"{cardinal(hour)} hundred"


def fraction(numerator: int, denominator: int) -> str:
    """Write 1/2 as "one half", 3/4 as "three quarters", 8/10 as "eight out of ten", and 50/50 as "fifty fifty".

    n/10 and n/100 with n > 1 are ratings ("out of"), because that is what they usually are in prose. Other proper
    fractions with denominators up to 100 are fractions. All others are read with "over": 22/7 is "twenty-two over
    seven".
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
    """Return the value of a Roman numeral: 14 for XIV."""
    values = [ROMAN[letter] for letter in numeral.upper()] + [0]
    return sum(-values[i] if values[i] < values[i + 1] else values[i] for i in range(len(numeral)))
