"""Token ids, the choice of a normaliser, and what is refused."""

import json
import re
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.system.errors import UserError
from ane.text import NORMALISERS, Tokenizer, shorten

OFFICIAL = (files("ane.models.tortoise") / "data" / "tokenizer.json").read_text(encoding="utf-8")
SPACE, UNKNOWN = 2, 1


def characters(alphabet: str, **special: int) -> str:
    """A tokenizer.json whose tokens are plain characters."""
    vocabulary = {**special, **{character: len(special) + i for i, character in enumerate(alphabet)}}
    added = [{"id": i, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for token, i in special.items()]
    model = {"type": "BPE", "dropout": None, "unk_token": "[UNK]", "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "vocab": vocabulary, "merges": []}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                       "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model})


def test_words_are_separated_by_the_space_token():
    ids = [22, 4, 26, 2, 119, 52, 2, 51, 2, 32, 124, 213, 2, 147]
    assert Tokenizer(OFFICIAL).encode("I'm going to speak this") == ids


def test_ids_decode_to_the_normalised_text():
    tokenizer = Tokenizer(OFFICIAL)
    assert tokenizer.decode(tokenizer.encode("Mr. Smith paid $5!")) == "mister smith paid five dollars!"


def test_decoding_leaves_stop_and_unknown_tokens_out():
    tokenizer = Tokenizer(OFFICIAL)
    assert tokenizer.decode(np.array([*tokenizer.encode("hello"), UNKNOWN, 0, 0])) == "hello"


def test_size_counts_the_special_tokens():
    assert Tokenizer(OFFICIAL).size == 255


@pytest.mark.parametrize(("normaliser", "expected"), {
    "english": "it cost three pounds.", "upstream": "it cost psthree.", "basic": "it cost £3.",
}.items())
def test_the_normaliser_is_chosen_by_name(normaliser, expected):
    assert Tokenizer(OFFICIAL, normaliser).normalise("It cost £3.") == expected


def test_an_unknown_normaliser_is_refused_with_the_names_that_exist():
    with pytest.raises(UserError, match=r"'german'.*english, upstream, basic, de, es"):
        Tokenizer(OFFICIAL, "german")


@pytest.mark.parametrize("content", ["", "not json", "{}", "[1]", '{"model": {}}', "\x00", OFFICIAL[:2000]])
def test_a_file_that_is_no_tokenizer_is_refused_by_its_path(content):
    with pytest.raises(UserError, match=r"^models/tokenizer\.json is not a tokenizer"):
        Tokenizer(content, source="models/tokenizer.json")


@pytest.mark.parametrize("text", ["", " ", "\n\t\u2003"])
def test_empty_text_is_refused(text):
    with pytest.raises(UserError, match="nothing to say: the text is empty"):
        Tokenizer(OFFICIAL).encode(text)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_text_without_a_letter_is_refused_and_quoted(normaliser):
    with pytest.raises(UserError, match=re.escape("nothing to say in '!?! 😀 ...'")):
        Tokenizer(OFFICIAL, normaliser).encode("!?! 😀 ...")


def test_digits_that_the_tokenizer_does_not_know_are_refused():
    with pytest.raises(UserError, match="nothing to say in '1234'"):
        Tokenizer(OFFICIAL, "basic").encode("1234")


def test_a_long_unspeakable_text_is_shortened_in_the_message():
    with pytest.raises(UserError) as refusal:
        Tokenizer(OFFICIAL).encode("?! " * 1000)
    assert "…" in str(refusal.value)
    assert len(str(refusal.value)) < 200


def test_a_tokenizer_of_plain_characters_with_a_space_token():
    tokenizer = Tokenizer(characters("abc", **{"[STOP]": 0, "[UNK]": 1, "[SPACE]": 2}), "basic")
    assert tokenizer.encode("Ab c?") == [3, 4, 2, 5, 1]
    assert tokenizer.decode([3, 4, 2, 5, 1]) == "ab c"


def test_a_tokenizer_without_a_space_token_gets_plain_spaces():
    tokenizer = Tokenizer(characters("ab ", **{"[UNK]": 0}), "basic")
    assert tokenizer.encode("a b") == [1, 3, 2]


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz!'(),-.:;? ", max_size=60))
def test_known_characters_survive_the_round_trip(text):
    tokenizer = Tokenizer(OFFICIAL)
    ids = tokenizer.encode_normalised(text)
    assert UNKNOWN not in ids
    assert tokenizer.decode(ids) == text
    assert ids.count(SPACE) == text.count(" ")


@given(st.text(max_size=60), st.sampled_from(list(NORMALISERS)))
def test_no_text_stops_any_normaliser_or_the_tokenizer(text, normaliser):
    tokenizer = Tokenizer(OFFICIAL, normaliser)
    ids = tokenizer.speakable_ids(text)
    assert all(0 <= i < tokenizer.size for i in ids)
    assert tokenizer.decode(ids).isascii()


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("text", ["hello \ud800", "hello \udfff\ud800", "hello \u03a2", "hello \x00"])
def test_code_points_that_are_no_characters_are_left_out(normaliser, text):
    tokenizer = Tokenizer(OFFICIAL, normaliser)
    assert tokenizer.decode(tokenizer.encode(text)).strip() == "hello"


@pytest.mark.parametrize(("length", "shown"), [(60, "x" * 60), (61, "x" * 59 + "…")])
def test_text_in_messages_has_at_most_60_characters(length, shown):
    assert shorten("x" * length) == shown
