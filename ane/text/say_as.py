"""Turn the text of SSML's ``<say-as>`` into words, for the values of interpret-as that W3C, Polly and Google define."""

import re
import unicodedata

from ane.text import number_words
from ane.text.date_time_rules import MONTHS, RULES, TIME_RULES, month_day_words
from ane.text.english import SIGN_WORDS
from ane.text.markup_rules import ADDRESS_SIGNS
from ane.text.rule import TextRule, apply_rules

SIGN_NAMES = (
    {sign: words.strip() for sign, words in ADDRESS_SIGNS.items()}
    | SIGN_WORDS
    | {
        "#": "hash",
        "*": "star",
        "&": "ampersand",
        "!": "exclamation mark",
        "?": "question mark",
        ",": "comma",
        ";": "semicolon",
        "'": "apostrophe",
        '"': "quotation mark",
        "(": "left parenthesis",
        ")": "right parenthesis",
        "<": "less than",
        ">": "greater than",
        "\\": "backslash",
        "|": "bar",
    }
)
TIME = re.compile(r"(?:[01]?\d|2[0-4]):[0-5]\d(?::[0-5]\d)?(?:\s?[aApP]\.?[mM]\.?)?|\d{1,2}\s?[aApP]\.?[mM]\.?")
BLEEPED = ("expletive", "bleep")  # values for which a pause replaces the word. Other systems beep
DATE_FORMATS = ("mdy", "dmy", "ymd", "md", "dm", "ym", "my", "y", "m", "d")


def say_as(text: str, kind: str, form: str = "") -> str:
    """Turn the text of ``<say-as>`` into words.

    Args:
        text: Text of the element.
        kind: Value of the attribute interpret-as, a key of ``KINDS``, such as "characters" or "cardinal".
        form: Value of the attribute format, or "".

    Raises:
        ValueError: ``kind`` or ``form`` is unknown, or the text cannot be read in this way.
    """
    text = " ".join(text.split())
    if kind not in KINDS:
        raise ValueError(f"interpret-as {kind!r} is not supported: use one of {', '.join((*KINDS, *BLEEPED))}")
    if not text:
        raise ValueError("<say-as> is empty: write what to say in it")
    return KINDS[kind](text, form)


def characters(text: str, _: str) -> str:
    """Read "A-1" as "A, dash, one". Letters keep their case, so that the normaliser reads their names."""
    names = [character_name(character) for character in text if not character.isspace()]
    return ", ".join(names)


def character_name(character: str) -> str:
    if character.isdecimal():
        return number_words.digits(character)
    letter = unicodedata.normalize("NFD", character)[0]
    if letter.isascii() and letter.isalpha():
        return letter.upper()
    if character in SIGN_NAMES:
        return SIGN_NAMES[character]
    raise ValueError(f"{character!r} has no name that could be read: use <sub alias=…> for it")


def cardinal(text: str, _: str) -> str:
    match = re.fullmatch(r"([+-]?)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)", text)
    if not match or not text.isascii():
        raise ValueError(f"{text!r} is not a number: write it in digits")
    return {"-": "minus ", "+": "plus ", "": ""}[match[1]] + number_words.number(match[2])


def ordinal(text: str, _: str) -> str:
    match = re.fullmatch(rf"(\d{{1,{number_words.LONGEST}}})(?:st|nd|rd|th)?", text.replace(",", ""))
    if not match or not text.isascii():
        raise ValueError(f"{text!r} is not a whole number: write it in digits")
    return number_words.ordinal(int(match[1]))


def telephone(text: str, _: str) -> str:
    if not re.fullmatch(r"\+?[\d\s().-]{2,40}", text) or not re.search(r"\d", text):
        raise ValueError(f"{text!r} is not a telephone number: use only digits, +, -, ., spaces and brackets")
    return ("plus " if text.startswith("+") else "") + number_words.digit_groups(text)


