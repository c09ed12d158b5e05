"""The tokenizer is read from any of its three forms, with the same ids."""

import json

import pytest
import tokenizers

from ane.models.whisper.tokenizer_files import find_tokenizer, from_ranks
from ane.models.whisper.tokens import WhisperTokenizer
from ane.system.errors import UserError
from tests.models.whisper.random_whisper import RANKS

TEXT = " Hello there, friend."


@pytest.fixture(scope="module")
def content() -> str:
    return from_ranks(RANKS)


def test_all_three_forms_give_the_same_ids(tmp_path, content):
    expected = WhisperTokenizer(content, 50257).encode(TEXT)
    assert len(expected) < len(TEXT), "some bytes are merged"
    model = json.loads(content)["model"]
    forms = {name: tmp_path / name for name in ("json", "merges", "ranks")}
    for folder in forms.values():
        folder.mkdir()
    (forms["json"] / "tokenizer.json").write_text(content, encoding="utf-8")
    (forms["merges"] / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (forms["merges"] / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
    (forms["ranks"] / "multilingual.tiktoken").write_bytes(RANKS.read_bytes())
    for folder in forms.values():
        assert WhisperTokenizer(find_tokenizer(folder, multilingual=True), 50257).encode(TEXT) == expected


def test_special_tokens_of_a_tokenizer_json_do_not_change_text(content):
    with_special = tokenizers.Tokenizer.from_str(content)
    with_special.add_special_tokens(["<|endoftext|>"])
    assert WhisperTokenizer(with_special.to_str(), 50257).encode("<|endoftext|>") == WhisperTokenizer(
        content, 50257).encode("<|endoftext|>")


@pytest.mark.parametrize(("multilingual", "file"), [(True, "multilingual.tiktoken"), (False, "gpt2.tiktoken")])
def test_a_folder_without_one_is_refused_with_the_names_of_the_files(tmp_path, multilingual, file):
    with pytest.raises(UserError, match=rf"has no tokenizer: add tokenizer.json .* or {file} of openai-whisper$"):
        find_tokenizer(tmp_path, multilingual)


@pytest.mark.parametrize("damage", ["not ranks", "!!! x\n", "aGVsbG8= 1 2\n"])
def test_a_damaged_rank_file_is_refused(tmp_path, damage):
    path = tmp_path / "multilingual.tiktoken"
    path.write_text(damage)
    with pytest.raises(UserError, match=r"is not a rank file of openai-whisper|does not describe a tokenizer"):
        find_tokenizer(tmp_path, multilingual=True)
