"""When each stage of a request worked: what `ane say` reports, and the timeline of ``--profile``."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Span:
    """A stage at work, in seconds since the timeline began."""

    stage: str
    start: float
    end: float


class Timeline:
    """Spans of work. A stage that is begun within another (one that waits for its result) interrupts it.

    Threads may record side by side.

    Attributes:
        spans: in the order in which they ended.
        known: seconds until the text was known: what came before is paid once for many texts.
        heard: seconds until the first sound; None: none yet.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._began = clock, clock()
        self._local = threading.local()
        self.spans: list[Span] = []
        self.known = 0.0
        self.heard: float | None = None

    def now(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    def text_is_known(self) -> None:
        self.known = self.now()

    def sound_is_there(self) -> None:
        """Mark the first sound; later ones change nothing."""
        if self.heard is None:
            self.heard = self.now()

    @contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """Record the time within as work of ``stage``."""
        stack = self._stack()
        self._pause(stack)
        stack.append((stage, self.now()))
        try:
            yield
        finally:
            self._pause(stack)
            stack.pop()
            if stack:
                stack[-1] = (stack[-1][0], self.now())

    def through(self, stage: str, items: Iterator[T]) -> Iterator[T]:
        """The items, the time that each is waited for recorded as work of ``stage``."""
        try:
            while True:
                with self.at(stage):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item
        finally:
            if hasattr(items, "close"):
                items.close()

    def spent(self) -> dict[str, float]:
        """Seconds of work of each stage, in the order in which they began."""
        seconds: dict[str, float] = {}
        for span in sorted(self.spans, key=lambda span: span.start):
            seconds[span.stage] = seconds.get(span.stage, 0.0) + span.end - span.start
        return seconds

    def _stack(self) -> list[tuple[str, float]]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        return self._local.stack

    def _pause(self, stack: list[tuple[str, float]]) -> None:
        if stack:
            stage, start = stack[-1]
            self.spans.append(Span(stage, start, self.now()))
