"""Words and their times, in a transcript of random weights."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ane.models.whisper.decoding import DecodedWindow
from ane.models.whisper.transcription import TranscriptionOptions
from ane.models.whisper.words import WordAligner, split_words, text_probabilities
from ane.system.errors import UserError

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


def test_probabilities_are_a_softmax_among_text():
    logits = np.array([[1.0, 3.0, 2.0], [0.0, 0.0, 0.0]], np.float32)
    assert text_probabilities(logits, [1, 0]) == pytest.approx([np.exp(3) / np.exp([1, 2, 3]).sum(), 1 / 3])


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

    def decode(self, texts, options):
        self.texts += texts
        return [self.window]


@pytest.mark.parametrize(("tokens", "second"), [
    ((FIRST, 39, 68, FIRST + 150, FIRST + 150, 75), 200),       # the last word ends after 2 s
    ((FIRST, 39, 68, FIRST + 150), 400)])                       # nothing follows the timestamp in this window of 4 s
def test_the_next_window_begins_after_the_last_word(transcriber, noise, monkeypatch, tokens, second):
    def align(columns, states, heads):
        scores = np.zeros((1, len(columns), 200), np.float32)
        for row, begin in ((3, 0), (4, 50), (5, 100)):
            scores[0, row, begin:begin + 50] = 20
        return np.zeros((len(columns), 51865), np.float32), scores

    decoder = AlignedDecoder(*tokens)
    monkeypatch.setattr(transcriber, "decoder", lambda candidates: decoder)
    monkeypatch.setattr(transcriber.backend, "align", align)
    transcriber.transcribe(noise[:80000], 16000, TIMED)
    assert [text.first_frame for text in decoder.texts[:2]] == [0, second]


def test_a_backend_without_attention_scores_is_refused(transcriber):
    with pytest.raises(UserError, match="the backend abc cannot time words: use backend=torch"):
        WordAligner(SimpleNamespace(name="abc", returns_attention=False), transcriber.decoder_config,
                    transcriber.special, transcriber.tokenizer)
