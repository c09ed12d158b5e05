"""A job: one client's work on the engine's thread, and the items (sound, text) that it hands over to the client."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, greenlet

from ane.models.lane_sharing import SharedLanes
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.server.engine import Engine

URGENT = 0.3        # seconds of sound left to a listener, below which a stream goes before requests that wait to begin


class ClientGoneError(Exception):
    """The client of a job closed its connection, or the server stops."""


class DeadlineError(UserError):
    """A job took longer than a request may."""


class Job:
    """One client's work: ``work(job)`` runs as a greenlet on the engine's thread, and pauses wherever it must wait.

    The engine calls ``resume``, ``stop`` and what is under "within the work"; the client, in its event loop, what is
    under "of the client". Each of the two counters of seconds is written by one of them only.

    Attributes:
        waits_for: None: it can run; else the lanes whose next step it needs, or a function: whether it can run.
        text_at: when its model was loaded and it came to the text; None: it has not.
    """

    def __init__(self, engine: "Engine", work: Callable[["Job"], None], seconds: float, sound_ahead: float,
                 speaks: bool = True):
        self._engine, self._sound_ahead, self._speaks = engine, sound_ahead, speaks
        self._loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()
        self._work, self._greenlet = work, None         # a greenlet belongs to the thread that makes it
        self._items: deque[tuple[Any, float]] = deque()
        self._texts: deque[str | None] = deque()
        self._put_seconds = self._taken_seconds = 0.0
        self._error: BaseException | None = None
        self._ended = False
        self.began = self.last_run = time.monotonic()
        self.first_item: float | None = None
        self.text_at: float | None = None
        self.deadline = self.began + seconds
        self.waits_for: SharedLanes | Callable[[], bool] | None = None
        self.gone = False

    # Of the engine

    @property
    def ready(self) -> bool:
        return self.waits_for is None or (callable(self.waits_for) and self.waits_for())

    @property
    def lanes(self) -> SharedLanes | None:
        """The lanes whose next step it waits for, if it does."""
        return None if self.waits_for is None or callable(self.waits_for) else self.waits_for

    @property
    def priority(self) -> tuple[int, float]:
        """Key for sorting: listeners who would soon hear a gap, then speech that has not begun by age, then the others:
        work that makes no sound takes turns."""
        if self._speaks and self.first_item is None:
            return 1, self.began
        if not self._put_seconds:
            return 2, self.last_run
        runs_out = self.first_item + self._put_seconds
        return (0 if runs_out < time.monotonic() + URGENT else 2), runs_out

    def resume(self) -> None:
        """Run the work until it pauses or ends."""
        self.waits_for, self.last_run = None, time.monotonic()
        if self._greenlet is None:
            self._greenlet = greenlet(lambda: self._work(self))
        self._run(self._greenlet.switch)

    def stop(self, error: BaseException) -> None:
        """End the work with an error, wherever it pauses. Work that has not begun does not begin."""
        self._error = error
        if self._greenlet is not None:
            self._run(lambda: self._greenlet.throw(GreenletExit()))

    def _run(self, switch: Callable[[], Any]) -> None:
        try:
            switch()
        except BaseException as error:      # of any kind: the thread must go on for the others
            self._error = self._error or error

    @property
    def finished(self) -> bool:
        """Whether the work has ended."""
        return self._greenlet is not None and self._greenlet.dead

    def announce_end(self) -> None:
        """Tell the client that no more items follow."""
        del self._work, self._greenlet          # they refer to the job: without them its sound is freed at once
        self._ended = True
        self._notify()

    # Within the work

    def put(self, item: Any, seconds: float = 0.0) -> None:
        """Hand an item over; ``seconds`` of sound in it. Pauses while the client has not taken enough of the others."""
        if not self._has_room():
            self.pause(self._has_room)
        self.first_item = self.first_item or time.monotonic()
        self._put_seconds += seconds
        self._items.append((item, seconds))
        self._notify()
        self.pause()

    def _has_room(self) -> bool:
        return self._put_seconds - self._taken_seconds < self._sound_ahead

    def pause(self, until: SharedLanes | Callable[[], bool] | None = None) -> None:
        """Let other jobs run; None: and go on when it is this one's turn again."""
        self.waits_for = until
        self._engine.switch()

    def texts(self) -> Iterator[str]:
        """The texts that the client sends, as they arrive."""
        while True:
            self.pause(lambda: bool(self._texts))
            text = self._texts.popleft()
            if text is None:
                return
            yield text

    def _notify(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:        # the event loop has ended, and its clients with it
            self.gone = True

    # Of the client

    def send_text(self, text: str | None) -> None:
        """Send a piece of text; None: there is no more."""
        self._texts.append(text)
        self._engine.wake()

    def leave(self) -> None:
        """The client wants no more: the work ends before its next step."""
        self.gone = True
        self._items.clear()
        self._engine.wake()

    async def items(self) -> AsyncIterator[Any]:
        """The items, each as soon as it is there.

        Raises:
            UserError, Exception: the work's own.
        """
        while True:
            self._arrived.clear()
            while self._items:
                item, seconds = self._items.popleft()
                full = not self._has_room()
                self._taken_seconds += seconds
                if full:
                    self._engine.wake()
                yield item
            if self._ended and not self._items:
                if isinstance(self._error, Exception):
                    raise self._error
                if self._error is not None:         # one such as SystemExit would end the client's event loop
                    raise RuntimeError(f"the work raised {type(self._error).__name__}") from self._error
                return
            if not self._items:
                await self._arrived.wait()
