"""Test the segments of a window, and the formats in which they are written."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.models.whisper.tokens import split_segments
from ane.models.whisper.transcript import FORMATS, Transcript, TranscriptSegment, TranscriptWord
from ane.text.subtitles import clock

FIRST, TEXT = 50364, 7


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
TIMED = Transcript("a <b> c.", "en", 3.0, (replace(segment(0.5, 2.5, " a <b> c."), words=WORDS),))


def test_subtitles_underline_the_word_that_is_spoken_and_none_in_a_pause():
    assert FORMATS["srt"](TIMED) == (
        "1\n00:00:00,500 --> 00:00:01,000\n<u>a</u> <b> c.\n\n2\n00:00:01,000 --> 00:00:01,200\na <u><b></u> c.\n\n"
        "3\n00:00:01,200 --> 00:00:02,000\na <b> c.\n\n4\n00:00:02,000 --> 00:00:02,500\na <b> <u>c.</u>\n"
    )
    assert "\n00:00:01.000 --> 00:00:01.200\na <u>&lt;b&gt;</u> c.\n" in FORMATS["vtt"](TIMED)


def test_json_lists_words_that_are_timed():
    content = json.loads(FORMATS["json"](TIMED))
    assert content["segments"][0]["words"][1] == {"word": " <b>", "start": 1.0, "end": 1.2, "probability": 0.8}
