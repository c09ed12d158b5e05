"""Record when each phase of a request ran, for `ane say --json`, and close the generators that do the work."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar


@contextmanager
def closing_source(source: Iterable) -> Iterator[None]:
    """Close ``source`` at the end of the ``with`` block, if it has a method ``close``.

    Use this in a generator that reads from ``source``, so that closing the generator also closes ``source``.
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
    """A period in which a phase ran. Its times are in seconds since the start of the timeline."""

    phase: str
    start: float
    end: float


class Timeline:
    """Records the spans of one thread's work. If a phase begins inside another phase, it interrupts that phase.

    Attributes:
        spans: Spans, in the order in which they ended.
        text_ready: Seconds from the start of the timeline until the text was known. Earlier work, such as loading, is
            done once for many texts.
        first_audio: Seconds from the start of the timeline until the first audio. ``None`` means that there is none
            yet.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._began = clock, clock()
        self._active: list[
            tuple[str, float]
        ] = []  # phases that have not ended, and the time when each last began or continued
        self._reported: dict[str, float] = {}
        self.spans: list[Span] = []
        self.text_ready = 0.0
        self.first_audio: float | None = None

    def branch(self) -> "Timeline":
        """Create a timeline for another thread's work on the same text.

        Everything that the new timeline records also appears in this timeline.
        """
        other = Timeline(self._clock)
        other._began, other.spans = self._began, self.spans
        return other

    def now(self) -> float:
        """Return the seconds since the start of the timeline."""
        return self._clock() - self._began

    def mark_text_ready(self) -> None:
        self.text_ready = self.now()

    def mark_first_audio(self) -> None:
        """Record that the first audio exists now. Later calls change nothing."""
        if self.first_audio is None:
            self.first_audio = self.now()

    @contextmanager
    def record(self, phase: str) -> Iterator[None]:
        """Record the time of the block as work of ``phase``."""
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
        """Yield the items of an iterator, and record the time to compute each item as work of ``phase``."""
        with closing_source(items):
            while True:
                with self.record(phase):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item

    def seconds_by_phase(self) -> dict[str, float]:
        """Return the seconds of work for each phase, in the order in which the phases first began."""
        seconds: dict[str, float] = {}
        for span in sorted(self.spans, key=lambda span: span.start):
            seconds[span.phase] = seconds.get(span.phase, 0.0) + span.end - span.start
        return seconds

    def new_seconds_by_phase(self) -> dict[str, float]:
        """Return the seconds of work for each phase since the last call of this method."""
        before, self._reported = self._reported, self.seconds_by_phase()
        return {phase: seconds - before.get(phase, 0.0) for phase, seconds in self._reported.items()}

    def _end_span(self) -> None:
        if self._active:
            phase, start = self._active[-1]
            self.spans.append(Span(phase, start, self.now()))
