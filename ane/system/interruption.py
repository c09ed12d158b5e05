"""Ctrl-C and SIGTERM, which end a command between any two steps of its Python code.

Code in C that calls Python may swallow what they raise (libsndfile's callbacks) or make another error of it
(safetensors), and some Python swallows it, too (a bare ``except`` around an import). Hence what came is remembered.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType


class Stopped(KeyboardInterrupt):
    """A kind of its own: of KeyboardInterrupt itself Python may remember that it passed through ``exec``, and then ends
    a program that was begun by ``python -m`` as SIGINT would, whatever its status."""


class Interruptions:
    """What both signals do.

    Attributes:
        came: the numbers of the signals that came.
        held: how many blocks are being worked off that nothing may interrupt.
    """

    def __init__(self):
        self.came: list[int] = []
        self.held = 0

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.came.append(number)
        self.check()

    def check(self) -> None:
        """Raise Stopped if a signal came, unless something holds it off."""
        if self.came and not self.held:
            raise Stopped

    def stand_down(self) -> None:
        """From now on a signal ends the process at once: what there was to leave in order is in order."""
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is self:
                signal.signal(number, signal.SIG_DFL)


_current: ContextVar[Interruptions | None] = ContextVar("interruptions", default=None)     # threads have none


@contextmanager
def interruptions() -> Iterator[Interruptions]:
    """While the block lasts both signals raise Stopped in it. Only the main thread can ask for that.

    A signal that is ignored stays so, as SIGINT of a job in the background.
    """
    ours = Interruptions()
    if threading.current_thread() is not threading.main_thread():
        yield ours
        return
    before = {number: earlier for number in (signal.SIGTERM, signal.SIGINT)
              if (earlier := signal.getsignal(number)) not in (signal.SIG_IGN, None)}     # None: not Python's to set
    token = _current.set(ours)
    try:
        for number in before:
            signal.signal(number, ours)
        yield ours
    finally:
        _current.reset(token)
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within ``interruptions``: signals wait for the end of a block in which they would be lost or do harm."""
    current = _current.get()
    if current is None:
        yield
        return
    current.held += 1
    try:
        yield
    finally:
        current.held -= 1
        current.check()


def check_interrupted() -> None:
    """Within ``interruptions``: raise Stopped for a signal that was swallowed on its way."""
    current = _current.get()
    if current is not None:
        current.check()
