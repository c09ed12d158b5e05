"""End a command by an exception when the user presses Ctrl-C or SIGTERM arrives.

The exception can get lost. C code that calls Python may discard it (callbacks of libsndfile) or replace it by another
error (safetensors), and Python code may catch it (a bare ``except`` around an import). The code here therefore also
records the signals, so that ``check_interrupted`` can raise the exception again.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType


class Stopped(KeyboardInterrupt):
    """Means that a signal has asked the command to stop.

    We do not raise KeyboardInterrupt. If a KeyboardInterrupt passes through ``exec``, ``python -m`` ends the process as
    SIGINT would, and not with the exit status that the command chooses.
    """


class Interruptions:
    """The handler for SIGINT and SIGTERM.

    Attributes:
        received: Numbers of the signals that have arrived.
        deferrals: Number of ``uninterrupted`` blocks that are running.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.deferrals = 0

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
        self.check()

    def check(self) -> None:
        """Raise Stopped if a signal has arrived. Inside an ``uninterrupted`` block, do nothing."""
        if self.received and not self.deferrals:
            raise Stopped

    def restore_default_handlers(self) -> None:
        """Make the next signal end the process immediately. Call this function after cleaning up."""
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is self:
                signal.signal(number, signal.SIG_DFL)


# ``None`` in all threads except the main thread
_current: ContextVar[Interruptions | None] = ContextVar("interruptions", default=None)


@contextmanager
def interruptions() -> Iterator[Interruptions]:
    """Raise Stopped inside the block when SIGINT or SIGTERM arrives. The block has no effect outside the main thread.

    If the process already ignores a signal, it still ignores the signal. For example, a shell starts background jobs so
    that they ignore SIGINT.
    """
    ours = Interruptions()
    if threading.current_thread() is not threading.main_thread():
        yield ours
        return
    before = {
        number: handler
        for number in (signal.SIGTERM, signal.SIGINT)  # ``None`` means that a handler was set outside Python
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
    """Delay the exception Stopped until the end of the block, because it would get lost or do harm inside the block.

    The delay happens only inside an ``interruptions`` block.
    """
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


@contextmanager
def restored_interruptions() -> Iterator[None]:
    """Raise Stopped in place of an error into which a library turned the interruption of this block."""
    try:
        yield
    except Exception:
        check_interrupted()
        raise


def check_interrupted() -> None:
    """Raise Stopped if a signal has arrived whose exception got lost. Call this inside an ``interruptions`` block."""
    current = _current.get()
    if current is not None:
        current.check()
