"""Normalise text as upstream does (tortoise/utils/tokenizer.py), with its quirks, so that token ids are equal.

Upstream transliterates with Unidecode, which is GPL. This module uses ``anyascii`` instead. Where both differ,
``TRANSLITERATION`` and ``GREEK`` have upstream's result. In lower case, the result equals upstream's for:

* ASCII, Latin-1 and Latin Extended-A
* modern and ancient Greek, and the alphabets of Russian, Ukrainian, Bulgarian and Serbian
* General Punctuation, currency signs, fractions, superscripts, and circled and full-width characters
* common arrows, and emoji, which are dropped

Some characters of these groups become something else than in upstream:

* phonetic letters (Latin Extended-B, IPA, modifier letters) and rare symbols
* historic Greek and Cyrillic letters
* Armenian, Georgian, Hebrew, Arabic, the scripts of India, and Thai
* kana (one sign in six), Hangul (two syllables in five) and Chinese (one character in eight)
"""

import re
import unicodedata

from anyascii import anyascii

from ane.text import number_words
from ane.text.rule import TextRule, apply_rules, rule

LONGEST = 33  # number of digits in the longest number that upstream can read as one number
SCALES = (
    "",
    "thousand",
    "million",
    "billion",
    "trillion",
    "quadrillion",
    "quintillion",
    "sextillion",
    "septillion",
    "octillion",
    "nonillion",
)

TRANSLITERATION = {
    "¢": "C/",
    "£": "PS",
    "¤": "$?",
    "¥": "Y=",
    "₠": "ECU",
    "₡": "CL",
    "₣": "FF",
    "₥": "mil",
    "₪": "NS",
    "₴": "UAH",
    "₵": "C|",
    "₶": "L",
    "₺": "L",
    "₼": "m",
    "₽": "R",
    "₾": "l",
    "⃀": "",
    "￠": "/C",
    "￡": "PS",
    "￥": "Y=",
    "§": "SS",
    "·": "*",
    "×": "x",
    "ĸ": "k",
    "\u200b": " ",
    "—": "--",
    "―": "--",
    "‚": ",",
    "„": ",,",
    "‣": "*>",
    "‧": ".",
    "\u2028": "\n",
    "\u2029": "\n\n",
    "⁃": "--",
    "⁅": "-[",
    "⁆": "]-",
    "⁋": "PP",
    "⁌": "(]",
    "⁍": "[)",
    "⁒": "%",
    "℃": "degC",
    "℉": "degF",
    "№": "No. ",
    "℠": "(sm)",
    "™": "(tm)",
    "℅": " c/o ",
    "←": "-",
    "→": "-",
    "↔": "-",
    "⇐": "=",
    "⇒": "=",
    "⇔": "=",
    "↑": "|",
    "↓": "|",
    "、": ", ",
    "。": ". ",
    "」": "] ",
    "『": "{",
    "』": "} ",
    "〉": "> ",
    "》": ">> ",
    "】": ")] ",
    "−": "-",
    "∕": "/",
    "∖": "\\",
    "∗": "*",
    "∣": "|",
    "∶": ":",
    "∼": "~",
    "≤": "<=",
    "≥": ">=",
    "♯": "#",
    "♠": "spades",
    "♤": "spades",
    "♥": "hearts",
    "♡": "hearts",
    "♦": "diamonds",
    "♢": "diamonds",
    "♣": "clubs",
    "♧": "clubs",
    "й": "i",
    "ю": "iu",
    "я": "ia",
    "ё": "io",
    "ї": "yi",
    "ґ": "g'",
    "ћ": "tsh",
    "Й": "I",
    "Ю": "Iu",
    "Я": "Ia",
    "Ё": "Io",
    "Ї": "Yi",
    "Ґ": "G'",
    "Ћ": "Tsh",
    "Ξ": "Ks",
    "\u037e": "?",
} | dict.fromkeys("⁏⁐⁑⁔⁕⁖⁘⁙⁚⁛⁜⁝⁞", "")

# The classical transliteration of Greek. Upstream drops accents and breathings.
GREEK = {
    "α": "a",
    "β": "b",
    "γ": "g",
    "δ": "d",
    "ε": "e",
    "ζ": "z",
    "η": "e",
    "θ": "th",
    "ι": "i",
    "κ": "k",
    "λ": "l",
    "μ": "m",
    "ν": "n",
    "ξ": "x",
    "ο": "o",
    "π": "p",
    "ρ": "r",
    "σ": "s",
    "ς": "s",
    "τ": "t",
    "υ": "u",
    "φ": "ph",
    "χ": "kh",
    "ψ": "ps",
    "ω": "o",
}

