"""The tokens of a window become segments, and the next window begins where the last complete one ended."""

from hypothesis import given
from hypothesis import strategies as st

from ane.models.whisper.tokens import split_segments

FIRST, TEXT = 50364, 7


def split(*tokens: int, frames: int = 3000):
    segments, advance = split_segments(tokens, FIRST, frames, 0.01)
    return [(round(segment.start, 2), round(segment.end, 2)) for segment in segments], advance


def test_a_pair_ends_a_segment_and_the_rest_is_heard_again():
    assert split(FIRST, TEXT, FIRST + 100, FIRST + 100, TEXT) == ([(0.0, 2.0)], 200)


def test_a_single_timestamp_at_the_end_completes_the_window():
    assert split(FIRST, TEXT, FIRST + 100, FIRST + 150, TEXT, FIRST + 200) == ([(0.0, 2.0), (3.0, 4.0)], 3000)


def test_a_window_without_pairs_is_one_segment():
    assert split(FIRST, TEXT, FIRST + 100) == ([(0.0, 2.0)], 3000)
    assert split(TEXT, TEXT, frames=500) == ([(0.0, 5.0)], 500)
    assert split(FIRST, TEXT, frames=500) == ([(0.0, 5.0)], 500)


def test_a_window_without_tokens_advances():
    assert split(frames=40) == ([(0.0, 0.4)], 40)


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(1, 100)), min_size=1, max_size=8),
       st.sampled_from(["pair", "single", "text"]))
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
