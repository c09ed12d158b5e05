"""Test that no text vanishes silently: every digit and letter of an English text changes the speech.

Otherwise, a rule must say why not.
"""

import string

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ane.text import normalise_english
from ane.text.explanation import explain_english
from tests.tables import rows
from tests.text.test_readings import KINDS

# rule → texts of which it leaves out a part on purpose
SILENT = {
    "https://…": "the scheme, www. and a query of an address",
    "HTML tag": "tags",
    "citation [12]": "marks of notes",
    "Markdown link": "the address of a link",
    "[the report][2]": "the label of a link",
    "note [^2]": "marks of notes",
    "10<sup>6</sup>": "marks of notes",
    "</p>": "tags",
    "$5": "no cents, and zeros at the end of them",
    "5 €": "the same",
    "USD 5": "the same",
    "$5-$10": "the first sign",
    "10:30 pm": "no minutes or seconds, and a zero before the hour",
    "10.30pm, at 7.45 in the evening": "the same",
    "10:30-11:30": "the same",
    "2024-05-01": "a zero before a month or a day",
    "12/05/2024": "the same",
    "1-May-2024, May-1-2024": "the same",
    "Ⅻ": "the case of a numeral",
    "3e-5": "the case of e",
    "0x1F": "the case of x",
}
READINGS = [text for kind in KINDS for text, _ in rows(__file__, "readings.tsv", kind)]


def changed(character: str) -> list[str]:
    """Characters of the same kind to write in place of one."""
    if character in string.digits:
        return [digit for digit in "3708" if digit != character]
    letters = string.ascii_uppercase if character.isupper() else string.ascii_lowercase
    return [letter for letter in (letters[4], letters[10], letters[22], letters[25]) if letter != character]


def unspoken(text: str) -> list[int]:
    """The places of digits and letters that may be written otherwise, by all of ``changed``, and nothing sounds so."""
    spoken = normalise_english(text)
    return [
        index
        for index, character in enumerate(text)
        if character.isascii()
        and character.isalnum()
        and all(normalise_english(text[:index] + other + text[index + 1 :]) == spoken for other in changed(character))
    ]


CLASSES = (
    r"[$£€]\d{1,3}(,\d{3})?(\.\d\d?)?( million|[kmb])?",
    r"\d{1,2}:\d\d( ?[ap]\.?m\.?)?",
    r"[12]\d{3}-[01]\d-[0-3]\d",
    r"[0-3]?\d[./-][01]?\d[./-](19|20)\d\d",
    r"[A-Z]{1,3}-?\d{1,4}",
    r"\d{1,5}(\.\d{1,3})? ?(kg|KM|%|°C|mph|GB|ft)",
    r"[a-z]{1,6}\d{1,4}",
    r"\d{1,5}/\d{1,5}(th)?",
    r"\+?\d{2,3}[ -]\d{3,4}[ -]\d{3,4}",
    r"[IVXLC]{1,6}",
    r"\d{1,4}(st|nd|th)",
    r"(Class|Plan|page|Chapter|No\.|p\.) ?[A-Za-z]{1,3}\. \d{1,2}",
    r"[a-z]{2,9}",
    r"[A-Z][a-z]{1,8}",
    r"\d{1,9}",
    r"\d{1,3}[-–−]\d{1,3}",
    r"\d{1,5} [NSEW]\.? [A-Z][a-z]{2,8} (St|Ave|Dr)\.?",
    r"0?\d(e-?\d{1,2}|x\d{1,3}|[a-z])",
    r"(January|Feb\.|may|Sept) [0-3]?\d(, [12]\d{3})?",
    r"\d{1,3}(\.\d{1,3}){1,3}(:\d{2,4})?",
    r"[A-Z]{2,6}",
)
TEXTS = st.lists(st.one_of(*(st.from_regex(pattern, fullmatch=True) for pattern in CLASSES)), min_size=1, max_size=3)


def vanished(text: str) -> list[int]:
    """The places of ``unspoken`` that no rule of ``SILENT`` leaves out."""
    steps = explain_english(text)[1] if (places := unspoken(text)) else []
    return [place for place in places if not any(step.rule in SILENT and text[place] in step.text for step in steps)]


@settings(suppress_health_check=[HealthCheck.too_slow])  # a machine with other work may be slow
@given(TEXTS.map(" ".join))
def test_each_digit_and_letter_is_spoken_or_a_rule_says_why_not(text):
    assert not vanished(text)


def test_each_digit_and_letter_of_the_readings_is_spoken_or_a_rule_says_why_not():
    """Of every third reading: test_readings.py compares all with what is spoken."""
    assert [text for text in READINGS[::3] if vanished(text)] == []
