"""Test computations that run in parallel: their order, memory limit, cancellation and look-ahead."""

import random
import threading
import time
from collections.abc import Iterator

import pytest

from ane.backends.onnx import graph_file
from ane.backends.onnx.graph_file import compute_in_order
from ane.system.errors import UserError
from tests.refusals import assert_refused


class CountedCalls:
    """A function of an item that takes some time and counts the calls that run at once."""

    def __init__(self, seconds: Iterator[float]):
        self.seconds, self.lock = seconds, threading.Lock()
        self.running = self.most = 0
        self.begun: list[int] = []
        self.threads: set[int] = set()

    def __call__(self, item: int) -> int:
        with self.lock:
            seconds = next(self.seconds)
            self.begun.append(item)
            self.threads.add(threading.get_ident())
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(seconds)
        with self.lock:
            self.running -= 1
        if item == 19:
            raise UserError("item 19 fails")
        return item * 10


@pytest.mark.parametrize(("count", "workers"), [(1, 4), (2, 2), (5, 1), (5, 2), (15, 3)])
def test_results_are_in_order_and_no_more_than_the_workers_run(monkeypatch, count, workers):
    if count == 1 or workers == 1:  # this case starts no thread
        monkeypatch.setattr(graph_file, "ThreadPoolExecutor", None)
    calls, items = CountedCalls(iter(lambda: random.uniform(0, 0.005), None)), list(range(count))
    random.Random(count).shuffle(items)
    assert list(compute_in_order(calls, items, workers)) == [item * 10 for item in items]
    assert calls.most <= workers
    assert sorted(calls.begun) == sorted(items)
    assert (calls.threads == {threading.get_ident()}) == (count == 1 or workers == 1)


def test_a_failure_cancels_the_rest():
    calls = CountedCalls(iter(lambda: 0.01, None))
    assert_refused("item 19 fails", lambda: list(compute_in_order(calls, range(19, -1, -1), 2)))
    assert len(calls.begun) <= 4
    assert calls.running == 0


def test_a_stream_computes_no_more_than_the_workers_ahead():
    calls = CountedCalls(iter(lambda: 0.0, None))
    results = compute_in_order(calls, range(18), 3)
    assert not calls.begun
    assert next(results) == 0
    time.sleep(0.05)
    assert len(calls.begun) <= 4  # the call whose result was returned, and three more
    results.close()
    assert len(calls.begun) <= 4


def test_the_first_result_of_a_stream_does_not_wait_for_the_others():
    release = threading.Event()

    def function(item: int) -> int:
        if item:
            release.wait(10)
        return item

    results = compute_in_order(function, range(5), 2)
    assert next(results) == 0
    release.set()
    assert list(results) == [1, 2, 3, 4]
