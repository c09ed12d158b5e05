"""Cleaned text, token ids and decoded text are exactly upstream's."""

import json
from pathlib import Path

import pytest

from ane.text import Tokenizer


@pytest.fixture(scope="module")
def vectors(golden: Path) -> dict[str, list[dict]]:
    return json.loads((golden / "stages" / "text.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer_json(golden: Path) -> str:
    return (golden / "tokenizer.json").read_text(encoding="utf-8")


def test_default_cleaner_and_ids_are_upstreams(vectors, tokenizer_json):
    tokenizer = Tokenizer(tokenizer_json, "upstream")
    for vector in vectors["tokenize"]:
        cleaned = tokenizer.normalise(vector["text"])
        assert cleaned == vector["english_cleaners"], vector["text"]
        assert tokenizer.encode_normalised(cleaned) == vector["ids"], vector["text"]


def test_basic_cleaner_and_ids_are_upstreams(vectors, tokenizer_json):
    tokenizer = Tokenizer(tokenizer_json, "basic")
    for vector in vectors["tokenize"]:
        cleaned = tokenizer.normalise(vector["text"])
        assert cleaned == vector["basic_cleaners"], vector["text"]
        assert tokenizer.encode_normalised(cleaned) == vector["basic_ids"], vector["text"]


def test_decoded_text_is_upstreams(vectors, tokenizer_json):
    tokenizer = Tokenizer(tokenizer_json)
    for vector in vectors["tokenize"]:
        assert tokenizer.decode(vector["ids"]) == vector["decoded"], vector["text"]


def test_the_golden_set_has_enough_texts(vectors):
    assert len(vectors["tokenize"]) >= 100
