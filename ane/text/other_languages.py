"""Numbers in words of languages other than English, for fine-tunes that speak them.

Only numbers are spelt out, by the rules of Unicode's CLDR (package unicode-rbnf): cardinals, with dots between
thousands and a decimal comma. Ordinals, dates, units and abbreviations are left as they are written.
"""

import re
from collections.abc import Callable
from functools import partial

from ane.text.number_words import LONGEST, spelling
from ane.text.upstream import normalise_basic

# what is said for the comma of a decimal fraction; CLDR's Polish reads the digits after it as zeros
COMMA = {"de": "komma", "es": "coma", "fr": "virgule", "it": "virgola", "nl": "komma", "pl": "przecinek",
         "pt": "vírgula"}
NUMBER = re.compile(r"(\d{1,3}(?:[.\u00a0\u202f]\d{3})+(?!\d)|\d+)(?:,(\d+))?")
BORDER = re.compile(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")         # between a letter and a digit


def normalise_language(text: str, language: str) -> str:
    """Lower case, single spaces, numbers in words of ``language``, a key of ``COMMA``."""
    def spelt(found: re.Match[str]) -> str:
        whole, fraction = _whole(re.sub(r"\D", "", found[1]), language), found[2]
        return whole if fraction is None else f"{whole} {COMMA[language]} {_digits(fraction, language)}"

    return normalise_basic(NUMBER.sub(spelt, BORDER.sub(" ", text)))


def _whole(digits: str, language: str) -> str:
    if len(digits) > LONGEST or (digits[0] == "0" and len(digits) > 1):
        return _digits(digits, language)
    return spelling(language).format_number(int(digits)).text.replace("\u00ad", "")


def _digits(digits: str, language: str) -> str:
    return " ".join(_whole(digit, language) for digit in digits)


LANGUAGES: dict[str, Callable[[str], str]] = {name: partial(normalise_language, language=name) for name in COMMA}
