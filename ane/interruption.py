"""Ctrl-C and SIGTERM, which end a command between any two steps of its Python code, as KeyboardInterrupt.

Code in C that calls Python may swallow that (libsndfile's callbacks) or make another error of it (safetensors).
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """While the block lasts both signals raise KeyboardInterrupt in it; yields the list of those that came.

    An ignored SIGINT stays so, as of a job in the background. Does nothing but in the main thread.
    """
    came: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    with _handled(numbers, interrupt):
        yield came


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Both signals wait until the block has ended; for short blocks, in which what they raise would do harm."""
    waiting: list[int] = []
    try:
        with _handled([signal.SIGTERM, signal.SIGINT], lambda number, _: waiting.append(number)):
            yield
    finally:
        for number in waiting:
            signal.raise_signal(number)


@contextmanager
def _handled(numbers: list[signal.Signals], handler: signal.Handlers) -> Iterator[None]:
    """The signals given to ``handler`` within the block; only the main thread can do so, and only it gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            if earlier is not None:         # not set by Python, so that it cannot be set again
                signal.signal(number, earlier)
