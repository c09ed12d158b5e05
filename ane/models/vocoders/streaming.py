"""A vocoder on frames in windows: as they arrive, or all at once.

A frame is vocoded when the ``margin`` frames after it (the receptive field of the network) have arrived. A call gets
new frames and a margin on either side, and returns the same sound for them as a call with all frames. The margin ends
at the beginning and at the end of the sound, so padding inside the networks (zeros, mirrored noise, silence) is the
same too.

Which frames a call gets depends on their index alone, not on how many have arrived. So the sound is the same bits
however the frames arrive. Calls have few lengths, because libraries keep compiled code for every length that they met:
oneDNN's filled 2 GB with a long text (docs/benchmarks.md).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

LEAST = 12      # new frames of a call, at least, however wide the margins
WHOLE = tuple(range(64, 257, 32))       # frames of a call for frames that are all there


@dataclass(frozen=True)
class VocodingWindow:
    """How much is vocoded in one call, in frames of 256 samples (10.7 ms).

    Attributes:
        first: new frames in the first call, small so that sound starts soon.
        window: frames of a later call including both margins, which take as long as new frames. 62 is the larger bucket
            of converted vocoders.
    """

    first: int = 12
    window: int = 62

    def new_frames(self, done: int, margin: int) -> int:
        """New frames of the next call, when ``done`` have been vocoded: as many as fit into the window."""
        return max(self.window - margin - min(done, margin), min(self.first, LEAST)) if done else self.first


def window_for(length: int, margin: int) -> VocodingWindow:
    """Windows for ``length`` frames that are all there, of one of the lengths ``WHOLE``, with as few frames as can be.

    Sound shorter than all of these is one call of its own length.
    """
    def frames(window: int) -> int:
        calls = max(1, -(-(length - 2 * margin) // (window - 2 * margin)))
        return calls * window

    window = min((window for window in WHOLE if 2 * margin + LEAST <= window <= length), key=frames, default=length)
    return VocodingWindow(max(window - margin, 1), window)


class StreamingVocoder:
    """A vocoder on columns (C, n) that arrive incrementally, one per frame.

    Args:
        margin: frames on either side that the sound of a frame depends on.
        run: columns (C, w) → their sound (256·w,), padded by the network at both ends.
    """

    def __init__(self, margin: int, window: VocodingWindow, run: Callable[[np.ndarray], np.ndarray]):
        self.margin, self.window, self.run = margin, window, run
        self.columns: np.ndarray | None = None      # those that later frames depend on
        self.first = self.done = 0                  # index of the first of them, and frames vocoded

    @property
    def received(self) -> int:
        return self.first + (0 if self.columns is None else self.columns.shape[1])

    def feed(self, columns: np.ndarray) -> Iterator[np.ndarray]:
        """Append columns, and yield the sound (m,) float32 of every window that is complete."""
        self._append(columns)
        while (stop := self.done + self.window.new_frames(self.done, self.margin)) + self.margin < self.received:
            yield self._vocode(max(self.done - self.margin, 0), stop, stop + self.margin)

    def finish(self, columns: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Append the last columns, if given, and yield the remaining sound (m,) float32."""
        if columns is not None:
            yield from self.feed(columns)
        if self.received > self.done:
            # as long as the other windows, where the sound is
            begin = max(min(self.done - self.margin, self.received - self.window.window), 0)
            yield self._vocode(begin, self.received, self.received)

    def _append(self, columns: np.ndarray) -> None:
        self.columns = columns if self.columns is None else np.concatenate((self.columns, columns), axis=1)

    def _vocode(self, begin: int, stop: int, end: int) -> np.ndarray:
        """The sound of the frames from ``done`` to ``stop``, by a call with those from ``begin`` to ``end``."""
        window = self.columns[:, begin - self.first:end - self.first]
        sound = self.run(window)
        hop = len(sound) // window.shape[1]
        new = sound[(self.done - begin) * hop:(stop - begin) * hop]
        kept = max(min(stop - self.margin, stop + 1 - self.window.window), self.first)
        self.columns, self.first, self.done = self.columns[:, kept - self.first:], kept, stop
        return new


def vocoded(columns: np.ndarray, margin: int, run: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The sound (256·n,) of columns (C, n) that are all there, in windows of few lengths. Arguments:
    ``StreamingVocoder``."""
    vocoder = StreamingVocoder(margin, window_for(columns.shape[1], margin), run)
    return np.concatenate(list(vocoder.finish(columns)))
