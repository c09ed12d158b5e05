"""Iterators that draw from each other."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def closing_source(source: Iterable) -> Iterator[None]:
    """Close ``source`` when the block is left, if it can be closed.

    A generator that draws from another generator closes it this way when it is itself closed.
    """
    try:
        yield
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()


END = object()


def ahead(items: Iterator, most: int = 2, stop: Callable[[], None] = lambda: None) -> Iterator:
    """The items in their order, made in a thread that is at most ``most`` of them ahead of who takes them.

    What the thread raises is raised where the item would have come. Closing the iterator early, or leaving it behind,
    calls ``stop``, which may make the item in the making come to an end, closes ``items`` in the thread, and waits for
    that: nothing goes on afterwards.
    """
    made: queue.Queue = queue.Queue(maxsize=most)
    over = threading.Event()

    def hand(item: object, error: BaseException | None = None) -> bool:
        while not over.is_set():
            try:
                made.put((item, error), timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not hand(item):
                    return
            hand(END)
        except BaseException as error:      # whatever it is, it is raised where the result is waited for
            hand(END, error)
        finally:
            if hasattr(items, "close"):
                items.close()

    thread = threading.Thread(target=work, name="ane-ahead", daemon=True)
    thread.start()
    ended = False
    try:
        while True:
            item, error = made.get()
            ended = item is END
            if error is not None:
                raise error
            if ended:
                return
            yield item
    finally:
        over.set()
        if not ended:
            stop()
        thread.join()