ABBREVIATIONS = tuple(
    rule(short, rf"\b{short}\.", long)
    for short, long in {
        "mrs": "misess",  # upstream's spelling
        "mr": "mister",
        "dr": "doctor",
        "st": "saint",
        "co": "company",
        "jr": "junior",
        "maj": "major",
        "gen": "general",
        "drs": "doctors",
        "rev": "reverend",
        "lt": "lieutenant",
        "hon": "honorable",
        "sgt": "sergeant",
        "capt": "captain",
        "esq": "esquire",
        "ltd": "limited",
        "col": "colonel",
        "ft": "fort",
    }.items()
)


def normalise_upstream(text: str) -> str:
    """Apply upstream's english_cleaners: ASCII, lower case, numbers and abbreviations in words, no double quotes.

    Upstream raises an error for a number that is too large for inflect, and for "$,5". Here, the digits of such a
    number are read one by one, and "$,5" stays unchanged.
    """
    text = apply_rules((*NUMBER_RULES, *ABBREVIATIONS), "".join(map(transliterate, text)).lower())
    return re.sub(r"\s+", " ", text).replace('"', "")


def normalise_basic(text: str) -> str:
    """Apply upstream's basic_cleaners: lower case, and each run of whitespace as one space."""
    return re.sub(r"\s+", " ", text.lower())


def transliterate(character: str) -> str:
    """Write one character in ASCII, as upstream does. This module's docstring lists the differences."""
    if character.isascii():
        return character
    if character in TRANSLITERATION:
        return TRANSLITERATION[character]
    letter = unicodedata.normalize("NFD", character)[0]
    if letter.lower() in GREEK:
        ascii_letter = GREEK[letter.lower()]
        return ascii_letter if letter.islower() else ascii_letter.capitalize()
    if "∀" <= character <= "⋿" or "☀" <= character <= "➿" or "\U0001f200" <= character <= "\U0001faff":
        return ""  # upstream drops mathematical operators, dingbats and emoji, but anyascii would spell them
    ascii_text = anyascii(character)
    if "一" <= character <= "\u9fff":
        return f"{ascii_text} "
    is_fraction = "/" in ascii_text and ("¼" <= character <= "¾" or "⅐" <= character <= "⅟")
    return f" {ascii_text}{' ' if character >= '⅐' and ascii_text != '1/' else ''}" if is_fraction else ascii_text


def expand_dollars(match: re.Match) -> str:
    """Write $1.50 as "1 dollar, 50 cents". Later rules expand the numbers."""
    amount = match[1]
    whole, _, decimals = amount.partition(".")
    if "." in decimals or "," in amount or len(amount) > LONGEST:
        return f"{amount} dollars"
    dollars, cents = int(whole or 0), int(decimals or 0)
    words = [f"{n} {unit}{'' if n == 1 else 's'}" for n, unit in ((dollars, "dollar"), (cents, "cent")) if n]
    return ", ".join(words) or "zero dollars"


def expand_integer(match: re.Match) -> str:
    """Read a number between 1000 and 3000 as a year. A larger number has commas in its words, which inflect writes."""
    if len(match[0]) > LONGEST:
        return number_words.digits(match[0])
    n = int(match[0])
    if 1000 < n < 1010:
        return f"ten oh {number_words.cardinal(n % 10)}"
    return number_words.year(n) if 1000 < n < 3000 else inflected(n, " ")


def expand_ordinal(match: re.Match) -> str:
    if len(match[1]) > LONGEST:
        return f"{number_words.digits(match[1])}{match[2]}"
    n = int(match[1])
    *words, last = inflected(n, " and ").split(" ")
    return " ".join([*words, number_words.ordinal(n % 100) if n % 100 else f"{last}th"])


def inflected(n: int, joint: str) -> str:
    """Write a number in words like the package inflect, which upstream uses, with a comma after each group of digits.

    Args:
        n: The number.
        joint: Text before the words of the last two digits.
    """
    groups = [(n // 1000**power % 1000, scale) for power, scale in enumerate(SCALES)][::-1]
    parts = [
        f"{number_words.cardinal(group).replace('hundred ', f'hundred{joint}')} {scale}".rstrip()
        for group, scale in groups
        if group
    ] or ["zero"]
    last = [parts.pop()] if len(parts) > 1 and 0 < n % 1000 < 100 else []
    return joint.join([", ".join(parts), *last])


# The rules in upstream's order. Upstream's rule for "£" is missing, because it never matches: transliteration has
# turned the sign into "ps". The look-behinds do not change which text matches, but a long run of digits would take
# quadratic time without them.
NUMBER_RULES: tuple[TextRule, ...] = (
    rule("1,234", r"[0-9][0-9,]+[0-9]", lambda match: match[0].replace(",", "")),
    rule("$5", r"\$([0-9.,]*[0-9]+)", expand_dollars),
    rule("1.5", r"(?<![0-9])[0-9]+\.[0-9]+", lambda match: match[0].replace(".", " point ")),
    rule("1st", r"(?<![0-9])([0-9]+)(st|nd|rd|th)", expand_ordinal),
    rule("1234", r"[0-9]+", expand_integer),
)
