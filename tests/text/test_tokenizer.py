"""Token ids, the choice of a normaliser, and what is refused."""

import json
import re
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.system.errors import UserError
from ane.text import NORMALISERS, Tokenizer, normalise_basic, normalise_upstream

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


def test_words_are_parted_by_the_space_token():
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
    "english": "it cost three pounds.", "upstream": "it cost psthree.", "basic": "it cost £3.", "none": "It cost £3.",
}.items())
def test_the_normaliser_is_chosen_by_name(normaliser, expected):
    assert Tokenizer(OFFICIAL, normaliser).normalise("It cost £3.") == expected


def test_an_unknown_normaliser_is_refused_with_the_names_that_exist():
    with pytest.raises(UserError, match=r"'german'.*english, upstream, basic, none"):
        Tokenizer(OFFICIAL, "german")


@pytest.mark.parametrize("content", ["", "not json", "{}", "[1]", '{"model": {}}', "\x00", OFFICIAL[:2000]])
def test_what_is_no_tokenizer_is_refused_by_its_path(content):
    with pytest.raises(UserError, match=r"^models/tokenizer\.json is not a tokenizer"):
        Tokenizer(content, source="models/tokenizer.json")


@pytest.mark.parametrize("text", ["", " ", "\n\t\u2003"])
def test_empty_text_is_refused(text):
    with pytest.raises(UserError, match="nothing to say: the text is empty"):
        Tokenizer(OFFICIAL).encode(text)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_text_without_a_letter_is_refused_by_name(normaliser):
    with pytest.raises(UserError, match=re.escape("nothing to say in '!?! 😀 ...'")):
        Tokenizer(OFFICIAL, normaliser).encode("!?! 😀 ...")


def test_digits_that_the_tokenizer_does_not_know_are_nothing_to_say():
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
    tokenizer = Tokenizer(characters("ab ", **{"[UNK]": 0}), "none")
    assert tokenizer.encode("a b") == [1, 3, 2]


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz!'(),-.:;? ", max_size=60))
def test_known_characters_survive_the_round_trip(text):
    tokenizer = Tokenizer(OFFICIAL, "none")
    ids = tokenizer.encode_normalised(text)
    assert UNKNOWN not in ids
    assert tokenizer.decode(ids) == text
    assert ids.count(SPACE) == text.count(" ")


# --- upstream's normalisers ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=60))
def test_upstream_normalisation_takes_any_text_and_gives_ascii_without_digits(text):
    normalised = normalise_upstream(text)
    assert normalised.isascii()
    assert not re.search(r'[A-Z0-9"]', normalised)


@pytest.mark.parametrize("text", ["$,5", "$1,.5", "1" * 5000, "1" * 50 + "th", "$" + "9" * 5000, "0." + "3" * 5000])
def test_upstream_normalisation_survives_what_upstream_does_not(text):
    assert re.search("[a-z]", normalise_upstream(text))


@pytest.mark.parametrize(("written", "normalised"), {
    "“a” ‘b’ „c‚": "a 'b' ,,c,", "a—b–c…": "a--b-c...", "£¥€¢": "psy=eurc/", "1½": "one one/two",
    "→ × · №7": "- x * no. seven",
    "æ ø ß þ ĳ ŉ": "ae o ss th ij 'n", "😀☃": "", "你好": "ni hao ",
}.items())
def test_signs_are_transliterated_as_upstream_does(written, normalised):
    assert normalise_upstream(written) == normalised


def test_basic_normalisation_only_lowers_and_collapses_whitespace():
    assert normalise_basic("  Ça\n\tVA 5%  ") == " ça va 5% "
