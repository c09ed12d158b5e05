"""Run the work for one client on a thread, and pass its results (sound or text) to the client's event loop."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from ane.server.errors import ClientGoneError
from ane.speech.turns import Turns

READING = 0.02  # seconds after which a job that prepares text lets other jobs compute
URGENT = 0.3  # with fewer seconds of sound left, a listener goes before requests that have not begun to speak

Work = Callable[["Job"], Any]


class Job:
    """The work for one client. The function ``work(job)`` does the work, and computes only while the job has a turn.

    The methods are grouped by their callers: the engine, the work on its thread, and the client in its event loop. Only
    the work changes ``_put_seconds``, and only the client changes ``_taken_seconds``.

    Attributes:
        text_at: Time at which the model was loaded and the work began to read the text. ``None`` before that.
        ended: Whether the client gets no more items.
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
        self._read = 0.0  # time at which the job last let other jobs run although it had text
        self.began = self.last_run = time.monotonic()
        self.first_item: float | None = None
        self.text_at: float | None = None
        self.deadline = self.began + seconds
        self.ended = self.gone = False

    # For the engine

    def priority(self) -> tuple[int, float]:
        """Return the sort key of the job. The job with the smallest key computes first.

        Jobs whose client has left come first. Then come listeners who would soon hear a gap, then speech that has not
        begun (the oldest first), then all other jobs. Jobs without sound take turns with each other, and so do jobs
        that prepare text.
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
        """Do the work on this thread, unless it was stopped before it begins."""
        try:
            with self._turns.turn(self.priority):
                self.last_run = time.monotonic()
                self.check()
                self._work(self)
        except BaseException as error:  # every kind of error, so that the thread can run other jobs
            self._error = self._error or error
        self._work = None  # the work refers to the job, and would delay the release of its sound
        self._end()

    def stop(self, error: BaseException) -> None:
        """End the work with an error.

        Work that is waiting ends at once, and other work ends when it next reports progress.
        """
        self._error = self._error or error
        self.gone = True
        with self._changed:
            self._changed.notify_all()
        self._end()

    def _end(self) -> None:
        with self._ending:
            if self.ended:
                return
            self._on_end(self)  # before the client learns of the end, so that the server has room for its next request
            self.ended = True
        self._notify()

    # For the work

    def put(self, item: Any, seconds: float = 0.0) -> None:
        """Pass an item to the client. If the item is sound, it lasts ``seconds``."""
        self.first_item = self.first_item or time.monotonic()
        self._put_seconds += seconds
        self._items.append((item, seconds))
        self._notify()

    def send(self, item: Any, seconds: float = 0.0) -> None:
        """Pass an item to the client.

        If too much sound is waiting for the client, wait until the client has taken half of it.
        """
        self.put(item, seconds)
        ready = self._has_room()
        self.wait(lambda: ready or self._is_half_empty())

    def wait(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Let other jobs compute until ``ready`` returns True. Raises the error with which ``stop`` was called."""
        if ready():
            self.last_run = time.monotonic()
            self._turns.offer(self.priority)
        else:
            with self.resting(), self._changed:
                while not (ready() or self.gone):
                    self._changed.wait()
        self.check()

    def resting(self) -> AbstractContextManager[None]:
        """Let other jobs compute during the ``with`` block."""
        self.last_run = time.monotonic()
        return self._turns.rest(self.priority)

    def check(self, *progress: Any) -> None:
        """Raise the error that somebody passed to ``stop``. If nobody called ``stop``, do nothing.

        You can use this method as a progress callback.
        """
        if self.gone:
            raise self._error or ClientGoneError("the client has gone")

    def texts(self) -> Iterator[str]:
        """Yield the texts that the client sends.

        While this job waits for text, other jobs may compute. The job also lets them compute if it has read for
        ``READING`` seconds.
        """
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
        except RuntimeError:  # the event loop has ended, and so have the connections of its clients
            self.gone = True

    # For the client

    def send_text(self, text: str | None) -> None:
        """Pass text from the client to the work. ``None`` means that the text is complete."""
        self._texts.append(text)
        with self._changed:
            self._changed.notify_all()

    def leave(self) -> None:
        """End the work before its next step, because the client wants no more sound or text."""
        self._items.clear()
        if not self.ended:
            self.stop(ClientGoneError("the client has gone"))

    async def items(self) -> AsyncIterator[Any]:
        """Yield the items of the work, each as soon as the work passes it on.

        Raises:
            UserError: The work failed because of the request.
            Exception: The work failed because of a fault in the server.
        """
        while True:
            self._arrived.clear()
            while self._items:
                item, seconds = self._items.popleft()
                before = self._is_half_empty()
                self._taken_seconds += seconds
                if self._is_half_empty() and not before:  # no notification earlier, because it wakes a thread
                    with self._changed:
                        self._changed.notify_all()
                yield item
            if self.ended and not self._items:
                if isinstance(self._error, Exception):
                    raise self._error
                if self._error is not None:  # an error such as SystemExit would end the client's event loop
                    raise RuntimeError(f"the work raised {type(self._error).__name__}") from self._error
                return
            if not self._items:
                await self._arrived.wait()
