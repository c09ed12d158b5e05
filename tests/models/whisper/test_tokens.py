"""Special tokens of the three vocabularies, and text to ids and back."""

import json

import pytest
import tokenizers

from ane.models.whisper.tokens import LANGUAGES, SpecialTokens, WhisperTokenizer, suppressed_tokens
from ane.system.errors import UserError


@pytest.mark.parametrize(("vocabulary", "end", "task", "timestamps", "languages"), [
    (51864, 50256, 50357, 50363, 99), (51865, 50257, 50358, 50364, 99), (51866, 50257, 50359, 50365, 100)])
def test_special_tokens_follow_the_text_of_each_vocabulary(vocabulary, end, task, timestamps, languages):
    special = SpecialTokens.of(vocabulary)
    assert (special.end, special.translate, special.timestamps, len(special.languages)) == (
        end, task, timestamps, languages)
    assert special.timestamps + 1501 == vocabulary
    assert special.transcribe == special.translate + 1


def test_a_start_sequence_names_language_and_task_only_of_a_multilingual_model():
    assert SpecialTokens.of(51864).start_sequence("en", timestamps=False) == (50257, 50362)
    assert SpecialTokens.of(51865).start_sequence("en", timestamps=False) == (50258, 50259, 50359, 50363)
    assert SpecialTokens.of(51866).start_sequence("en", "translate") == (50258, 50259, 50359)


def test_cantonese_came_with_the_largest_vocabulary():
    assert SpecialTokens.of(51866).language("yue") == 50358
    with pytest.raises(UserError, match=r"^language must be one of en, zh, .* got 'yue'$"):
        SpecialTokens.of(51865).language("yue")


def test_languages_are_unique():
    assert len(set(LANGUAGES)) == 100


def test_another_vocabulary_is_refused():
    with pytest.raises(UserError, match=r"a vocabulary of 512 tokens is not Whisper's"):
        SpecialTokens.of(512)


def test_bytes_survive_in_any_text(tokenizer):
    text = "\x00 Ünïcode ✓ 日本語 <|endoftext|>\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert max(tokenizer.encode("<|endoftext|>")) < tokenizer.end, "special tokens in a text stay text"


def test_special_tokens_are_left_out_of_text(tokenizer):
    assert tokenizer.decode([50364, *tokenizer.encode("Hello"), 50400, 50257]) == "Hello"


def test_special_tokens_are_always_suppressed_with_symbols():
    assert suppressed_tokens(SpecialTokens.of(51865), (7,)) == (7, 50258, 50358, 50359, 50360, 50361, 50362)


@pytest.mark.parametrize("content", ["{}", json.dumps({"model": {"vocab": {}}}),
                                     tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).to_str()])
def test_another_tokenizer_is_refused_in_one_line(content):
    with pytest.raises(UserError, match=r"^the tokenizer [^\n]*import the model again$"):
        WhisperTokenizer(content, 50257)
