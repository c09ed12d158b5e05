"""Run vocoders in windows, as frames arrive or when all are there.

A frame depends on ``margin`` frames on either side, the receptive field of the network. A call therefore gets new
frames with a margin on either side, and returns the same for the new frames as a call with all frames. The margin ends
at the beginning and at the end of the input, so padding inside the networks (zeros, mirrored noise, silence) is the
same, too.

While frames arrive, the frames of a call depend on their index alone, not on how many have arrived, so any division
into pieces gives the same bits. When all frames are there, the calls depend on the number of frames, and the result
differs by rounding. Calls have few lengths, because libraries keep compiled code for each length that they met:
oneDNN's filled 2 GB with a long text (docs/benchmarks.md).

The backend says how long a call may be (``Backend.row_limit``), so a model needs to know nothing of packages.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ane.backends.base import Backend
from ane.backends.rows import STEP

LEAST = 12  # new frames of a call, at least, however wide the margins
WHOLE = tuple(range(64, 257, STEP))  # lengths of a call when all frames are there
FIRST_LENGTHS = 60, 80  # of the first call of a stream: FastSpeech's first piece has 40 frames


@dataclass(frozen=True)
class StreamingWindow:
    """How many frames one call gets while frames arrive. A frame has 256 samples (10.7 ms).

    Attributes:
        first: New frames of the first call, few so that sound starts soon.
        window: Frames of a later call with both margins, which take as long as new frames. The default is the larger
            bucket of converted vocoders.
        largest: Frames that the window grows to on an engine that takes any number.
        growth: New frames that a larger window may have for each frame that is done.
    """

    first: int = 12
    window: int = 62
    largest: int = 0
    growth: float = 0.5

    def new_frames(self, done: int, margin: int) -> int:
        """Return how many new frames the next call gets when ``done`` frames are done.

        The window grows by ``STEP`` as far as ``growth`` allows. With half of ``done``, new frames are there in time
        if a second of sound takes less than two thirds of a second to compute. With twice of it, less than a third.
        """
        window = self.window
        while window + STEP <= self.largest and window + STEP - 2 * margin <= self.growth * done:
            window += STEP
        return max(window - margin - min(done, margin), min(self.first, LEAST)) if done else self.first


def call_lengths(length: int, margin: int, first: Sequence[int] = ()) -> list[int]:
    """Return the frames of each call for ``length`` frames that are all there: few calls, of the lengths ``WHOLE``.

    Input that is too short for these lengths gets one call.

    Args:
        first: Lengths that the first call may have, so that its sound comes soon. Without any, the first call is like
            the others.
    """
    shortest = max(-(-(2 * margin + LEAST) // STEP) * STEP, WHOLE[0])
    if length < shortest or shortest > WHOLE[-1]:
        return [length]
    plans = [
        [begin, *even_calls(length - begin + 2 * margin, margin, shortest, length)]
        for begin in first
        if margin + LEAST <= begin < length
    ]
    return min(plans, key=len) if plans else even_calls(length, margin, shortest, length)


def even_calls(frames: int, margin: int, shortest: int, longest: int) -> list[int]:
    """Return as few lengths of calls as cover ``frames``, almost equal, between ``shortest`` and ``longest``."""
    calls, most = 1, min(longest, WHOLE[-1]) // STEP
    while (steps := -(-(frames + 2 * margin * (calls - 1)) // STEP)) > calls * most:
        calls += 1
    share, longer = divmod(max(steps, calls * shortest // STEP), calls)
    return [STEP * (share + (call < longer)) for call in range(calls)]


class Windowed:
    """A vocoder, or another stage with margins, on columns (C, n) that arrive in pieces, one column per frame.

    Args:
        backend: Backend of the stage, which knows how long a call may be.
        stage: Name of the stage.
        margin: Frames on either side that the result for a frame depends on.
        run: Runs the stage: columns (C, w) → their sound (hop · w,), padded by the network at both ends.
        window: How many frames a call gets while frames arrive. ``None`` awaits all frames, for few calls.
    """

    def __init__(
        self,
        backend: Backend,
        stage: str,
        margin: int,
        run: Callable[[np.ndarray], np.ndarray],
        window: StreamingWindow | None = None,
    ):
        limit = backend.row_limit(stage)
        self.margin, self.run, self.one_call = margin, run, limit.divides
        self.window = window
        if limit.most is not None and window is not None:
            size = window.window if limit.divides else min(window.window, limit.most)
            self.window = replace(window, window=size, largest=0)
        elif limit.most is not None and not limit.divides:
            self.window = StreamingWindow(limit.most - margin, limit.most)
        self.columns: np.ndarray | None = None  # those that later frames depend on
        self.first = self.done = 0  # index of the first of them, and number of frames that are done

    @property
    def received(self) -> int:
        return self.first + (0 if self.columns is None else self.columns.shape[1])

    def feed(self, columns: np.ndarray) -> Iterator[np.ndarray]:
        """Append columns, and yield the sound (m,) float32 of every window that is complete."""
        self.columns = columns if self.columns is None else np.concatenate((self.columns, columns), axis=1)
        while (
            self.window is not None
            and (stop := self.done + self.window.new_frames(self.done, self.margin)) + self.margin < self.received
        ):
            yield self._call(self.window, max(self.done - self.margin, 0), stop, stop + self.margin)

    def finish(self) -> Iterator[np.ndarray]:
        """Yield the remaining sound (m,) float32, after the last columns."""
        if self.columns is None or self.received == self.done:
            return
        if self.window is None:
            yield from self.whole(self.columns)
        else:
            # as long as the other windows, where there are so many frames
            begin = max(min(self.done - self.margin, self.received - self.window.window), 0)
            yield self._call(self.window, begin, self.received, self.received)

    def whole(self, columns: np.ndarray, first: Sequence[int] = ()) -> Iterator[np.ndarray]:
        """Yield the sound (m,) float32 of columns that are all there, call by call.

        Args:
            columns: All columns, (C, n).
            first: Lengths that the first call may have, so that its sound comes soon. Without any, an engine that
                divides long calls itself gets one.
        """
        done, received = 0, columns.shape[1]
        for frames in call_lengths(received, self.margin, first) if first or not self.one_call else [received]:
            begin = max(min(done - self.margin, received - frames), 0)
            end = min(begin + frames, received)
            stop = received if end == received else end - self.margin
            yield self._new(self.run(columns[:, begin:end]), end - begin, done - begin, stop - begin)
            done = stop
            if done == received:
                return

    def _call(self, size: StreamingWindow, begin: int, stop: int, end: int) -> np.ndarray:
        """Return the sound of the frames from ``done`` to ``stop``, by a call with the frames ``begin`` to ``end``."""
        assert self.columns is not None
        sound = self.run(self.columns[:, begin - self.first : end - self.first])
        new = self._new(sound, end - begin, self.done - begin, stop - begin)
        needed = max(min(stop - self.margin, stop + 1 - size.window), self.first)
        self.columns, self.first, self.done = self.columns[:, needed - self.first :], needed, stop
        return new

    @staticmethod
    def _new(sound: np.ndarray, frames: int, start: int, stop: int) -> np.ndarray:
        """Return the part of a call's sound that belongs to its frames from ``start`` to ``stop``."""
        hop = len(sound) // frames
        return sound[start * hop : stop * hop]
