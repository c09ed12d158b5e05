"""End a command on Ctrl-C or SIGTERM with an exception between two steps of its Python code.

The signals that arrived are also recorded, because the exception can get lost. C code that calls Python may discard it
(libsndfile's callbacks) or turn it into another error (safetensors), and Python code may swallow it (a bare ``except``
around an import).
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType


class Stopped(KeyboardInterrupt):
    """A signal asked the command to stop.

    This is not KeyboardInterrupt itself. If that one passes through ``exec``, ``python -m`` ends the process as SIGINT
    would, whatever its exit status.
    """


class Interruptions:
    """The handler for both signals.

    Attributes:
        received: Numbers of the signals that arrived.
        deferrals: Number of active ``uninterrupted`` blocks.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.deferrals = 0

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
        self.check()

    def check(self) -> None:
        """Raise Stopped if a signal arrived, except within ``uninterrupted``."""
        if self.received and not self.deferrals:
            raise Stopped

    def restore_default_handlers(self) -> None:
        """Make the next signal end the process immediately. Call it after cleaning up."""
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is self:
                signal.signal(number, signal.SIG_DFL)


_current: ContextVar[Interruptions | None] = ContextVar("interruptions", default=None)  # None in other threads


@contextmanager
def interruptions() -> Iterator[Interruptions]:
    """Raise Stopped for both signals within the block. This has no effect outside the main thread.

    A signal that is ignored stays ignored, such as SIGINT in a background job of a shell.
    """
    ours = Interruptions()
    if threading.current_thread() is not threading.main_thread():
        yield ours
        return
    before = {
        number: handler
        for number in (signal.SIGTERM, signal.SIGINT)  # None means that Python did not set the handler
        if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    token = _current.set(ours)
    try:
        for number in before:
            signal.signal(number, ours)
        yield ours
    finally:
        _current.reset(token)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Stopped (within ``interruptions``) to the end of a block in which it would get lost or do harm."""
    current = _current.get()
    if current is None:
        yield
        return
    current.deferrals += 1
    try:
        yield
    finally:
        current.deferrals -= 1
        current.check()


def check_interrupted() -> None:
    """Raise Stopped (within ``interruptions``) if a signal arrived whose exception got lost."""
    current = _current.get()
    if current is not None:
        current.check()
