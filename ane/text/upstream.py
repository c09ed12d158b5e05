"""Text normalisation as upstream does it (tortoise/utils/tokenizer.py), quirks included, so that token ids agree.

Upstream transliterates with Unidecode, which is GPL; here ``anyascii`` does it, and ``TRANSLITERATION`` holds what
upstream makes of a sign where the two part. The outcome is identical for ASCII, Latin-1, Latin Extended-A, General
Punctuation (quotation marks, dashes, bullets, spaces), currency signs, fractions, superscripts, circled and full-width
characters, common arrows, ™ and the like, and emoji (dropped). It is not always identical for phonetic letters (Latin
Extended-B, IPA), rare symbols, and scripts other than Latin: Greek, Cyrillic and kana differ in some letters (й is "y"
here, "i" upstream), and one Chinese character in eight is romanised differently.
"""

import re
from collections.abc import Callable

from anyascii import anyascii

from ane.text import numbers

COUNTABLE = 33      # digits of the longest number that inflect reads as a whole, some decillions

TRANSLITERATION = {
    "¢": "C/", "£": "PS", "¤": "$?", "¥": "Y=", "₠": "ECU", "₡": "CL", "₣": "FF", "₥": "mil", "₪": "NS", "₴": "UAH",
    "₵": "C|", "₶": "L", "₺": "L", "₼": "m", "₽": "R", "₾": "l", "⃀": "", "￠": "/C", "￡": "PS", "￥": "Y=",
    "§": "SS", "·": "*", "×": "x", "ĸ": "k",
    "\u200b": " ", "—": "--", "―": "--", "‚": ",", "„": ",,", "‣": "*>", "‧": ".", "\u2028": "\n", "\u2029": "\n\n",
    "⁃": "--", "⁅": "-[", "⁆": "]-", "⁋": "PP", "⁌": "(]", "⁍": "[)", "⁒": "%", "℃": "degC", "℉": "degF", "№": "No. ",
    "℠": "(sm)", "™": "(tm)", "℅": " c/o ", "←": "-", "→": "-", "↔": "-", "⇐": "=", "⇒": "=", "⇔": "=", "↑": "|",
    "↓": "|", "、": ", ", "。": ". ", "」": "] ", "『": "{", "』": "} ", "〉": "> ", "》": ">> ", "】": ")] ",
    "−": "-", "∕": "/", "∖": "\\", "∗": "*", "∣": "|", "∶": ":", "∼": "~", "≤": "<=", "≥": ">=", "♯": "#",
    "♠": "spades", "♤": "spades", "♥": "hearts", "♡": "hearts", "♦": "diamonds", "♢": "diamonds", "♣": "clubs",
    "♧": "clubs",
} | dict.fromkeys("⁏⁐⁑⁔⁕⁖⁘⁙⁚⁛⁜⁝⁞", "")

ABBREVIATIONS = [(re.compile(rf"\b{short}\."), long) for short, long in {
    "mrs": "misess",       # upstream's spelling
    "mr": "mister", "dr": "doctor", "st": "saint", "co": "company", "jr": "junior", "maj": "major", "gen": "general",
    "drs": "doctors", "rev": "reverend", "lt": "lieutenant", "hon": "honorable", "sgt": "sergeant", "capt": "captain",
    "esq": "esquire", "ltd": "limited", "col": "colonel", "ft": "fort",
}.items()]


def normalise_upstream(text: str) -> str:
    """Upstream's english_cleaners: ASCII, lower case, numbers and abbreviations in words, no double quotes.

    Where upstream raises (a number beyond inflect's range, "$,5") the digits are read one by one, or left in place.
    """
    text = "".join(map(transliterate, text)).lower()
    for pattern, say in NUMBERS:
        text = pattern.sub(say, text)
    for pattern, long in ABBREVIATIONS:
        text = pattern.sub(long, text)
    return re.sub(r"\s+", " ", text).replace('"', "")


def normalise_basic(text: str) -> str:
    """Upstream's basic_cleaners: lower case, each run of whitespace one space."""
    return re.sub(r"\s+", " ", text.lower())


def transliterate(character: str) -> str:
    """ASCII for one character, as Unidecode gives it (see the module's docstring for where that holds)."""
    if character.isascii():
        return character
    if character in TRANSLITERATION:
        return TRANSLITERATION[character]
    if "∀" <= character <= "⋿" or "☀" <= character <= "➿" or "\U0001f200" <= character <= "\U0001faff":
        return ""       # mathematical operators, dingbats, emoji: nothing upstream, names or look-alikes in anyascii
    ascii_text = anyascii(character)
    if "一" <= character <= "\u9fff":
        return f"{ascii_text} "
    is_fraction = "/" in ascii_text and ("¼" <= character <= "¾" or "⅐" <= character <= "⅟")
    return f" {ascii_text}{' ' if character >= '⅐' and ascii_text != '1/' else ''}" if is_fraction else ascii_text


def say_dollars(match: re.Match) -> str:
    amount = match[1]
    whole, _, decimals = amount.partition(".")
    if "." in decimals or "," in amount or len(amount) > COUNTABLE:
        return f"{amount} dollars"
    dollars, cents = int(whole or 0), int(decimals or 0)
    said = [f"{n} {unit}{'' if n == 1 else 's'}" for n, unit in ((dollars, "dollar"), (cents, "cent")) if n]
    return ", ".join(said) or "zero dollars"


def say_integer(match: re.Match) -> str:
    """Numbers between 1000 and 3000 are read as years are; "," stays inside larger ones, as inflect puts it."""
    if len(match[0]) > COUNTABLE:
        return numbers.digits(match[0])
    n = int(match[0])
    if not 1000 < n < 3000:
        return numbers.engine().number_to_words(n, andword="")
    if n == 2000:
        return "two thousand"
    if 2000 < n < 2010:
        return "two thousand " + numbers.engine().number_to_words(n % 100)
    if n % 100 == 0:
        return numbers.engine().number_to_words(n // 100) + " hundred"
    return numbers.engine().number_to_words(n, andword="", zero="oh", group=2).replace(", ", " ")


def say_ordinal(match: re.Match) -> str:
    if len(match[1]) > COUNTABLE:
        return f"{numbers.digits(match[1])}{match[2]}"
    return numbers.engine().number_to_words(match[0])


# In upstream's order. Its rule for "£" never fires, since transliteration has made "ps" of the sign; it is left out.
NUMBERS: list[tuple[re.Pattern, Callable[[re.Match], str]]] = [
    (re.compile(r"[0-9][0-9,]+[0-9]"), lambda match: match[0].replace(",", "")),
    (re.compile(r"\$([0-9.,]*[0-9]+)"), say_dollars),
    (re.compile(r"[0-9]+\.[0-9]+"), lambda match: match[0].replace(".", " point ")),
    (re.compile(r"([0-9]+)(st|nd|rd|th)"), say_ordinal),
    (re.compile(r"[0-9]+"), say_integer),
]
