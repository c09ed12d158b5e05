"""Which written word has the time of which spoken words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.speech.words import delivered_words, matched_words, shared_time
from ane.text.passages import Delivery


def spoken(text: str) -> list[tuple[str, tuple[float, float]]]:
    """Each word lasts a second."""
    return [(word, (float(index), index + 1.0)) for index, word in enumerate(text.split())]


@pytest.mark.parametrize(("text", "read", "times"), [
    ("Hello, world.", "hello world", [(0, 1), (1, 2)]),
    ("It cost $5 today.", "it cost five dollars today", [(0, 1), (1, 2), (2, 4), (4, 5)]),
    ("Dr. Lee didn't.", "doctor lee didn't", [(0, 1), (1, 2), (2, 3)]),
    ("Well — yes.", "well yes", [(0, 1), (1, 1), (1, 2)]),
    ("Say {HH AH0 L OW1}, now.", "say HHAH0LOW1 now", [(0, 1), (1, 2), (2, 3)]),
])
def test_a_word_has_the_time_of_what_is_read_for_it(text, read, times):
    words = matched_words(text, spoken(read))
    assert [(word.start, word.end) for word in words] == times
    assert not any(word.estimated for word in words)


def test_words_that_are_read_as_others_in_common_share_their_time_and_say_so():
    words = matched_words("on 3 May 2024", spoken("on the third of may twenty twenty-four"))
    assert [word.word for word in words] == ["on", "3", "May", "2024"]
    assert (words[0].end, words[-1].end) == (1, 7)
    assert matched_words("1 2", [("twelve", (0.0, 4.0))])[1].estimated


@given(st.text(max_size=60), st.lists(st.text("abc ", min_size=1, max_size=5), max_size=12))
def test_every_written_word_has_a_time_in_order(text, read):
    words = matched_words(text, spoken(" ".join(read)))
    if words:
        assert "".join("".join(word.word for word in words).split()) == "".join(text.split())
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)


def test_times_follow_trimming_speed_and_the_pause_before_a_chunk():
    [word] = delivered_words(list(shared_time(["word"], (1.0, 2.0))), Delivery(speed=2.0, before=0.5), removed=0.4,
                             seconds=1.2, offset=10.0)
    assert (word.start, word.end) == (pytest.approx(10.8), pytest.approx(11.2))
