"""Test how the English normaliser reads text, and which characters it returns."""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.text import english, normalise_english
from ane.text.lexicon import HTML_ELEMENTS
from ane.text.rule import apply_rules
from ane.text.unicode_to_ascii import KEPT, RULES
from tests.tables import differences, rows
from tests.work import grows_linearly

READINGS = dict(rows(__file__, "english.tsv", "readings"))


@pytest.mark.parametrize("section", ["readings", "capitals", "numerals", "words and initials", "placeholders"])
def test_text_is_read_as_people_read_it(section):
    assert not differences(normalise_english, rows(__file__, "english.tsv", section))


def test_normalised_text_does_not_change():
    assert not differences(normalise_english, [(spoken, spoken) for spoken in READINGS.values()])


FRAGMENTS = [text for (text,) in rows(__file__, "english.tsv", "fragments")]
ANY_TEXT = st.one_of(st.text(max_size=80), st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))


def without_skipping(text):
    for text_rule in english.RULES:
        text = text_rule(text)
    return text.strip()


def test_a_rule_that_is_skipped_would_change_nothing():
    texts = [*READINGS, *(re.sub(r"\d", "", text) for text in READINGS), *map(str.casefold, READINGS.values())]
    assert {rule.needs for rule in english.RULES} == {"", "digit", "sign"}
    assert not differences(normalise_english, [(text, without_skipping(text)) for text in texts])


@given(ANY_TEXT)
def test_a_rule_that_is_skipped_would_change_nothing_in_any_text(text):
    assert normalise_english(text) == without_skipping(text)


@given(ANY_TEXT)
def test_any_unicode_text_gives_letters_spaces_and_known_marks(text):
    """No other character; the tokenizer knows all of these (``test_tokenizer.py``)."""
    spoken = normalise_english(text)
    assert re.fullmatch(r"[a-z!'(),\-.:;? ]*", spoken)
    assert spoken == spoken.strip()
    assert "  " not in spoken


@pytest.mark.parametrize(
    "text",
    [
        "1" + ",000" * 2000 + "th",
        "9" * 5000,
        "$" + "9" * 5000 + ".99",
        "1" * 5000 + "km",
        "1/" + "2" * 5000,
        "0." + "3" * 5000,
        "9" * 5000 + "th",
        "1" * 5000 + "s",
    ],
)
def test_numbers_of_any_length_are_read(text):
    assert re.fullmatch(r"[a-z' ,.-]+", normalise_english(text))


@pytest.mark.parametrize("unit", [text for (text,) in rows(__file__, "english.tsv", "repeated")])
def test_long_repetitive_text_takes_linear_time(unit):
    """A pattern that backtracks without bound would take hours."""
    assert len(normalise_english(unit * (5_000 // len(unit)))) < 50_000


@pytest.mark.parametrize("unit", ["9", "a", "[", "a [", " ", "\t", "1/", "A'"])
def test_a_very_long_word_takes_linear_time(unit):
    assert grows_linearly(lambda length: normalise_english(unit * (length // len(unit))), 8_000)


ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]
TENS = ["", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX", "XC"]


@pytest.mark.parametrize("heading", ["Chapter", "CHAPTER"])
def test_every_numeral_up_to_a_hundred_is_read_in_both_cases(heading):
    for n in range(1, 100):
        numeral = TENS[n // 10] + (["", *ROMAN][n % 10])
        if numeral != "L":  # a single L is an initial
            assert normalise_english(f"{heading} {numeral}.") == normalise_english(f"{heading} {n}.")


def test_html_elements_with_their_end_tags_and_comments_are_dropped():
    tags = [text for (text,) in rows(__file__, "english.tsv", "tags")]
    assert not differences(normalise_english, [(f"before {tag} after", "before after") for tag in tags])
    assert not differences(normalise_english, [(f"<{name}>text</{name.upper()}>", "text") for name in HTML_ELEMENTS])


WORDS = st.from_regex(r"[a-z]{3,12}", fullmatch=True).filter(lambda word: word not in HTML_ELEMENTS)


@given(st.lists(WORDS, min_size=1, max_size=5))
def test_no_word_in_angle_brackets_is_lost(words):
    spoken = normalise_english("before <" + " ".join(words) + "> after")
    assert spoken == normalise_english("before " + " ".join(words) + " after")


# Unicode

READABLE = re.compile(rf"[ -~\n{''.join(KEPT)}]*")
PLANE = 0x10000
CONTEXTS = ("{}", "{}1", "a{}b", "α{}", "5 {} ")


@pytest.mark.parametrize(
    ("characters", "context"),
    [
        *((range(plane * PLANE, (plane + 1) * PLANE), context) for plane in (0, 1) for context in CONTEXTS),
        (range(2 * PLANE, 3 * PLANE), "{}"),  # CJK
        (range(3 * PLANE, sys.maxunicode + 1, 15), "a{}b"),  # CJK, unassigned or private
    ],
)
def test_code_points_are_converted_and_those_of_letters_in_every_context(characters, context):
    assert READABLE.fullmatch(apply_rules(RULES, "\n".join(map(context.format, map(chr, characters)))))


def test_letters_keep_their_sound_and_symbols_their_name():
    table = rows(__file__, "english.tsv", "converted characters")
    assert not differences(lambda written: apply_rules(RULES, written), table)
