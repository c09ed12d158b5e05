"""Recognise other European languages than English, and write their numbers in words.

The commonest words of a text decide its language. Writing numbers in words helps models that were fine-tuned for the
language. Only cardinal numbers are written in words, by the rules of Unicode's CLDR (package unicode-rbnf). They may
have dots between thousands and a decimal comma. Ordinals, dates, units and abbreviations stay unchanged.
"""

import re
from collections.abc import Callable
from functools import partial

from ane.text.number_words import LONGEST, spelling
from ane.text.upstream import normalise_basic

# The word for the decimal comma in each language. The digits after it are read one by one, because CLDR's Polish rules
# read them as zeros.
COMMA = {
    "de": "komma",
    "es": "coma",
    "fr": "virgule",
    "it": "virgola",
    "nl": "komma",
    "pl": "przecinek",
    "pt": "vírgula",
}
NUMBER = re.compile(r"(\d{1,3}(?:[.\u00a0\u202f]\d{3})+(?!\d)|\d+)(?:,(\d+))?")
BORDER = re.compile(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")  # between a letter and a digit


def normalise_language(text: str, language: str) -> str:
    """Write a text in lower case with single spaces, and its numbers in words. ``language`` is a key of ``COMMA``."""

    def spelt(match: re.Match[str]) -> str:
        whole, fraction = _whole(re.sub(r"\D", "", match[1]), language), match[2]
        return whole if fraction is None else f"{whole} {COMMA[language]} {_digits(fraction, language)}"

    return normalise_basic(NUMBER.sub(spelt, BORDER.sub(" ", text)))


def _whole(digits: str, language: str) -> str:
    if len(digits) > LONGEST or (digits[0] == "0" and len(digits) > 1):
        return _digits(digits, language)
    return spelling(language).format_number(int(digits)).text.replace("\u00ad", "")


def _digits(digits: str, language: str) -> str:
    return " ".join(_whole(digit, language) for digit in digits)


LANGUAGES: dict[str, Callable[[str], str]] = {name: partial(normalise_language, language=name) for name in COMMA}


LEAST, SHARE = 4, 0.2  # a text must have this many common words of a language, and this share of all its words
ENGLISH = frozenset(
    re.findall(
        r"\w+",
        "the and of to a in is it i that was he she you for not with as his her on be at by we they this had have "
        "but from are or said my me so if what all there were",
    )
)
COMMON = {
    name: frozenset(words.split()) - ENGLISH
    for name, words in {  # the lists lack words that are also English
        "German": "der das und ich nicht ist ein eine auf zu dem den wir sie es für von sich mit im bin möchte nach",
        "French": "le la les et je ne pas est un une des du dans que qui vous nous pour sur elle il au très",
        "Spanish": "el la los las y es un una de que en con por para se del lo yo muy está",
        "Italian": "il lo la gli e non è un una di che con per si della sono mi questo",
        "Portuguese": "os e não é um uma de que com por para se da em eu muito ao",
        "Dutch": "de het een en ik niet met van op te dat voor zijn wij maar ook naar",
        "Polish": "nie się jest w na z że jak ale był co tak po jestem",
    }.items()
}


def foreign_language(text: str) -> str:
    """Return the name of a text's language. Returns "" if it is English, or if the text is too short to tell."""
    words = re.findall(r"[^\W\d_]+", text.casefold())
    counts = {name: sum(word in common for word in words) for name, common in COMMON.items()}
    best = max(counts, key=lambda name: counts[name])
    known = counts[best] >= max(LEAST, SHARE * len(words), 2 * sum(word in ENGLISH for word in words))
    return best if known else ""
