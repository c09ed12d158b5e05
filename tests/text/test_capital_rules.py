"""Words in capitals: acronyms, emphasis and contractions."""

import pytest

from ane.text import normalise_english


@pytest.mark.parametrize(("written", "spoken"), {
    "DON'T": "don't", "I'LL go": "i'll go", "IT'S, LET'S": "it's, let's", "IT and the FBI'S": "i t and the f b i's",
    "YOU'RE OK": "you're ok",
}.items())
def test_contractions_in_capitals_are_words(written, spoken):
    assert normalise_english(written) == spoken
