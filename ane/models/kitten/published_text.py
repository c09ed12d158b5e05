"""Preprocess and split text exactly as KittenTTS 0.8.1 does: remove markup, spell contractions and numbers.

The result is the same as from TextPreprocessor(remove_punctuation=False) in kittentts/preprocess.py, with one
exception: if KittenTTS raises ValueError for a word, such as "$,", the word stays unchanged here.

A function for one kind of expression (money, times, decades, …) takes the regex match of its rule, whose groups are the
parts of the expression in order. It raises ValueError if a part is not a number. Numbers keep the peculiarities of
KittenTTS: 1200 is "twelve hundred", 20th is "twentyth", and groups of digits above the trillions are dropped.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from ane.system.errors import UserError
from ane.text import shorten
from ane.text.number_words import DIGITS, LONGEST, cardinal

IRREGULAR_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "four": "fourth",
    "five": "fifth",
    "six": "sixth",
    "seven": "seventh",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee", "₩": "won", "₿": "bitcoin"}
SCALES = {"K": "thousand", "M": "million", "B": "billion", "T": "trillion"}
UNIT_NAMES = {
    "km": "kilometers",
    "kg": "kilograms",
    "mg": "milligrams",
    "ml": "milliliters",
    "gb": "gigabytes",
    "mb": "megabytes",
    "kb": "kilobytes",
    "tb": "terabytes",
    "hz": "hertz",
    "khz": "kilohertz",
    "mhz": "megahertz",
    "ghz": "gigahertz",
    "mph": "miles per hour",
    "kph": "kilometers per hour",
    "ms": "milliseconds",
    "ns": "nanoseconds",
    "µs": "microseconds",
    "°c": "degrees Celsius",
    "c°": "degrees Celsius",
    "°f": "degrees Fahrenheit",
    "f°": "degrees Fahrenheit",
}
DECADES = (
    "hundreds",
    "tens",
    "twenties",
    "thirties",
    "forties",
    "fifties",
    "sixties",
    "seventies",
    "eighties",
    "nineties",
)


def currency_words(match: re.Match[str]) -> str:
    """Spell money: "$4.99" → "four dollars and ninety-nine cents", "$2.5M" → "two point five million dollars"."""
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


def measure_words(text: str) -> str:
    """Spell a number with the decimals of Python's float: "2.50" → "two point five"."""
    return decimal_words(str(float(text))) if "." in text else cardinal_words(int(text))


def time_words(match: re.Match[str]) -> str:
    """Spell a time: "9:05 AM" → "nine oh five am", "14:00" → "fourteen hundred". Seconds are dropped."""
    hour, minutes = cardinal_words(int(match[1])), int(match[2])
    half = f" {match[4].lower()}" if match[4] else ""
    if minutes == 0:
        return hour + (half or " hundred")
    return f"{hour} {'oh ' if minutes < 10 else ''}{cardinal_words(minutes)}{half}"


def fraction_words(match: re.Match[str]) -> str:
    """Spell a fraction: "3/4" → "three quarters", "1/2" → "one half". A fraction over 0 stays as it is."""
    count, parts = int(match[1]), int(match[2])
    if parts == 0:
        return match[0]
    if parts == 2:
        name = "half" if count == 1 else "halves"
    else:
        name = ("quarter" if parts == 4 else ordinal_words(parts)) + ("" if count == 1 else "s")
    return f"{cardinal_words(count)} {name}"


def decade_words(match: re.Match[str]) -> str:
    """Spell a decade: "80s" → "eighties", "1980s" → "nineteen eighties"."""
    century, decade = divmod(int(match[1]), 10)
    if int(match[1]) < 10:
        return DECADES[decade]
    return f"{cardinal_words(century)} {DECADES[decade]}"


def grouped_number_words(match: re.Match[str]) -> str:
    """Spell a number with commas: "1,234.50" → "one thousand two hundred thirty-four point five zero".

    Long whole numbers lose digits, as in KittenTTS, which converts them to a float.
    """
    number = match[0].replace(",", "")
    if "." in number:
        return decimal_words(number)
    value = float(number)
    if value in (float("inf"), float("-inf")):
        return match[0]
    return cardinal_words(int(value))


def digit_words(text: str) -> str:
    """Spell each digit: "405" → "four zero five"."""
    return " ".join(DIGITS[int(digit)] for digit in text)


