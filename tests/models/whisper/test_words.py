"""Test the times of words: attention heads, alignment, and the words that tokens form."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ane.bundles.bundle import Bundle
from ane.bundles.writing import write_bundle
from ane.models.whisper.alignment_heads import PUBLISHED, alignment_heads, find_alignment_heads
from ane.models.whisper.checkpoints import import_whisper
from ane.models.whisper.decoding import DecodedWindow
from ane.models.whisper.transcription import TranscriptionOptions
from ane.models.whisper.words import WordAligner, median_filter, split_words, token_times
from ane.system.errors import UserError
from tests.models.whisper.random_whisper import write_hugging_face

FIRST = 50364
TIMED = TranscriptionOptions(language="en", temperatures=(0.0,), word_times=True)


def words(tokenizer, text: str, language: str = "en") -> list[str]:
    return [word for word, _ in split_words(tokenizer, tokenizer.encode(text), language)]


def test_a_word_begins_with_a_space_or_is_punctuation(tokenizer):
    assert words(tokenizer, " It's 3.50, isn't it?") == [" It's", " 3", ".50", ",", " isn't", " it", "?"]


def test_characters_of_several_bytes_are_not_cut(tokenizer):
    tokens = [token for byte in "é—" for token in tokenizer.encode(byte)]
    assert [word for word, _ in split_words(tokenizer, tokens, "ja")] == ["é", "—"]


def test_all_tokens_are_in_a_word_even_if_their_bytes_are_no_text(tokenizer):
    ranks = {tokenizer.decode([token]): token for token in range(256)}
    continuation = next(token for token in range(256) if tokenizer.decode([token]) == "\ufffd")
    for tokens in ([continuation], [ranks["A"], continuation], [continuation, ranks["A"], continuation, continuation]):
        parts = split_words(tokenizer, tokens, "ja")
        assert [token for _, part in parts for token in part] == tokens


def test_words_are_in_order_and_make_up_the_text(transcriber, tokenizer, noise, monkeypatch):
    text = [tokenizer.encode(part) for part in (" The quick brown fox", " jumps over the lazy dog.")]
    decoder = AlignedDecoder(FIRST, *text[0], FIRST + 60, FIRST + 60, *text[1], FIRST + 190)
    monkeypatch.setattr(transcriber, "decoder", lambda candidates: decoder)
    found = transcriber.transcribe(noise[:64000], 16000, TIMED)
    assert len(found.segments) == 2
    for segment in found.segments:
        assert "".join(word.word for word in segment.words).strip() == segment.text.strip()
        assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)
        times = [time for word in segment.words for time in (word.start, word.end)]
        assert times == sorted(times)
        assert all(0 <= word.probability <= 1 for word in segment.words)


def test_without_word_times_there_are_no_words(transcriber, noise, monkeypatch):
    decoder = AlignedDecoder(FIRST, 39, 68, FIRST + 150)
    monkeypatch.setattr(transcriber, "decoder", lambda candidates: decoder)
    [segment] = transcriber.transcribe(noise[:64000], 16000, replace(TIMED, word_times=False)).segments
    assert segment.words is None


class AlignedDecoder:
    """In place of ``WindowDecoder``: every window has the same tokens."""

    def __init__(self, *tokens: int):
        self.window, self.texts = DecodedWindow(tokens, -0.1, 0.0, 0.0), []

    def set_states(self, states):
        pass

    def decode(self, text, options):
        self.texts.append(text)
        return self.window


@pytest.mark.parametrize(
    ("tokens", "second"),
    [
        ((FIRST, 39, 68, FIRST + 150, FIRST + 150, 75), 200),  # the last word ends after 2 s
        ((FIRST, 39, 68, FIRST + 150), 400),
    ],
)  # nothing follows the timestamp in this window of 4 s
def test_the_next_window_begins_after_the_last_word(transcriber, noise, monkeypatch, tokens, second):
    def align(columns, states, heads):
        scores = np.zeros((1, len(columns), 200), np.float32)
        for row, begin in ((3, 0), (4, 50), (5, 100)):
            scores[0, row, begin : begin + 50] = 20
        return np.zeros((len(columns), 51865), np.float32), scores

    decoder = AlignedDecoder(*tokens)
    monkeypatch.setattr(transcriber, "decoder", lambda candidates: decoder)
    monkeypatch.setattr(transcriber.backend, "align", align)
    transcriber.transcribe(noise[:80000], 16000, TIMED)
    assert [text.first_frame for text in decoder.texts[:2]] == [0, second]


def test_a_backend_without_attention_scores_is_refused(transcriber):
    with pytest.raises(UserError, match="the backend abc cannot time words: use backend=torch"):
        WordAligner(
            SimpleNamespace(name="abc", returns_attention=False),
            transcriber.decoder_config,
            transcriber.special,
            transcriber.tokenizer,
        )


def test_what_is_too_short_to_be_mirrored_stays():
    x = np.array([[3.0, 1.0, 2.0]], np.float32)
    assert np.array_equal(median_filter(x, 7), x)


def test_tokens_begin_where_their_attention_is():
    """Two heads that attend to one part of the sound after the other, one of them far less clearly."""
    begins = [0, 20, 50, 90]
    scores = np.zeros((2, 6, 120), np.float32)
    for token, (start, end) in enumerate(zip(begins, [*begins[1:], 120], strict=True)):
        scores[0, token + 1, start:end] = 8
        scores[1, token + 1, start:end] = 2
    assert token_times(scores, first=1).tolist() == begins


def test_heads_that_attend_to_nothing_in_particular_give_times_all_the_same():
    times = token_times(np.zeros((1, 5, 40), np.float32), first=1)
    assert len(times) == 3
    assert (np.diff(times) >= 0).all()


# layers and heads of the decoder that align
SIZES = {"tiny": (4, 6), "base": (6, 8), "small": (12, 12), "medium": (24, 16), "large": (32, 20), "turbo": (4, 20)}


def test_every_published_head_is_one_of_its_decoder():
    for name, heads in PUBLISHED.items():
        size = SIZES["turbo" if "turbo" in name else name.partition("-")[0].partition(".")[0]]
        assert heads == tuple(sorted(set(heads))), name
        assert all(layer < size[0] and head < size[1] for layer, head in heads), name


def test_heads_are_those_of_the_published_file_else_of_the_upper_half(tmp_path):
    assert find_alignment_heads(tmp_path / "large-v3-turbo.pt", 4, 20) == PUBLISHED["turbo"]
    assert find_alignment_heads(tmp_path / "tuned.pt", 4, 20) == ()
    assert find_alignment_heads(tmp_path / "tiny.pt", 2, 2) == (), "another model of that name"
    assert alignment_heads((), 3, 2) == ((1, 0), (1, 1), (2, 0), (2, 1))
    assert alignment_heads(((0, 1),), 3, 2) == ((0, 1),)


def test_a_bundle_keeps_the_heads_of_generation_config(tmp_path):
    folder = write_hugging_face(tmp_path / "source")
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": [[1, 0], [0, 1]]}))
    contents = import_whisper(folder)
    assert contents.configs["decoder"].alignment_heads == ((1, 0), (0, 1))
    assert write_bundle(contents, tmp_path / "bundle").config("decoder").alignment_heads == ((1, 0), (0, 1))


@pytest.mark.parametrize("heads", [[[2, 0]], [[0, 2]], [[0]], [[-1, 0]], [[0, True]], 3, ["00"]])
def test_heads_that_the_decoder_lacks_are_refused(tmp_path, heads):
    folder = write_hugging_face(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": heads}))
    with pytest.raises(UserError, match=r"generation_config.json: alignment_heads must be a list of \[layer, head\]"):
        import_whisper(folder)
    with pytest.raises(UserError, match="alignment_heads must be"):
        write_damaged_bundle(tmp_path, heads)


def write_damaged_bundle(folder, heads) -> Bundle:
    (folder / "generation_config.json").unlink()
    write_bundle(import_whisper(folder), folder / "bundle")
    path = folder / "bundle" / "bundle.json"
    content = json.loads(path.read_text())
    content["networks"]["decoder"]["config"]["alignment_heads"] = heads
    path.write_text(json.dumps(content))
    return Bundle(folder / "bundle")
