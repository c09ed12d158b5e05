"""A vocoder on frames in windows: as they arrive, or all at once.

A frame is vocoded when the ``margin`` frames after it (the receptive field of the network) have arrived. A call gets
new frames and a margin on either side, and returns the same sound for them as a call with all frames. The margin ends
at the beginning and at the end of the sound, so padding inside the networks (zeros, mirrored noise, silence) is the
same too.

In ``StreamingVocoder`` the frames of a call depend on their index alone, not on how many have arrived: the sound is the
same bits however they arrive. ``vocoded_in_calls`` chooses its calls by the number of frames, so its sound differs from
that by rounding. Calls have few lengths, because libraries keep compiled code for every length that they met: oneDNN's
filled 2 GB with a long text (docs/benchmarks.md).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 12  # new frames of a call, at least, however wide the margins
STEP = 32
WHOLE = tuple(range(64, 257, STEP))  # frames of a call for frames that are all there
FIRST_LENGTHS = 60, 80  # of the first call of a stream: FastSpeech's first piece has 40 frames


@dataclass(frozen=True)
class VocodingWindow:
    """How much is vocoded in one call, in frames of 256 samples (10.7 ms)."""

    first: int = 12  # new frames in the first call, small so that sound starts soon
    # of a later call including both margins, which take as long as new frames: the larger bucket of converted vocoders
    window: int = 62
    largest: int = 0  # what the window grows to, for an engine that takes calls of any length
    growth: float = 0.5  # new frames of a window that grows, at most, for each frame that has been vocoded

    def new_frames(self, done: int, margin: int) -> int:
        """New frames of the next call, when ``done`` have been vocoded: as many as fit into the window.

        It grows by ``STEP`` as far as ``growth`` allows: with half of ``done``, new frames are there in time where a
        second of sound takes less than two thirds of a second, with twice of it less than a third.
        """
        window = self.window
        while window + STEP <= self.largest and window + STEP - 2 * margin <= self.growth * done:
            window += STEP
        return max(window - margin - min(done, margin), min(self.first, LEAST)) if done else self.first


def call_lengths(length: int, margin: int, first: Sequence[int] = ()) -> list[int]:
    """Frames of the calls for ``length`` frames that are all there: as few calls as can be, of the lengths ``WHOLE``.

    Sound that is too short for these is one call of its own length.

    Args:
        first: lengths that the first call may have, so that its sound comes soon; none: those of the others.
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
    """As few calls for ``frames`` as can be, of almost equal lengths of ``WHOLE`` between these two."""
    calls, most = 1, min(longest, WHOLE[-1]) // STEP
    while (steps := -(-(frames + 2 * margin * (calls - 1)) // STEP)) > calls * most:
        calls += 1
    each, longer = divmod(max(steps, calls * shortest // STEP), calls)
    return [STEP * (each + (call < longer)) for call in range(calls)]


def vocoded_in_calls(
    columns: np.ndarray, margin: int, run: Callable[[np.ndarray], np.ndarray], first: Sequence[int] = ()
) -> Iterator[np.ndarray]:
    """Yield the sound of columns (C, n) that are all there, call by call. Arguments: ``StreamingVocoder``,
    ``call_lengths``.
    """
    done, received = 0, columns.shape[1]
    for frames in call_lengths(received, margin, first):
        begin = max(min(done - margin, received - frames), 0)
        end = min(begin + frames, received)
        stop = received if end == received else end - margin
        sound = run(columns[:, begin:end])
        hop = len(sound) // (end - begin)
        yield sound[(done - begin) * hop : (stop - begin) * hop]
        done = stop
        if done == received:
            return


class StreamingVocoder:
    """A vocoder on columns (C, n) that arrive incrementally, one per frame.

    Args:
        margin: frames on either side that the sound of a frame depends on.
        run: columns (C, w) → their sound (256·w,), padded by the network at both ends.
        window: None: all columns are awaited, and vocoded in few calls. own_windows: in one, which ``run`` divides.
    """

    def __init__(
        self,
        margin: int,
        run: Callable[[np.ndarray], np.ndarray],
        window: VocodingWindow | None,
        own_windows: bool = False,
    ):
        self.margin, self.run, self.window, self.own_windows = margin, run, window, own_windows
        self.waiting: list[np.ndarray] = []  # without a window
        self.columns: np.ndarray | None = None  # those that later frames depend on
        self.first = self.done = 0  # index of the first of them, and frames vocoded

    @property
    def received(self) -> int:
        return self.first + (0 if self.columns is None else self.columns.shape[1])

    def feed(self, columns: np.ndarray) -> Iterator[np.ndarray]:
        """Append columns, and yield the sound (m,) float32 of every window that is complete."""
        if self.window is None:
            self.waiting.append(columns)
            return
        self.columns = columns if self.columns is None else np.concatenate((self.columns, columns), axis=1)
        while (stop := self.done + self.window.new_frames(self.done, self.margin)) + self.margin < self.received:
            yield self._vocode(self.window, max(self.done - self.margin, 0), stop, stop + self.margin)

    def finish(self) -> Iterator[np.ndarray]:
        """Yield the remaining sound (m,) float32, after the last columns."""
        if self.window is None:
            columns = np.concatenate(self.waiting, axis=1)
            yield from [self.run(columns)] if self.own_windows else vocoded_in_calls(columns, self.margin, self.run)
        elif self.received > self.done:
            # as long as the other windows, where the sound is
            begin = max(min(self.done - self.margin, self.received - self.window.window), 0)
            yield self._vocode(self.window, begin, self.received, self.received)

    def _vocode(self, size: VocodingWindow, begin: int, stop: int, end: int) -> np.ndarray:
        """The sound of the frames from ``done`` to ``stop``, by a call with those from ``begin`` to ``end``."""
        columns = self.columns[:, begin - self.first : end - self.first]
        sound = self.run(columns)
        hop = len(sound) // columns.shape[1]
        new = sound[(self.done - begin) * hop : (stop - begin) * hop]
        kept = max(min(stop - self.margin, stop + 1 - size.window), self.first)
        self.columns, self.first, self.done = self.columns[:, kept - self.first :], kept, stop
        return new
