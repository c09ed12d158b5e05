"""The default chunks keep marks, and stay short when numbers are spelled."""

import pytest

from ane.models.kitten.chunking import MAX_WORD, MAXIMUM, correct_numbers, split_for_speech, split_published
from ane.system.errors import UserError


@pytest.mark.parametrize(("text", "chunks"), [
    ("Is it so? Yes!", ["is it so? yes!"]),
    ("3.14 is pi. U.S.A. wins", ["three point one four is pi. u.s.a. wins,"]),
    ("No end", ["no end,"]),
    ('He said "Hello."', ['he said "hello."']),
    ("And so on…", ["and so on…"]),
    ("One | Two", ["one,", "two,"]),
    ("Call <b>Dr. Smith</b> at www.x.org", ["call dr. smith at,"]),
])
def test_chunks(text: str, chunks: list[str]) -> None:
    assert split_for_speech(text) == chunks


def test_long_texts_break_between_sentences() -> None:
    text = "Was this the first of them, or was there another one before it? " * 20
    chunks = split_for_speech(text)
    assert len(chunks) > 3
    assert all(chunk.endswith("?") and len(chunk) <= MAXIMUM for chunk in chunks)


def test_a_chunk_that_numbers_make_too_long_is_split_again() -> None:
    chunks = split_for_speech("987,654,321.123456 " * 20)
    assert max(map(len, chunks)) <= MAXIMUM + 1
    assert " ".join(chunks).count("million") == 20


@pytest.mark.parametrize(("text", "corrected"), [
    ("the 20th and 1,234,567,890,123,456",
     "the twentieth and  one two three four five six seven eight nine zero one two three four five six "),
    ("at 9:05 and 9:30 PM", "at nine oh five and nine thirty pm"),
    ("the 130th, 21st and 10th", "the one hundred thirtieth, 21st and 10th"),
])
def test_numbers_that_the_published_code_gets_wrong(text: str, corrected: str) -> None:
    assert correct_numbers(text) == corrected


def test_a_published_chunk_takes_words_up_to_the_maximum() -> None:
    assert split_published("aa bb cc dd", 5) == ["aa bb,", "cc dd,"]
    assert split_published("aaaaaaa bb", 5) == ["aaaaaaa,", "bb,"]


def test_the_longest_word() -> None:
    assert split_for_speech("a" * MAX_WORD) == ["a" * MAX_WORD + ","]
    with pytest.raises(UserError, match=f"at most {MAX_WORD} can be spoken: insert spaces"):
        split_for_speech("a" * (MAX_WORD + 1))
