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


@pytest.mark.parametrize(("text", "spoken"), [
    ("The score was 3:0 at 14:00, 0:30 and 3:30PM.",
     "the score was three:zero at fourteen hundred, zero thirtyand three thirty pm."),
    ("$1 or $1.01, €1,200.50, £85K and ₿2.5M",
     "one dollar or one dollars and one cent, twelve hundred euros and fifty "
     "cents, eighty-five thousand pounds and two point five million bitcoins"),
    ("-2% and 3.50%", "negative two percent and three point five percent"),
    ("1-800-555-0199 and 555-1234", "one eight zero zero five five five zero one nine nine and five five five one two "
     "three four"),
    ("1/2, 3/2, 1/4, 5/8 and 1/0", "one half, three halves, one quarter, five eighths and one/zero"),
    ("Can't won't AIN'T let's they've he'd I'm it's", "cannot will not is not let us they have he would i am it is"),
    ("-.05 of 100km at 3.6GHz, 77F°", "negative zero point zero five of one hundred kilometers at three point six "
     "gigahertz, seventy-sevenf°"),
    ("6.022E23 and 1e10", "six point zero two two times ten to the twenty-three and one times ten to the ten"),
    ("cafe\u0301 <i>x</i>", "café x"),
])
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
