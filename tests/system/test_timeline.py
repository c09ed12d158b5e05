"""A timeline of phases, whose spans never overlap."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from ane.system.iterators import closing_source
from ane.system.timeline import Timeline


def clock():
    """A clock that advances by a second at each look."""
    seconds = iter(range(100))
    return lambda: next(seconds)


def test_a_stage_within_a_stage_interrupts_it():
    timeline = Timeline(clock())
    with timeline.record("vocode"), timeline.record("decode"):
        pass
    spans = [(span.phase, span.start, span.end) for span in timeline.spans]
    assert [phase for phase, *_ in spans] == ["vocode", "decode", "vocode"]
    assert all(end <= start for (_, _, end), (_, start, _) in pairwise(spans))
    assert timeline.seconds_by_phase() == {"vocode": 2, "decode": 1}
    assert list(timeline.seconds_by_phase()) == ["vocode", "decode"]


def test_computing_an_item_is_work_of_its_stage_and_an_error_passes_through():
    timeline = Timeline(clock())

    def items() -> Iterator[int]:
        yield 1
        raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        list(timeline.record_each("decode", items()))
    assert timeline.seconds_by_phase() == {"decode": 2}


def test_what_is_done_with_an_item_is_not_work_of_the_stage_that_computed_it():
    timeline = Timeline(clock())
    for _ in timeline.record_each("decode", iter("ab")):
        timeline.now()
        timeline.now()
    assert timeline.seconds_by_phase() == {"decode": 3}        # two items and the end


def test_a_recorded_source_is_closed_with_its_reader():
    closed = []

    def items() -> Iterator[int]:
        try:
            yield 1
        finally:
            closed.append(True)

    reader = Timeline().record_each("decode", items())
    next(reader)
    reader.close()
    assert closed == [True]


def test_the_text_is_ready_at_the_start_unless_it_is_marked_later():
    timeline = Timeline(clock())
    assert timeline.text_ready == 0
    timeline.mark_text_ready()
    assert timeline.text_ready == 1


def test_the_first_sound_is_marked_once():
    timeline = Timeline(clock())
    assert timeline.first_audio is None
    timeline.mark_first_audio()
    timeline.mark_first_audio()
    assert timeline.first_audio == 1


def test_a_source_is_closed_however_the_block_ends():
    closed = []

    def numbers():
        try:
            yield from range(3)
        finally:
            closed.append(True)

    source = numbers()
    with closing_source(source):
        next(source)
    assert closed == [True]
    source = numbers()
    next(source)
    with pytest.raises(ValueError, match="half"), closing_source(source):
        raise ValueError("half")
    assert closed == [True, True]


def test_a_source_that_cannot_be_closed_is_left_alone():
    with closing_source([1, 2]) as nothing:
        assert nothing is None
