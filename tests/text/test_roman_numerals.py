"""Which letters are read as Roman numerals, and which stay words and initials."""

import pytest

from ane.text import normalise_english

NUMERALS = {
    "Chapter IV, chapter V": "chapter four, chapter five",
    "CHAPTER I": "chapter one",
    "CHAPTER IV.": "chapter four.",
    "CHAPTER VI\n\nThe Storm": "chapter six. the storm",
    "CHAPTER X": "chapter ten",
    "CHAPTER XLIV": "chapter forty-four",
    "Chapter CXVII": "chapter one hundred seventeen",
    "PSALM CCCXCIX": "psalm three hundred ninety-nine",
    "ACT II SCENE III": "act two scene three",
    "ACT I. SCENE I. London.": "act one. scene one. london.",
    "PART XII": "part twelve",
    "Part I of Book II": "part one of book two",
    "in chapter I.": "in chapter one.",
    "WORLD WAR II": "world war two",
    "HENRY VIII": "henry the eighth",
    "HENRY VIII'S WIVES": "henry the eighth's wives",
    "LOUIS XIV WAS KING": "louis the fourteenth was king",
    "under George V.": "under george the fifth.",
    "John Paul II": "john paul the second",
    "Parts I–III, Acts II and IV": "parts one to three, acts two and four",
    "PARTS I AND II": "parts one and two",
    "Vol. IV, No. II": "volume four, number two",
    "the XIX century, the XX Century": "the nineteenth century, the twentieth century",
    "XII, XLIV, LXX and XCI": "twelve, forty-four, seventy and ninety-one",
}
NO_NUMERALS = {
    "I AM": "i am",
    "MIX": "mix",
    "CIVIL, a VIVID MIX": "civil, a vivid mix",
    "DC": "d c",
    "THE CIVIL WAR": "the civil war",
    "THE PART I LIKE": "the part i like",
    "The Book I read, the part I play": "the book i read, the part i play",
    "Part I'll do": "part i'll do",
    "Chapter one. I am": "chapter one. i am",
    "type X, part V of it": "type x, part v of it",
    "Section C, Class L": "section c, class l",
    "James L. Brooks, Paul V. Smith": "james l brooks, paul v smith",
    "an IV, the VI editor, size XL": "an i v, the v i editor, size x l",
    "the CLI, a LIV": "the c l i, a l i v",
    "LL, CCCC": "l l, c c c c",
}


@pytest.mark.parametrize(("written", "spoken"), NUMERALS.items())
def test_numerals_are_numbers_after_headings_and_rulers(written, spoken):
    assert normalise_english(written) == spoken


@pytest.mark.parametrize(("written", "spoken"), NO_NUMERALS.items())
def test_pronouns_words_and_initials_are_no_numerals(written, spoken):
    assert normalise_english(written) == spoken


ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]
TENS = ["", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX", "XC"]


@pytest.mark.parametrize("heading", ["Chapter", "CHAPTER"])
def test_every_numeral_up_to_a_hundred_is_read_in_both_cases(heading):
    for n in range(1, 100):
        numeral = TENS[n // 10] + (["", *ROMAN][n % 10])
        if numeral != "L":      # a lone L is an initial
            assert normalise_english(f"{heading} {numeral}.") == normalise_english(f"{heading} {n}.")
