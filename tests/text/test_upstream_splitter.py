"""Upstream's splitting: any text and any lengths. tests/parity compares its chunks with upstream's own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.system.errors import UserError
from ane.text import split_upstream
from tests.text.test_splitter import texts


@settings(deadline=None, max_examples=300)
@given(texts(), st.integers(1, 60), st.integers(0, 60))
def test_chunks_of_any_text_are_stripped_and_within_the_maximum(text, desired, more):
    maximum = desired + more
    assert all(chunk == chunk.strip() and len(chunk) <= maximum for chunk in split_upstream(text, desired, maximum))


@settings(deadline=None, max_examples=300)
@given(texts(), st.integers(1, 60), st.integers(0, 60))
def test_no_letter_is_lost(text, desired, more):
    def letters(text):
        return [character for character in text if character.isalnum()]

    assert letters("".join(split_upstream(text, desired, desired + more))) == letters(text)


def test_a_period_after_an_abbreviation_ends_a_sentence():
    assert split_upstream("He met Dr. Smith at the door of it. Then he left.", 8, 40) == [
        "He met Dr.", "Smith at the door of it.", "Then he left."]


@pytest.mark.parametrize(("desired", "maximum"), [(0, 10), (20, 19)])
def test_impossible_lengths_are_refused(desired, maximum):
    with pytest.raises(UserError, match=f"chunks of {desired} to {maximum} characters"):
        split_upstream("Hello.", desired, maximum)
