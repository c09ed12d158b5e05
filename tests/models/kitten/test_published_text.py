"""Test how KittenTTS 0.8.1 treats text: numbers in words, and forms and chunks that the golden vectors lack."""

import pytest

from ane.models.kitten.published_text import MAX_WORD, preprocess, split_published
from ane.system.errors import UserError
from tests.tables import differences, rows


def test_forms_are_spoken_as_by_the_published_code() -> None:
    assert not differences(preprocess, rows(__file__, "published_text.tsv", "forms"))


def test_a_chunk_takes_words_up_to_the_maximum() -> None:
    assert split_published("aa bb cc dd", 5) == ["aa bb,", "cc dd,"]
    assert split_published("aaaaaaa bb", 5) == ["aaaaaaa,", "bb,"]


def test_the_longest_word() -> None:
    assert preprocess("a" * MAX_WORD) == "a" * MAX_WORD
    with pytest.raises(UserError, match=f"can have at most {MAX_WORD}: insert spaces"):
        preprocess("a" * (MAX_WORD + 1))
