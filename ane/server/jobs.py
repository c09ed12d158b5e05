"""A job: one client's work for the engine, and the items (sound, text) that it hands over to the client."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from inspect import isgenerator
from typing import TYPE_CHECKING, Any

from ane.server.errors import ClientGoneError
from ane.speech.lanes import Lanes

if TYPE_CHECKING:
    from ane.server.engine import Engine

READING = 0.02      # seconds of reading texts, after which others get a turn
URGENT = 0.3        # seconds of sound left to a listener, below which a stream goes before requests that wait to begin

# what work yields: the lanes whose next step it needs, whether it can go on, or None: let others run first
Waits = Lanes | Callable[[], bool] | None
Work = Callable[["Job"], Generator[Waits, None, None] | None]


class Job:
    """One client's work: the generator ``work(job)``, which yields wherever it must wait.

    The engine calls ``resume``, ``stop`` and what is under "within the work"; the client, in its event loop, what is
    under "of the client". Each of the two counters of seconds is written by one of them only.

    Attributes:
        serial: whether it must run on the engine's own thread: its model is not on the CPU.
        running: whether a thread beside the engine's runs it.
        waits_for: what its work yielded.
        text_at: when its model was loaded and it came to the text; None: it has not.
    """

    def __init__(self, engine: "Engine", work: Work, seconds: float, sound_ahead: float, speaks: bool = True):
        self._engine, self._sound_ahead, self._speaks = engine, sound_ahead, speaks
        self._loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()
        self._work: Work | None = work
        self._steps: Generator[Waits, None, None] | None = None
        self._items: deque[tuple[Any, float]] = deque()
        self._texts: deque[str | None] = deque()
        self._put_seconds = self._taken_seconds = 0.0
        self._read = 0.0        # when it last let others run although there was text
        self._error: BaseException | None = None
        self._ended = False
        self.began = self.last_run = time.monotonic()
        self.first_item: float | None = None
        self.text_at: float | None = None
        self.deadline = self.began + seconds
        self.waits_for: Waits = None
        self.serial = self.running = self.finished = self.gone = False

    # Of the engine

    @property
    def ready(self) -> bool:
        return not self.running and (self.waits_for is None or (callable(self.waits_for) and self.waits_for()))

    @property
    def lanes(self) -> Lanes | None:
        """The lanes whose next step it waits for, if it does."""
        return self.waits_for if not self.running and isinstance(self.waits_for, Lanes) else None

    @property
    def priority(self) -> tuple[int, float]:
        """Key for sorting: listeners who would soon hear a gap, then speech that has not begun by age, then the others:
        work that makes no sound takes turns, and so does reading."""
        if self._speaks and self.first_item is None:
            return 1, self._read or self.began
        if not self._put_seconds:
            return 2, self.last_run
        runs_out = self.first_item + self._put_seconds
        return (0 if runs_out < time.monotonic() + URGENT else 2), runs_out

    def resume(self) -> None:
        """Run the work until it waits or ends."""
        self.last_run = time.monotonic()
        try:
            if self._steps is None:
                made = self._work(self)
                if not isgenerator(made):
                    self.finished = True
                    return
                self._steps = made
            self.waits_for = next(self._steps)
        except StopIteration:
            self.finished = True
        except BaseException as error:      # of any kind: the thread must go on for the others
            self._error, self.finished = self._error or error, True

    def stop(self, error: BaseException) -> None:
        """End the work with an error, wherever it waits; while it runs, when it does. What has not begun does not."""
        self._error, self.gone = self._error or error, True
        if not self.running:
            self.clean_up()

    def clean_up(self) -> None:
        """Close the work, so that it keeps nothing."""
        steps, self._steps, self._work = self._steps, None, None
        if steps is not None:
            try:
                steps.close()
            except BaseException as error:
                self._error = self._error or error

    def announce_end(self) -> None:
        """Tell the client that no more items follow."""
        if not self.running:        # they refer to the job: without them its sound is freed at once
            self._steps = self._work = None
        self._ended = True
        self._notify()

    # Within the work

    def put(self, item: Any, seconds: float = 0.0) -> Callable[[], bool]:
        """Hand an item over; ``seconds`` of sound in it. Yield what it returns: whether the client has taken enough."""
        self.first_item = self.first_item or time.monotonic()
        self._put_seconds += seconds
        self._items.append((item, seconds))
        self._notify()
        return self._has_room

    def _has_room(self) -> bool:
        return self._put_seconds - self._taken_seconds < self._sound_ahead

    def check(self, *progress: Any) -> None:
        """A progress callback. Raises ClientGoneError when the client has left."""
        if self.gone:
            raise ClientGoneError("the client has gone")

    def has_text(self) -> bool:
        return bool(self._texts)

    def texts(self) -> Iterator[str | None]:
        """The texts that the client sends; None where there is none yet, or others have waited for ``READING`` seconds:
        yield ``has_text`` then."""
        while True:
            if not self._texts:
                yield None
            elif time.monotonic() > self.last_run + READING:
                self._read = time.monotonic()
                yield None
            if self._texts:
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
