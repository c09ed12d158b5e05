"""The grammar of plain sentences."""

import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from training.recipe import CHARACTERS
from training.text import GRAMMAR, plain_sentence


def test_every_rule_that_is_referred_to_exists():
    named = {name for options in GRAMMAR.values() for name in re.findall(r"<(\w+)>", options)}
    assert named | {"sentence"} == set(GRAMMAR)


@settings(deadline=None)
@given(st.integers(0, 10**9))
def test_a_plain_sentence_has_an_end_mark_and_only_characters_of_the_tokenizer(seed):
    sentence = plain_sentence(random.Random(seed))
    assert set(sentence) <= set(CHARACTERS)
    assert sentence[-1] in ".?!"
