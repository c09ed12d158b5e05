"""Test the tokens, the files of a tokenizer, and the rules for decoding."""

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from ane.models.whisper.languages import language_code
from ane.models.whisper.tokenizer_files import find_tokenizer, from_ranks
from ane.models.whisper.tokens import SpecialTokens, TokenRules, WhisperTokenizer, suppressed_tokens
from ane.models.whisper.transcription import TranscriptionOptions
from tests.models.whisper.random_whisper import RANKS
from tests.refusals import assert_refused


@pytest.mark.parametrize(
    ("vocabulary", "end", "task", "timestamps", "languages"),
    [(51864, 50256, 50357, 50363, 99), (51865, 50257, 50358, 50364, 99), (51866, 50257, 50359, 50365, 100)],
)
def test_special_tokens_follow_the_text_of_each_vocabulary(vocabulary, end, task, timestamps, languages):
    special = SpecialTokens.of(vocabulary)
    assert (special.end, special.translate, special.timestamps, len(special.languages)) == (
        end,
        task,
        timestamps,
        languages,
    )
    assert special.timestamps + 1501 == vocabulary
    assert special.transcribe == special.translate + 1


def test_a_start_sequence_names_language_and_task_only_of_a_multilingual_model():
    assert SpecialTokens.of(51864).start_sequence("en", timestamps=False) == (50257, 50362)
    assert SpecialTokens.of(51865).start_sequence("en", timestamps=False) == (50258, 50259, 50359, 50363)
    assert SpecialTokens.of(51866).start_sequence("en", "translate") == (50258, 50259, 50359)


def test_cantonese_came_with_the_largest_vocabulary():
    assert SpecialTokens.of(51866).language("yue") == 50358
    assert_refused(r"^language must be one of en, zh, .* got 'yue'$", lambda: SpecialTokens.of(51865).language("yue"))


def test_bytes_survive_in_any_text_and_special_tokens_are_never_made_of_it(tokenizer, content):
    text = "\x00 Ünïcode ✓ 日本語 <|endoftext|>\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([50364, *tokenizer.encode("Hello"), 50400, 50257]) == "Hello"
    with_special = tokenizers.Tokenizer.from_str(content)
    with_special.add_special_tokens(["<|endoftext|>"])
    ids = WhisperTokenizer(with_special.to_str(), 50257).encode("<|endoftext|>")
    assert ids == tokenizer.encode("<|endoftext|>")
    assert max(ids) < tokenizer.end


def test_special_tokens_are_always_suppressed_with_symbols():
    assert suppressed_tokens(SpecialTokens.of(51865), (7,)) == (7, 50258, 50358, 50359, 50360, 50361, 50362)


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        json.dumps({"model": {"vocab": {}}}),
        tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).to_str(),
    ],
)
def test_another_tokenizer_is_refused_in_one_line(content):
    assert_refused(r"^the tokenizer [^\n]*import the model again$", WhisperTokenizer, content, 50257)


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


@pytest.mark.parametrize(("multilingual", "file"), [(True, "multilingual.tiktoken"), (False, "gpt2.tiktoken")])
def test_a_folder_without_one_is_refused_with_the_names_of_the_files(tmp_path, multilingual, file):
    assert_refused(
        rf"has no tokenizer: add tokenizer.json .* or {file} from openai-whisper$",
        find_tokenizer,
        tmp_path,
        multilingual,
    )


@pytest.mark.parametrize("damage", ["not ranks", "!!! x\n", "aGVsbG8= 1 2\n"])
def test_a_damaged_rank_file_is_refused(tmp_path, damage):
    (tmp_path / "multilingual.tiktoken").write_text(damage)
    assert_refused(
        r"is not a rank file of openai-whisper|does not describe a tokenizer",
        find_tokenizer,
        tmp_path,
        multilingual=True,
    )


SPECIAL = SpecialTokens.of(51865)
FIRST, END = SPECIAL.timestamps, SPECIAL.end


def allowed(sampled: list[int], rules: TokenRules | None = None, text: float = 20.0) -> np.ndarray:
    """Which tokens may follow, (V,) bool, where text is likelier than timestamps."""
    logits = np.zeros(51865, np.float32)
    logits[5] = text
    (rules or TokenRules(SPECIAL)).apply(logits, sampled)
    return np.isfinite(logits)


RULES = {  # tokens so far, logit of text, the timestamps that may follow, counted from the first, and text or not
    "the first token is a timestamp of the first second": ([], 20.0, range(51), False),
    "text follows the first timestamp": ([FIRST], 20.0, range(0), True),
    "and a pair": ([FIRST, 5, FIRST + 10, FIRST + 10], 20.0, range(0), True),
    "a single timestamp after text is followed by its pair or the end": (
        [FIRST, 5, FIRST + 10],
        -1.0,
        range(10, 1501),
        False,
    ),
    "a segment ends after its beginning": ([FIRST + 3, 5], 20.0, range(4, 1501), True),
    "only timestamps remain where they are likelier together: ln 1500 is 7.3": ([FIRST, 5], 7.0, range(1, 1501), False),
    "and text where it is likelier": ([FIRST, 5], 7.5, range(1, 1501), True),
}


@pytest.mark.parametrize(("sampled", "text", "timestamps", "spoken"), RULES.values(), ids=RULES)
def test_which_tokens_may_follow(sampled, text, timestamps, spoken):
    follows = allowed(sampled, text=text)
    assert np.flatnonzero(follows[FIRST:]).tolist() == list(timestamps)
    assert (follows[5], follows[:END].any()) == (spoken, spoken)


def test_without_timestamps_only_suppression_applies():
    rules = TokenRules(SPECIAL, suppressed=(8, 9), blank=(220, END), timestamps=False)
    assert np.flatnonzero(~allowed([], rules)).tolist() == [8, 9, 220, END]
    assert np.flatnonzero(~allowed([5], rules)).tolist() == [8, 9]


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 30.0))
def test_sampled_timestamps_never_decrease_and_segments_last(seed, text):
    """Whatever the logits are, timestamps come in pairs, in order, and no segment ends where it begins."""
    random, rules, sampled = np.random.default_rng(seed), TokenRules(SPECIAL), []
    for _ in range(30):
        logits = (random.standard_normal(51865) * 8).astype(np.float32)
        logits[random.integers(0, END, 3)] += np.float32(text)
        rules.apply(logits, sampled)
        token = int(logits.argmax())
        assert np.isfinite(logits[token])
        if token == END:
            break
        sampled.append(token)
    times = [token for token in sampled if token >= FIRST]
    assert times == sorted(times)
    assert all(end > begin for begin, end in zip(times[::2], times[1::2], strict=False))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("de", "de"),
        ("DE", "de"),
        ("German", "de"),
        ("english", "en"),
        ("en-US", "en"),
        ("zh_CN", "zh"),
        ("pt-BR", "pt"),
        ("Haitian  Creole", "ht"),
        ("castilian", "es"),
        ("haw", "haw"),
        ("Cantonese", "yue"),
        ("xx", "xx"),
        ("", ""),
        ("Klingon", "Klingon"),
        ("de, en", "de, en"),
    ],
)
def test_a_language_is_a_code_a_name_or_a_locale(text, code):
    assert language_code(text) == code
    assert TranscriptionOptions(text).language == code
