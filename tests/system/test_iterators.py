"""Steps side by side: order kept, errors told, nothing left behind; and a timeline that adds up."""

import threading
from collections.abc import Iterator
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.system.iterators import ahead
from ane.system.timeline import Timeline


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name == "ane-ahead"}


@given(st.lists(st.integers()), st.integers(1, 4))
def test_items_come_in_order_and_the_thread_ends(items, most):
    assert list(ahead(iter(items), most)) == items
    assert not threads()


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 3))
def test_what_a_step_raises_is_raised_where_its_item_would_have_come(good, taken, most):
    def failing() -> Iterator[int]:
        yield from range(good)
        raise RuntimeError("step")

    items, found = ahead(failing(), most), []
    if taken <= good:
        found = [next(items) for _ in range(taken)]
        items.close()
    else:
        with pytest.raises(RuntimeError, match="step"):
            found.extend(items)
    assert found == list(range(good))[:taken]
    assert not threads()


def test_no_more_is_made_than_is_wanted_and_closing_closes_the_source():
    made, closed = [], threading.Event()

    def source() -> Iterator[int]:
        try:
            for item in count():
                made.append(item)
                yield item
        finally:
            closed.set()

    items = ahead(source(), 2)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    items.close()
    assert closed.is_set()
    assert len(made) <= 3 + 2 + 2       # taken, waiting, one in the hand and one in the making
    assert not threads()


def test_a_stage_within_a_stage_interrupts_it():
    time = iter(range(100))
    timeline = Timeline(clock=lambda: next(time))
    with timeline.at("vocode"), timeline.at("decode"):
        pass
    spans = [(span.stage, span.start, span.end) for span in timeline.spans]
    assert [stage for stage, *_ in spans] == ["vocode", "decode", "vocode"]
    assert all(end <= start for (_, _, end), (_, start, _) in pairwise(spans))
    assert list(timeline.spent()) == ["vocode", "decode"]


def test_waiting_for_an_item_is_work_of_its_stage_and_an_error_passes_through():
    timeline = Timeline()

    def items() -> Iterator[int]:
        yield 1
        raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        list(timeline.through("decode", items()))
    assert {span.stage for span in timeline.spans} == {"decode"}
    assert timeline.spent()["decode"] >= 0


def test_the_first_sound_is_marked_once():
    timeline = Timeline()
    assert timeline.heard is None
    timeline.sound_is_there()
    first = timeline.heard
    timeline.sound_is_there()
    assert timeline.heard == first
