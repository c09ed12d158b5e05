"""A vocoder on frames that arrive incrementally.

A stream vocodes a frame when the ``margin`` frames after it (the receptive field of the network) have arrived. A call
gets new frames and a margin on either side, and returns the same sound for them as a call with all frames. The margin
ends at the beginning and at the end of the sound, so padding inside the networks (zeros, mirrored noise, silence) is
the same too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class VocodingWindow:
    """How much is vocoded in one call, in frames of 256 samples (10.7 ms).

    Attributes:
        first: minimum of new frames in the first call, small so that sound starts soon.
        window: frames of a later call including both margins, which take as long as new frames. 62 is the larger bucket
            of converted vocoders. When many frames arrive at once, a call has more.
    """

    first: int = 12
    window: int = 62

    def new_frames(self, done: int, ready: int, margin: int) -> int:
        """Frames to vocode now, if ``done`` have been and the first ``ready`` can be; 0: wait for more."""
        least = max(self.window - 2 * margin, self.first) if done else self.first
        return ready - done if ready - done >= 2 * least else least if ready - done >= least else 0


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
        """Append columns, and yield the sound (m,) float32 that can be vocoded now, if it is enough for a call."""
        self._append(columns)
        new = self.window.new_frames(self.done, self.received - self.margin, self.margin)
        if new:
            yield self._vocode(self.done + new)

    def finish(self, columns: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Append the last columns, if given, and yield the remaining sound (m,) float32."""
        if columns is not None:
            self._append(columns)
        if self.received > self.done:
            yield self._vocode(self.received)

    def _append(self, columns: np.ndarray) -> None:
        self.columns = columns if self.columns is None else np.concatenate((self.columns, columns), axis=1)

    def _vocode(self, stop: int) -> np.ndarray:
        window = self.columns[:, :stop + self.margin - self.first]
        sound = self.run(window)
        hop = len(sound) // window.shape[1]
        new = sound[(self.done - self.first) * hop:(stop - self.first) * hop]
        kept = max(stop - self.margin, self.first)
        self.columns, self.first, self.done = self.columns[:, kept - self.first:], kept, stop
        return new
