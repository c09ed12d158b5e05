"""Run a vocoder on windows of mel frames, while the frames arrive or when all frames are known.

The sound of a frame depends on ``margin`` frames before it and after it: the receptive field of the network. Each call
therefore gets its new frames and a margin of known frames on both sides. For the new frames, the call returns the same
sound as a call with all frames. At the first and last frame of the input there is no margin, so the padding inside the
network (zeros, mirrored noise, silence) is also the same as in a call with all frames.

While frames arrive, the windows depend on the index of the frames and not on how many frames have arrived. The bits of
the sound therefore do not depend on the pieces in which the frames arrive. When all frames are known, the windows
depend on the number of frames, and the sound differs by rounding. Windows have only a few lengths, because libraries
keep compiled code for every length that they meet. oneDNN's code filled 2 GB during a long text (docs/benchmarks.md).

If no window changes the bits of a frame (``RowLimit.exact``), a call computes all frames that have arrived. So if many
frames have arrived, because the thread had to wait for other threads, few calls compute them.

``Backend.row_limit`` says how long a window may be, so a model does not need to know about packages.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ane.backends.base import Backend
from ane.backends.rows import STEP

LEAST = 12  # smallest number of new frames per call, however wide the margins are
WHOLE = tuple(range(64, 257, STEP))  # allowed lengths of a call, in frames, when all frames are known
# possible lengths of the first call for a FastSpeech stream, whose first piece of sound has 40 frames
FIRST_LENGTHS = 60, 80


@dataclass(frozen=True)
class StreamingWindow:
    """The number of mel frames per call while frames arrive. A frame has 256 samples (10.7 ms).

    Attributes:
        first: Number of new frames in the first call. It is small, so that sound starts soon.
        window: Number of frames in a later call, including both margins. A margin's frames are context at the window's
            ends, and take as long to compute as new frames. The default is the larger of the two lengths for which the
            converters build vocoders.
        largest: Number of frames up to which windows may grow, if the engine takes any number of frames.
        growth: Limit for a window that grows: the largest ratio of its new frames to the frames whose sound is
            finished.
    """

    first: int = 12
    window: int = 62
    largest: int = 0
    growth: float = 0.5

    def new_frames(self, done: int, margin: int) -> int:
        """Return the number of new frames for the next call, when the sound of ``done`` frames is finished.

        The window grows in multiples of ``STEP`` frames as far as ``growth`` allows. If ``growth`` is 0.5, playback has
        no gap as long as a second of sound takes less than 2/3 s to compute. If ``growth`` is 2, a second of sound must
        take less than 1/3 s.
        """
        window = self.window
        while window + STEP <= self.largest and window + STEP - 2 * margin <= self.growth * done:
            window += STEP
        return max(window - margin - min(done, margin), min(self.first, LEAST)) if done else self.first


def call_lengths(length: int, margin: int, first: Sequence[int] = ()) -> list[int]:
    """Divide ``length`` frames, all of which are known, into as few calls as possible.

    Args:
        length: Number of frames.
        margin: Number of frames that a call needs on both sides of its new frames.
        first: Lengths that the first call may have, so that sound starts soon. If there are none, the first call is
            like the other calls.

    Returns:
        The number of frames in each call, including margins. Every length is one of ``WHOLE`` or ``first``. If the
        input is too short for these lengths, the only call gets all frames.
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
    """Divide ``frames`` frames into as few calls as possible.

    Return the almost equal lengths of the calls, with the margins at their ends. A length is at least ``shortest``. It
    exceeds neither ``longest`` nor the last of ``WHOLE``.
    """
    calls, most = 1, min(longest, WHOLE[-1]) // STEP
    while (steps := -(-(frames + 2 * margin * (calls - 1)) // STEP)) > calls * most:
        calls += 1
    share, longer = divmod(max(steps, calls * shortest // STEP), calls)
    return [STEP * (share + (call < longer)) for call in range(calls)]


class Windowed:
    """Runs a vocoder, window by window, on columns (C, n) that arrive in pieces of any length.

    A column is the input for one mel frame. The class also runs any other stage whose output for a frame depends only
    on the frame and a margin around it.

    Args:
        backend: Backend that runs the stage and limits the length of a call.
        stage: Name of the stage.
        margin: Number of frames before and after a frame on which the sound of this frame depends.
        run: Function that runs the stage: columns (C, w) → sound (hop · w,). The network pads both ends itself.
        window: Number of frames per call while frames arrive. ``None`` means to wait for all frames and then make few
            calls.
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
        self.exact = limit.exact and window is not None
        if limit.most is not None and window is not None:
            size = window.window if limit.divides else min(window.window, limit.most)
            self.window = replace(window, window=size, largest=0)
        elif limit.most is not None and not limit.divides:
            self.window = StreamingWindow(limit.most - margin, limit.most)
        self.columns: np.ndarray | None = None  # columns on which the sound of later frames depends
        self.first = self.done = 0  # index of the first column in ``columns``, number of frames with finished sound

    @property
    def received(self) -> int:
        return self.first + (0 if self.columns is None else self.columns.shape[1])

    @property
    def needed(self) -> int:
        """Number of columns, counted from the first one, with which ``feed`` can yield the next sound."""
        assert self.window is not None
        return self.done + self.window.new_frames(self.done, self.margin) + self.margin + 1

    def feed(self, columns: np.ndarray) -> Iterator[np.ndarray]:
        """Append columns (inputs for one frame each), and yield the sound (m,) float32 of every complete window."""
        self._append(columns)
        yield from self._complete_windows()

    def finish(self, columns: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Append the last columns if they are given, and yield all remaining sound (m,) float32."""
        if columns is not None:
            self._append(columns)
        if not self.exact or self.received > self._most:
            yield from self._complete_windows()
        if self.columns is None or self.received == self.done:
            return
        if self.window is None:
            yield from self.whole(self.columns)
        else:
            # if there are enough frames, the last window is as long as the others
            begin = max(min(self.done - self.margin, self.received - self.window.window), 0)
            yield self._call(self.window, begin, self.received, self.received)

    @property
    def _most(self) -> int:
        """Largest number of columns, counted from the first one, that the next call may compute."""
        assert self.window is not None
        return max(self.done - self.margin, 0) + self.window.largest

    def _append(self, columns: np.ndarray) -> None:
        self.columns = columns if self.columns is None else np.concatenate((self.columns, columns), axis=1)

    def _complete_windows(self) -> Iterator[np.ndarray]:
        while self.window is not None and (end := self.needed - 1) < self.received:
            if self.exact:
                end = max(end, min(self.received, self._most))
            yield self._call(self.window, max(self.done - self.margin, 0), end - self.margin, end)

    def whole(self, columns: np.ndarray, first: Sequence[int] = ()) -> Iterator[np.ndarray]:
        """Make the sound of all columns (inputs for one frame each), and yield it call by call, (m,) float32.

        Args:
            columns: All columns, (C, n).
            first: Lengths that the first call may have, so that sound starts soon. If there are none and the stage
                divides long rows itself, one call gets all columns.
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
        """Run the stage on frames ``begin`` to ``end``.

        Return the sound of the new frames, ``self.done`` to ``stop``.
        """
        assert self.columns is not None
        sound = self.run(self.columns[:, begin - self.first : end - self.first])
        new = self._new(sound, end - begin, self.done - begin, stop - begin)
        needed = max(min(stop - self.margin, stop + 1 - size.window), self.first)
        self.columns, self.first, self.done = self.columns[:, needed - self.first :], needed, stop
        return new

    @staticmethod
    def _new(sound: np.ndarray, frames: int, start: int, stop: int) -> np.ndarray:
        """Return the samples of the frames ``start`` to ``stop``, from the sound of a call with ``frames`` frames."""
        hop = len(sound) // frames
        return sound[start * hop : stop * hop]
