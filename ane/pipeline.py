"""Steps that work side by side: one runs ahead of the next in a thread, a few results at most."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")
END = object()


def ahead(items: Iterator[T], most: int = 2) -> Iterator[T]:
    """The items in their order, made in a thread that is at most ``most`` of them ahead of who takes them.

    What the thread raises is raised where the item would have come. Closing the iterator, or leaving it behind, closes
    ``items`` in the thread once the item in the making is done, and waits for that: nothing goes on afterwards.
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
    try:
        while True:
            item, error = made.get()
            if error is not None:
                raise error
            if item is END:
                return
            yield item
    finally:
        over.set()
        thread.join()