def cardinal_words(n: int) -> str:
    """Spell a whole number: -42 → "negative forty-two", 1200 → "twelve hundred", 2500 → "two thousand five hundred"."""
    if n < 0:
        return f"negative {cardinal_words(-n)}"
    if n < 2000 and n % 100 == 0 and n % 1000:
        return f"{cardinal(n // 100)} hundred"
    spelt = n % 10**LONGEST
    return cardinal(spelt) if spelt or not n else ""


def decimal_words(text: str) -> str:
    """Spell a number with all its decimals: "-1.50" → "negative one point five zero".

    The digits before the point are spelt by ``cardinal_words``.

    Raises:
        ValueError: The text is not a row of digits with at most one decimal point.
    """
    if text.startswith("-"):
        return f"negative {decimal_words(text[1:])}"
    whole, point, decimals = text.partition(".")
    if not point:
        return cardinal_words(int(whole))
    return f"{cardinal_words(int(whole or '0'))} point {digit_words(decimals)}"


def number_words(text: str) -> str:
    """Spell a number with or without a decimal point. Raises ValueError if the text is not a number."""
    return decimal_words(text) if "." in text else cardinal_words(int(text))


def ordinal_words(n: int) -> str:
    """Spell an ordinal number: 21 → "twenty-first". As in KittenTTS, 20 → "twentyth"."""
    words = cardinal_words(n)
    before, separator, last = words.rpartition("-" if "-" in words else " ")
    if last not in IRREGULAR_ORDINALS:
        last = last.removesuffix("e") + ("h" if last.endswith("t") else "th")
    return before + separator + IRREGULAR_ORDINALS.get(last, last)


MAX_WORD = 1000  # largest number of characters in a word; some patterns take quadratic time within a word
MAXIMUM = 400  # largest number of characters in a chunk, without the comma that is added
MARKS = ".!?,;:"  # a chunk that does not end with one of these marks gets a comma

NUMBER = r"\d+(?:\.\d+)?"
GROUPED = r"[\d,]+(?:\.\d+)?"  # a number with thousands separators; it also matches commas without digits
NO_DIGIT_BEFORE = r"(?<!\d-)(?<!\d)\b"
NO_DIGIT_AFTER = r"\b(?!-\d)"
UNITS = r"km|kg|mg|ml|gb|mb|kb|tb|hz|khz|mhz|ghz|mph|kph|°[cf]|[cf]°|ms|ns|µs"

URL = re.compile(r"(?:https?://|www\.)\S+")
EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[a-z]{2,}\b", re.IGNORECASE)
TAG = re.compile(r"<[^>]+>")


@dataclass(frozen=True)
class SpokenRule:
    """Replaces the matches of a pattern by words. If ``words`` raises ValueError, the match stays unchanged."""

    pattern: re.Pattern[str]
    words: Callable[[re.Match[str]], str]

    def __call__(self, text: str) -> str:
        return self.pattern.sub(self._replacement, text)

    def _replacement(self, match: re.Match[str]) -> str:
        try:
            return self.words(match)
        except ValueError:
            return match[0]


CONTRACTIONS = tuple(
    (re.compile(rf"\b{pattern}\b", re.IGNORECASE), words)
    for pattern, words in (
        ("can't", "cannot"),
        ("won't", "will not"),
        ("shan't", "shall not"),
        ("ain't", "is not"),
        ("let's", "let us"),
        (r"(\w+)n't", r"\1 not"),
        (r"(\w+)'re", r"\1 are"),
        (r"(\w+)'ve", r"\1 have"),
        (r"(\w+)'ll", r"\1 will"),
        (r"(\w+)'d", r"\1 would"),
        (r"(\w+)'m", r"\1 am"),
        ("it's", "it is"),
    )
)

