"""The text side of KittenTTS 0.8.1: numbers in words, and forms and chunks beyond the golden vectors."""

import pytest

from ane.models.kitten.published_text import (
    MAX_WORD,
    cardinal_words,
    decimal_words,
    ordinal_words,
    preprocess,
    split_published,
)
from ane.system.errors import UserError
from tests.tables import rows


@pytest.mark.parametrize(("number", "words"), [
    (0, "zero"), (12, "twelve"), (99, "ninety-nine"), (100, "one hundred"), (1000, "one thousand"),
    (1200, "twelve hundred"), (1900, "nineteen hundred"), (2500, "two thousand five hundred"),
    (-42, "negative forty-two"), (1_000_001, "one million one"), (999_000, "nine hundred ninety-nine thousand"),
])
def test_cardinals(number: int, words: str) -> None:
    assert cardinal_words(number) == words


@pytest.mark.parametrize(("number", "words"), [
    (1, "first"), (8, "eighth"), (12, "twelfth"), (15, "fifteenth"), (20, "twentyth"), (21, "twenty-first"),
    (100, "one hundredth"), (1_000_000, "one millionth"),
])
def test_ordinals_are_those_of_the_published_code(number: int, words: str) -> None:
    assert ordinal_words(number) == words


def test_decimals_keep_their_zeros() -> None:
    assert decimal_words("-1.50") == "negative one point five zero"
    with pytest.raises(ValueError, match="invalid literal"):
        decimal_words("1.5e")


@pytest.mark.parametrize(("text", "spoken"), rows(__file__, "published_text.tsv", "forms"))
def test_forms(text: str, spoken: str) -> None:
    assert preprocess(text) == spoken


@pytest.mark.parametrize("text", ["$,", ",%", "a , b", "-,"])
def test_what_is_no_number_stays(text: str) -> None:
    assert preprocess(text) == text


def test_markup_is_removed() -> None:
    assert preprocess("a\n\n<b>b</b> c@d.org, www.e.com/f") == "a b ,"


def test_a_chunk_takes_words_up_to_the_maximum() -> None:
    assert split_published("aa bb cc dd", 5) == ["aa bb,", "cc dd,"]
    assert split_published("aaaaaaa bb", 5) == ["aaaaaaa,", "bb,"]


def test_the_longest_word() -> None:
    assert preprocess("a" * MAX_WORD) == "a" * MAX_WORD
    with pytest.raises(UserError, match=f"at most {MAX_WORD} can be spoken: insert spaces"):
        preprocess("a" * (MAX_WORD + 1))