def date(text: str, form: str) -> str:
    """Read a date. ``form`` is the order of its parts, such as "mdy".

    If ``form`` is "", the date must be one that the normaliser's rules know.
    """
    if not form:
        return by_rules(text, RULES, "a date: add a format such as mdy")
    form = re.sub(r"(.)\1+", r"\1", form)  # Polly and Google write "yyyymmdd" for "ymd"
    if form not in DATE_FORMATS:
        raise ValueError(f"format {form!r} is not supported: use one of {', '.join(DATE_FORMATS)}")
    parts = re.findall(r"\d+|[^\W\d_]+", re.sub(r"^(\d{4})(\d\d)(\d\d)$", r"\1 \2 \3", text))
    fault = ValueError(f"{text!r} is not a date in the format {form}: write its parts in that order, as in 12/31/2024")
    if len(parts) != len(form):
        raise fault
    values = dict(zip(form, parts, strict=True))
    year, month, day = (values.get(part, "") for part in "ymd")
    if month and not month.isdigit():
        number = next((i for i, name in enumerate(MONTHS, 1) if len(month) > 2 and name.startswith(month.lower())), 0)
    else:
        number = int(month or 1)
    if not (
        1 <= number <= 12
        and (not day or (day.isdigit() and 1 <= int(day) <= 31))
        and (not year or re.fullmatch(r"[12]\d{3}", year))
    ):
        raise fault
    if month and day:
        return month_day_words(number, day, year or None)
    words = [number_words.ordinal(int(day))] if day else [MONTHS[number - 1]] if month else []
    return " ".join([*words, *([number_words.year(int(year))] if year else [])])


def time(text: str, form: str) -> str:
    if form not in ("", "hms12", "hms24"):
        raise ValueError(f"format {form!r} is not supported: use hms12 or hms24")
    if duration := re.fullmatch(r"(\d{1,2})'(?:(\d{1,2})(?:\"|''))?", text):
        parts = ((duration[1], "minute"), (duration[2], "second"))
        return " ".join(
            f"{number_words.number(count)} {unit}{'s' * (int(count) != 1)}" for count, unit in parts if count
        )
    if TIME.fullmatch(text):
        return by_rules(text, TIME_RULES, "a time: write it as 14:30 or 2:30 pm")
    raise ValueError(f"{text!r} is not a time: write it as 14:30 or 2:30 pm")


def digits(text: str, _: str) -> str:
    if not re.fullmatch(r"[\d\s.,-]{1,200}", text) or not re.search(r"\d", text):
        raise ValueError(f"{text!r} has other characters than digits: remove them")
    return number_words.digit_groups(text)


def fraction(text: str, _: str) -> str:
    """Read "2/9" as "two ninths", and "3+1/2" as "three and one half"."""
    match = re.fullmatch(r"(?:(\d{1,9})(?:\s*\+\s*|\s+))?(\d{1,9})\s*/\s*(\d{1,9})", text)
    if not match or int(match[3]) < 2:
        raise ValueError(f"{text!r} is not a fraction: write it as 2/9 or 3+1/2")
    one = int(match[2]) == 1
    below = {2: "half" if one else "halves"}.get(int(match[3])) or number_words.ordinal(int(match[3])) + "s" * (not one)
    return f"{f'{number_words.number(match[1])} and ' if match[1] else ''}{number_words.number(match[2])} {below}"


def as_written(text: str, _: str) -> str:
    """Return the text unchanged, because the normaliser reads it correctly without a hint."""
    return text


def by_rules(text: str, rules: tuple[TextRule, ...], wanted: str) -> str:
    """Apply rules to the whole text. Raises ValueError if they change nothing, or leave a digit."""
    words = apply_rules(rules, text)
    if words == text or re.search(r"\d", words):
        raise ValueError(f"{text!r} is not {wanted}")
    return words


KINDS = {
    "characters": characters,
    "spell-out": characters,
    "cardinal": cardinal,
    "number": cardinal,
    "ordinal": ordinal,
    "date": date,
    "time": time,
    "telephone": telephone,
    "verbatim": characters,
    "digits": digits,
    "fraction": fraction,
    "unit": as_written,
    "currency": as_written,
    "address": as_written,
}
