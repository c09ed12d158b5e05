"""Order, memory bound, cancellation and look-ahead of the parallel computation."""

import random
import threading
import time
from collections.abc import Callable

import pytest

from ane.backends.onnx import graph_file
from ane.backends.onnx.graph_file import compute_in_order
from ane.system.errors import UserError


class CountedCalls:
    """A function of an item that waits a random time and counts the calls that run at once."""

    def __init__(self, failing: int | None = None, seconds: Callable[[], float] = lambda: random.uniform(0, 0.005)):
        self.failing, self.seconds = failing, seconds
        self.lock = threading.Lock()
        self.running = self.most = 0
        self.begun: list[int] = []
        self.threads: set[int] = set()

    def __call__(self, item: int) -> int:
        with self.lock:
            self.begun.append(item)
            self.threads.add(threading.get_ident())
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(self.seconds())
        with self.lock:
            self.running -= 1
        if item == self.failing:
            raise UserError(f"item {item} fails")
        return item * 10


def in_order(calls: CountedCalls, items: list[int], workers: int) -> list[int]:
    return list(compute_in_order(calls, items, workers))


@pytest.mark.parametrize(("count", "workers"), [(1, 4), (2, 2), (5, 1), (5, 2), (15, 3), (40, 4)])
def test_results_are_in_order_and_no_more_than_the_workers_run(count: int, workers: int) -> None:
    calls, items = CountedCalls(), list(range(count))
    random.Random(count).shuffle(items)
    assert in_order(calls, items, workers) == [item * 10 for item in items]
    assert calls.most <= workers
    assert sorted(calls.begun) == sorted(items)


@pytest.mark.parametrize(("count", "workers"), [(1, 4), (3, 1)])
def test_one_item_or_one_worker_takes_no_thread(count: int, workers: int,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_file, "ThreadPoolExecutor", None)
    calls = CountedCalls()
    in_order(calls, list(range(count)), workers)
    assert calls.threads == {threading.get_ident()}


def test_a_failure_cancels_the_rest() -> None:
    calls = CountedCalls(failing=19, seconds=lambda: 0.01)
    with pytest.raises(UserError, match="item 19 fails"):
        in_order(calls, list(range(19, -1, -1)), 2)
    assert len(calls.begun) <= 4
    assert calls.running == 0


def test_a_stream_computes_no_more_than_the_workers_ahead() -> None:
    calls = CountedCalls(seconds=lambda: 0.0)
    results = compute_in_order(calls, range(20), 3)
    assert not calls.begun
    assert next(results) == 0
    time.sleep(0.05)
    assert len(calls.begun) <= 4           # the one returned, and three ahead
    results.close()
    assert len(calls.begun) <= 4


def test_the_first_result_of_a_stream_does_not_wait_for_the_others() -> None:
    release = threading.Event()

    def function(item: int) -> int:
        if item:
            release.wait(10)
        return item

    results = compute_in_order(function, range(5), 2)
    assert next(results) == 0
    release.set()
    assert list(results) == [1, 2, 3, 4]