# The order matters. For example, a date must be replaced before the rule for plain numbers sees its numbers.
NUMBER_RULES = tuple(
    SpokenRule(re.compile(pattern), words)
    for pattern, words in (
        (
            r"\b(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})\b",
            lambda match: " dot ".join(map(digit_words, match.groups())),
        ),
        (r"(?<!\d)-\.(\d)", lambda match: f"-0.{match[1]}"),
        (r"(?<!\d)\.(\d)", lambda match: f"0.{match[1]}"),
        (rf"([$€£¥₹₩₿])\s*({GROUPED})\s*([KMBT])?(?![a-zA-Z\d])", currency_words),
        (rf"(-?{GROUPED})\s*%", lambda match: f"{measure_words(match[1].replace(',', ''))} percent"),  # "-2.50%"
        (
            rf"(?<![a-zA-Z\d])(-?{NUMBER})[eE]([+-]?\d+)(?![a-zA-Z\d])",  # "1e-4"
            lambda match: f"{number_words(match[1])} times ten to the {cardinal_words(int(match[2]))}",
        ),
        (r"(?i)\b(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(am|pm)?\b", time_words),
        (r"(?i)\b(\d+)(?:st|nd|rd|th)\b", lambda match: ordinal_words(int(match[1]))),
        (
            rf"(?i)({NUMBER})\s*({UNITS})\b",  # "25°C"
            lambda match: f"{measure_words(match[1])} {UNIT_NAMES.get(match[2].lower(), match[2])}",
        ),
        (
            rf"(?<![a-zA-Z])({NUMBER})\s*([KMBT])(?![a-zA-Z\d])",
            lambda match: f"{number_words(match[1])} {SCALES[match[2]]}",
        ),
        (r"\b(\d+)\s*/\s*(\d+)\b", fraction_words),
        (r"\b(\d{1,3})0s\b", decade_words),
        # Telephone numbers are spelt digit by digit.
        *(
            (pattern, lambda match: " ".join(map(digit_words, match.groups())))
            for pattern in (
                rf"{NO_DIGIT_BEFORE}(\d{{1,2}})-(\d{{3}})-(\d{{3}})-(\d{{4}}){NO_DIGIT_AFTER}",
                rf"{NO_DIGIT_BEFORE}(\d{{3}})-(\d{{3}})-(\d{{4}}){NO_DIGIT_AFTER}",
                rf"(?<!\d-)\b(\d{{3}})-(\d{{4}}){NO_DIGIT_AFTER}",
            )
        ),
        (
            r"(?<!\w)(\d+)-(\d+)(?!\w)",
            lambda match: f"{cardinal_words(int(match[1]))} to {cardinal_words(int(match[2]))}",
        ),
        (r"\b([a-zA-Z][a-zA-Z0-9]*)-(\d[\d.]*)(?=[^\d.]|$)", lambda match: f"{match[1]} {match[2]}"),
        (rf"(?<![a-zA-Z])-?{GROUPED}", grouped_number_words),
    )
)


def preprocess(text: str) -> str:
    """Prepare a text as KittenTTS does. The result is in lower case and on one line, and may be empty.

    The function composes characters (NFC), removes HTML tags, URLs and e-mail addresses, and spells out contractions
    and numbers.

    Raises:
        UserError: A word has more than ``MAX_WORD`` characters.
    """
    longest = max(text.split(), key=len, default="")
    if len(longest) > MAX_WORD:
        raise UserError(
            f"{shorten(longest)!r} is a word of {len(longest)} characters, and a word can have at most {MAX_WORD}: "
            "insert spaces into it"
        )
    before, end, after = unicodedata.normalize("NFC", text).rpartition(">")  # no tag can begin after the last ">"
    text = URL.sub("", TAG.sub(" ", before + end) + after)
    text = EMAIL.sub("", text) if "@" in text else text
    for pattern, words in CONTRACTIONS:
        text = pattern.sub(words, text)
    for rule in NUMBER_RULES:
        text = rule(text)
    return " ".join(text.lower().split())


def split_published(text: str, maximum: int = MAXIMUM) -> list[str]:
    """Split a preprocessed text into chunks as KittenTTS 0.8.1 does (chunk_text of kittentts/onnx_model.py).

    Every run of ".", "!" and "?" ends a chunk and is dropped, even in "3.14". A sentence of more than ``maximum``
    characters is split between words, but a word is never split. A chunk that ends without a punctuation mark gets a
    comma. If a text consists only of ".", "!" and "?", there are no chunks.
    """
    sentences = [sentence for part in re.split("[.!?]+", text) if (sentence := part.strip())]
    return [
        chunk if chunk.endswith(tuple(MARKS)) else f"{chunk},"
        for sentence in sentences
        for chunk in _fill(sentence, maximum)
    ]


def _fill(sentence: str, maximum: int) -> list[str]:
    """Split a sentence between words into pieces of at most ``maximum`` characters.

    As in KittenTTS, the first word counts one character too many.
    """
    if len(sentence) <= maximum:
        return [sentence]
    lines = [""]
    for word in sentence.split():
        if len(lines[-1]) + len(word) + 1 <= maximum:
            lines[-1] += f" {word}" if lines[-1] else word
        else:
            lines.append(word)
    return [line for line in lines if line]
