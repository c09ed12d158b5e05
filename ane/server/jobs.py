"""A job: one client's work on a thread of the engine, and the items (sound, text) that it hands over to the client."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from ane.server.errors import ClientGoneError
from ane.speech.turns import Turns

READING = 0.02  # seconds of reading texts, after which others get a turn
URGENT = 0.3  # seconds of sound left to a listener, below which a stream goes before requests that wait to begin

Work = Callable[["Job"], Any]


class Job:
    """One client's work: the function ``work(job)``, which holds a turn but where it waits.

    The engine calls ``run`` and ``stop``; the work, on its thread, what is under "within the work"; the client, in its
    event loop, what is under "of the client". Each of the two counters of seconds is written by one of them only.

    Attributes:
        text_at: when its model was loaded and it came to the text; None: it has not.
        ended: whether the client will get no more items.
    """

    def __init__(
        self,
        turns: Turns,
        work: Work,
        seconds: float,
        sound_ahead: float,
        speaks: bool,
        on_end: Callable[["Job"], None],
    ):
        self._turns, self._sound_ahead, self._speaks, self._on_end = turns, sound_ahead, speaks, on_end
        self._loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()
        self._work: Work | None = work
        self._items: deque[tuple[Any, float]] = deque()
        self._texts: deque[str | None] = deque()
        self._put_seconds = self._taken_seconds = 0.0
        self._changed, self._ending = threading.Condition(), threading.Lock()
        self._error: BaseException | None = None
        self._read = 0.0  # when it last let others run although there was text
        self.began = self.last_run = time.monotonic()
        self.first_item: float | None = None
        self.text_at: float | None = None
        self.deadline = self.began + seconds
        self.ended = self.gone = False

    # Of the engine

    @property
    def priority(self) -> tuple[int, float]:
        """Key for sorting: who has only to end, listeners who would soon hear a gap, then speech that has not begun by
        age, then the others: work that makes no sound takes turns, and so does reading.
        """
        if self.gone:
            return -1, 0.0
        if self._speaks and self.first_item is None:
            return 1, self._read or self.began
        if self.first_item is None or not self._put_seconds:
            return 2, self.last_run
        runs_out = self.first_item + self._put_seconds
        return (0 if runs_out < time.monotonic() + URGENT else 2), runs_out

    def run(self) -> None:
        """Do the work on this thread. What has been stopped before does not begin."""
        try:
            with self._turns.turn(lambda: self.priority):
                self.last_run = time.monotonic()
                self.check()
                self._work(self)
        except BaseException as error:  # of any kind: the thread must go on for the others
            self._error = self._error or error
        self._work = None  # it refers to the job: without it its sound is freed at once
        self._end()

    def stop(self, error: BaseException) -> None:
        """End the work with an error: where it waits, and while it computes, when it next reports its progress."""
        self._error = self._error or error
        self.gone = True
        with self._changed:
            self._changed.notify_all()
        self._end()

    def _end(self) -> None:
        with self._ending:
            if self.ended:
                return
            self._on_end(self)  # before the client knows: its next request has a place
            self.ended = True
        self._notify()

    # Within the work

    def put(self, item: Any, seconds: float = 0.0) -> None:
        """Hand an item over; ``seconds`` of sound in it."""
        self.first_item = self.first_item or time.monotonic()
        self._put_seconds += seconds
        self._items.append((item, seconds))
        self._notify()

    def send(self, item: Any, seconds: float = 0.0) -> None:
        """``put``. When as much waits for the client as may, wait until the client has taken half of it."""
        self.put(item, seconds)
        ready = self._has_room()
        self.wait(lambda: ready or self._is_half_empty())

    def wait(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Let others compute until ``ready``. Raises what the work was stopped with."""
        if ready():
            self.last_run = time.monotonic()
            self._turns.offer(lambda: self.priority)
        else:
            with self.resting(), self._changed:
                while not (ready() or self.gone):
                    self._changed.wait()
        self.check()

    def resting(self) -> AbstractContextManager[None]:
        """Let others compute within the block."""
        self.last_run = time.monotonic()
        return self._turns.rest(lambda: self.priority)

    def check(self, *progress: Any) -> None:
        """A progress callback. Raises what the work was stopped with."""
        if self.gone:
            raise self._error or ClientGoneError("the client has gone")

    def texts(self) -> Iterator[str]:
        """The texts that the client sends. Others get a turn while there is none, and every ``READING`` seconds."""
        while True:
            if not self._texts:
                self.wait(lambda: bool(self._texts))
            elif time.monotonic() > self.last_run + READING:
                self._read = time.monotonic()
                self.wait()
            if (text := self._texts.popleft()) is None:
                return
            yield text

    def _has_room(self) -> bool:
        return self._put_seconds - self._taken_seconds < self._sound_ahead

    def _is_half_empty(self) -> bool:
        return self._put_seconds - self._taken_seconds < self._sound_ahead / 2

    def _notify(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:  # the event loop has ended, and its clients with it
            self.gone = True

    # Of the client

    def send_text(self, text: str | None) -> None:
        """Send a piece of text; None: there is no more."""
        self._texts.append(text)
        with self._changed:
            self._changed.notify_all()

    def leave(self) -> None:
        """The client wants no more: the work ends before its next step."""
        self._items.clear()
        if not self.ended:
            self.stop(ClientGoneError("the client has gone"))

    async def items(self) -> AsyncIterator[Any]:
        """The items, each as soon as it is there.

        Raises:
            UserError, Exception: the work's own.
        """
        while True:
            self._arrived.clear()
            while self._items:
                item, seconds = self._items.popleft()
                before = self._is_half_empty()
                self._taken_seconds += seconds
                if self._is_half_empty() and not before:  # seldom: a thread wakes for it
                    with self._changed:
                        self._changed.notify_all()
                yield item
            if self.ended and not self._items:
                if isinstance(self._error, Exception):
                    raise self._error
                if self._error is not None:  # one such as SystemExit would end the client's event loop
                    raise RuntimeError(f"the work raised {type(self._error).__name__}") from self._error
                return
            if not self._items:
                await self._arrived.wait()
