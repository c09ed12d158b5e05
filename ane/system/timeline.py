"""Record when each phase of a request ran, as `ane say --json` reports it, and close generators that do the work."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar


@contextmanager
def closing_source(source: Iterable) -> Iterator[None]:
    """Close ``source`` when the block ends, if it can be closed.

    A generator that reads from another one uses this to close that one when it is itself closed.
    """
    try:
        yield
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()


T = TypeVar("T")


@dataclass(frozen=True)
class Span:
    """A period in which a phase ran, in seconds since the timeline began."""

    phase: str
    start: float
    end: float


class Timeline:
    """Spans of work, recorded by one thread. A phase that begins within another one interrupts it.

    Attributes:
        spans: Spans in the order in which they ended.
        text_ready: Seconds until the text was known. The work before that is done once for many texts.
        first_audio: Seconds until the first audio, or ``None`` before that.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._began = clock, clock()
        self._active: list[
            tuple[str, float]
        ] = []  # phases that have begun and not ended, with the time when each last started
        self._reported: dict[str, float] = {}
        self.spans: list[Span] = []
        self.text_ready = 0.0
        self.first_audio: float | None = None

    def branch(self) -> "Timeline":
        """Return a timeline for another thread's work on the same text. Its spans are also spans of this timeline."""
        other = Timeline(self._clock)
        other._began, other.spans = self._began, self.spans
        return other

    def now(self) -> float:
        """Return the seconds since the timeline began."""
        return self._clock() - self._began

    def mark_text_ready(self) -> None:
        self.text_ready = self.now()

    def mark_first_audio(self) -> None:
        """Record the time of the first audio. Later calls change nothing."""
        if self.first_audio is None:
            self.first_audio = self.now()

    @contextmanager
    def record(self, phase: str) -> Iterator[None]:
        """Record the block as work of ``phase``."""
        self._end_span()
        self._active.append((phase, self.now()))
        try:
            yield
        finally:
            self._end_span()
            self._active.pop()
            if self._active:
                self._active[-1] = (self._active[-1][0], self.now())

    def record_each(self, phase: str, items: Iterator[T]) -> Iterator[T]:
        """Yield the items, and record the time of computing each item as work of ``phase``."""
        with closing_source(items):
            while True:
                with self.record(phase):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item

    def seconds_by_phase(self) -> dict[str, float]:
        """Return the seconds of work by phase, in the order in which the phases began."""
        seconds: dict[str, float] = {}
        for span in sorted(self.spans, key=lambda span: span.start):
            seconds[span.phase] = seconds.get(span.phase, 0.0) + span.end - span.start
        return seconds

    def new_seconds_by_phase(self) -> dict[str, float]:
        """Return ``seconds_by_phase`` since the last call of this function: the work on one text among several."""
        before, self._reported = self._reported, self.seconds_by_phase()
        return {phase: seconds - before.get(phase, 0.0) for phase, seconds in self._reported.items()}

    def _end_span(self) -> None:
        if self._active:
            phase, start = self._active[-1]
            self.spans.append(Span(phase, start, self.now()))
