"""Test the times of words, the segments of a window, and the formats in which they are written."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.bundles.bundle import Bundle
from ane.bundles.writing import write_bundle
from ane.models.whisper.alignment_heads import PUBLISHED, alignment_heads, find_alignment_heads
from ane.models.whisper.checkpoints import import_whisper
from ane.models.whisper.tokens import split_segments
from ane.models.whisper.transcript import FORMATS, Transcript, TranscriptSegment, TranscriptWord
from ane.models.whisper.transcription import TranscriptionOptions
from ane.models.whisper.words import WordAligner, median_filter, split_words, token_times
from ane.text.subtitles import clock
from tests.edits import edit_json
from tests.models.whisper.conftest import window
from tests.models.whisper.random_whisper import write_hugging_face
from tests.refusals import assert_refused

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


def test_words_are_in_order_and_make_up_the_text(transcriber, tokenizer, noise, scripted):
    text = [tokenizer.encode(part) for part in (" The quick brown fox", " jumps over the lazy dog.")]
    scripted(*[window(FIRST, *text[0], FIRST + 60, FIRST + 60, *text[1], FIRST + 190)] * 9)
    found = transcriber.transcribe(noise[:64000], 16000, TIMED)
    assert len(found.segments) == 2
    for segment in found.segments:
        assert "".join(word.word for word in segment.words).strip() == segment.text.strip()
        assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)
        times = [time for word in segment.words for time in (word.start, word.end)]
        assert times == sorted(times)
        assert all(0 <= word.probability <= 1 for word in segment.words)


def test_without_word_times_there_are_no_words(transcriber, noise, scripted):
    scripted(*[window(FIRST, 39, 68, FIRST + 150)] * 9)
    [segment] = transcriber.transcribe(noise[:64000], 16000, replace(TIMED, word_times=False)).segments
    assert segment.words is None


@pytest.mark.parametrize(
    ("tokens", "second"),
    [
        ((FIRST, 39, 68, FIRST + 150, FIRST + 150, 75), 200),  # the last word ends after 2 s
        ((FIRST, 39, 68, FIRST + 150), 400),
    ],
)  # nothing follows the timestamp in this window of 4 s
def test_the_next_window_begins_after_the_last_word(transcriber, noise, monkeypatch, scripted, tokens, second):
    def align(columns, states, heads):
        scores = np.zeros((1, len(columns), 200), np.float32)
        for row, begin in ((3, 0), (4, 50), (5, 100)):
            scores[0, row, begin : begin + 50] = 20
        return np.zeros((len(columns), 51865), np.float32), scores

    decoder = scripted(*[window(*tokens)] * 9)
    monkeypatch.setattr(transcriber.backend, "align", align)
    transcriber.transcribe(noise[:80000], 16000, TIMED)
    assert [text.first_frame for text, _ in decoder.calls[:2]] == [0, second]


def test_a_backend_without_attention_scores_is_refused(transcriber):
    assert_refused(
        "the backend abc cannot time words: use backend=torch",
        lambda: WordAligner(
            SimpleNamespace(name="abc", returns_attention=False),
            transcriber.decoder_config,
            transcriber.special,
            transcriber.tokenizer,
        ),
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
    assert_refused(r"generation_config.json: alignment_heads must be a list of \[layer, head\]", import_whisper, folder)
    assert_refused("alignment_heads must be", write_damaged_bundle, tmp_path, heads)


def write_damaged_bundle(folder, heads) -> Bundle:
    (folder / "generation_config.json").unlink()
    write_bundle(import_whisper(folder), folder / "bundle")
    entry = {"alignment_heads": heads}
    edit_json(folder / "bundle" / "bundle.json", lambda stated: stated["networks"]["decoder"]["config"].update(entry))
    return Bundle(folder / "bundle")


TEXT = 7


@pytest.mark.parametrize(
    ("tokens", "frames", "segments", "advance"),
    [
        # the next window transcribes the rest again
        ((FIRST, TEXT, FIRST + 100, FIRST + 100, TEXT), 3000, [(0.0, 2.0)], 200),
        ((FIRST, TEXT, FIRST + 100, FIRST + 150, TEXT, FIRST + 200), 3000, [(0.0, 2.0), (3.0, 4.0)], 3000),
        ((FIRST, TEXT, FIRST + 100), 3000, [(0.0, 2.0)], 3000),
        ((TEXT, TEXT), 500, [(0.0, 5.0)], 500),
        ((FIRST, TEXT), 500, [(0.0, 5.0)], 500),
        ((), 40, [(0.0, 0.4)], 40),
    ],
)
def test_a_pair_of_timestamps_ends_a_segment_and_a_single_one_the_window(tokens, frames, segments, advance):
    found, next_frame = split_segments(tokens, FIRST, frames, 0.01)
    assert [(round(segment.start, 2), round(segment.end, 2)) for segment in found] == segments
    assert next_frame == advance


@given(
    st.lists(st.tuples(st.integers(0, 700), st.integers(1, 100)), min_size=1, max_size=8),
    st.sampled_from(["pair", "single", "text"]),
)
def test_times_never_decrease(steps, ending):
    """Segments of tokens that keep the timestamp rules are in order, and the next window is not before them."""
    tokens, now = [], 0
    for pause, length in steps:
        if now + pause + length > 1500:
            break
        begin, now = now + pause, now + pause + length
        tokens += [FIRST + begin, TEXT, FIRST + now]
    tokens += {"pair": [FIRST + now], "single": [], "text": [FIRST + now, TEXT]}[ending]
    segments, advance = split_segments(tokens, FIRST, 3000, 0.01)
    times = [time for segment in segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    assert 0 < advance <= 3000
    assert times[-1] <= advance * 0.01 + 1e-9


def segment(start: float, end: float, text: str) -> TranscriptSegment:
    return TranscriptSegment(start, end, text, (1, 2), 0.0, -0.5, 0.1, 1.2)


TRANSCRIPT = Transcript(
    "Hello. A --> b & <c>", "en", 4000.0, (segment(0.0, 1.5, " Hello."), segment(3723.04, 3999.999, " A --> b & <c>"))
)


@pytest.mark.parametrize(
    ("form", "text", "empty"),
    [
        ("txt", "Hello.\nA --> b & <c>\n", ""),
        ("srt", "1\n00:00:00,000 --> 00:00:01,500\nHello.\n\n2\n01:02:03,040 --> 01:06:39,999\nA -> b & <c>\n", ""),
        (
            "vtt",
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello.\n\n"
            "01:02:03.040 --> 01:06:39.999\nA --&gt; b &amp; &lt;c&gt;\n",
            "WEBVTT\n",
        ),
    ],
)
def test_text_and_subtitles(form, text, empty):
    assert FORMATS[form](TRANSCRIPT) == text
    assert FORMATS[form](Transcript("", "", 0.0)) == empty


def test_json_has_every_field():
    content = json.loads(FORMATS["json"](TRANSCRIPT))
    assert content["language"] == "en"
    assert content["segments"][0] == {
        "start": 0.0,
        "end": 1.5,
        "text": " Hello.",
        "tokens": [1, 2],
        "temperature": 0.0,
        "average_log_probability": -0.5,
        "no_speech_probability": 0.1,
        "compression_ratio": 1.2,
        "seek": 0,
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "00:00:00.000"), (59.9996, "00:01:00.000"), (3599.9999, "01:00:00.000"), (360000.0, "100:00:00.000")],
)
def test_a_time_carries_when_it_is_rounded(seconds, text):
    assert clock(seconds, ".") == text


WORDS = (
    TranscriptWord(" a", 0.5, 1.0, 0.9),
    TranscriptWord(" <b>", 1.0, 1.2, 0.8),
    TranscriptWord(" c.", 2.0, 2.5, 0.7),
)
TIMED_TRANSCRIPT = Transcript("a <b> c.", "en", 3.0, (replace(segment(0.5, 2.5, " a <b> c."), words=WORDS),))


def test_subtitles_underline_the_word_that_is_spoken_and_none_in_a_pause():
    assert FORMATS["srt"](TIMED_TRANSCRIPT) == (
        "1\n00:00:00,500 --> 00:00:01,000\n<u>a</u> <b> c.\n\n2\n00:00:01,000 --> 00:00:01,200\na <u><b></u> c.\n\n"
        "3\n00:00:01,200 --> 00:00:02,000\na <b> c.\n\n4\n00:00:02,000 --> 00:00:02,500\na <b> <u>c.</u>\n"
    )
    assert "\n00:00:01.000 --> 00:00:01.200\na <u>&lt;b&gt;</u> c.\n" in FORMATS["vtt"](TIMED_TRANSCRIPT)


def test_json_lists_words_that_are_timed():
    content = json.loads(FORMATS["json"](TIMED_TRANSCRIPT))
    assert content["segments"][0]["words"][1] == {"word": " <b>", "start": 1.0, "end": 1.2, "probability": 0.8}
