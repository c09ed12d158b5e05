"""Test which of the threads that wait for a turn goes before the next step of a shared computation."""

import threading
from collections.abc import Callable, Iterator

import pytest

from ane.speech.turns import Turns

PATIENCE = 10.0  # seconds that a thread may take to begin


class TurnHolder(threading.Thread):
    """A thread that wants a turn, and keeps it until ``end`` is set."""

    def __init__(self, turns: Turns, *urgency: int):
        super().__init__()
        self.turns, self.urgency, self.began, self.end = turns, urgency, threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with self.turns.turn(lambda: self.urgency):
            self.began.set()
            self.end.wait(PATIENCE)


Hold = Callable[..., TurnHolder]


@pytest.fixture(params=[1, 2])
def turns(request) -> Iterator[Turns]:
    with (turns := Turns(request.param)).turn():  # the turn of this thread, which runs the steps
        yield turns


@pytest.fixture
def hold(turns) -> Iterator[Hold]:
    threads: list[TurnHolder] = []

    def hold(*urgency: int, ends: bool = False) -> TurnHolder:
        waiting = len(turns._waiting)
        threads.append(thread := TurnHolder(turns, *urgency))
        if ends:
            thread.end.set()
        while len(turns._waiting) == waiting and not thread.began.is_set():
            pass
        return thread

    yield hold
    for thread in threads:
        thread.end.set()


def step_ends(turns: Turns) -> None:
    """End a step for which threads of class 1 wait, and begin the next one."""
    turns.offer(lambda: (1, 0.0), after_step=True)


def test_a_thread_of_the_same_class_goes_before_the_next_step_where_no_other_turn_gets_free(turns, hold):
    """A transcription may hold the other turn for seconds."""
    if turns.calls == 2:
        hold(1, 1)
    waits, later = hold(1, 2, ends=True), hold(2, 3, ends=True)
    step_ends(turns)
    assert waits.began.is_set()
    assert not later.began.is_set()


@pytest.mark.parametrize("turns", [2], indirect=True)
def test_steps_go_on_beside_threads_of_their_class_until_a_more_urgent_one_waits(turns, hold):
    first, second, third = hold(1, 1), hold(1, 2), hold(1, 3)
    first.end.set()
    assert second.began.wait(PATIENCE), "a waiting thread gets the other turn during the step"
    step_ends(turns)
    assert not third.began.is_set()
    second.end.set()
    assert third.began.wait(PATIENCE)
    urgent = hold(0, 4, ends=True)
    step_ends(turns)
    assert urgent.began.is_set()
