"""Make speech faster or slower without changing its pitch.

The method is WSOLA: W. Verhelst, M. Roelands, "An overlap-add technique based on waveform similarity (WSOLA) for high
quality time-scale modification of speech", ICASSP 1993. WSOLA cuts overlapping frames from the input, and adds them up
in the output at a fixed distance. It shifts the position of each frame in the input by a few milliseconds, so that the
frame continues the previous frame as well as possible.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ane.system.errors import UserError

SPEEDS = (0.5, 2.0)
HOP = 0.015  # a frame of the output begins this many seconds after the frame before it. A frame is twice as long
TOLERANCE = 0.008  # a frame may be shifted by this many seconds, which is more than half a period of the lowest voice


class TimeStretcher:
    """A stretcher that changes the speed of a sound by a factor from 0.5 to 2. The sound may arrive in pieces.

    The whole output has round(samples / speed) samples. The output does not depend on how the input is divided into
    pieces. At speed 1, the output equals the input.
    """

    def __init__(self, speed: float, sample_rate: int):
        check_speed(speed)
        self.speed = speed
        self.hop, self.tolerance = round(HOP * sample_rate), round(TOLERANCE * sample_rate)
        self.rise = (0.5 - 0.5 * np.cos(np.pi * (np.arange(self.hop) + 0.5) / self.hop)).astype(np.float32)
        self._input = np.zeros(0, np.float32)
        self._dropped = 0  # number of input samples before ``_input``
        self._received = self._returned = 0
        self._frame = 0  # index of the next frame
        self._previous = 0  # position in the input from which the frame before the next frame was taken

    def feed(self, audio: np.ndarray) -> np.ndarray:
        """Take the next samples (S,) float32, and return the output samples that are ready, (n,) float32, n ≥ 0."""
        self._received += len(audio)
        if self.speed == 1:
            self._returned += len(audio)
            return audio
        self._input = np.concatenate((self._input, audio))
        return self._frames()

    def finish(self) -> np.ndarray:
        """Return the sound that is still held, (n,) float32. Call this after the last ``feed``."""
        missing = round(self._received / self.speed) - self._returned
        if missing <= 0:
            return np.zeros(0, np.float32)
        silence = round((missing + 4 * self.hop) * max(1.0, self.speed)) + 4 * (self.hop + self.tolerance)
        self._input = np.concatenate((self._input, np.zeros(silence, np.float32)))
        return self._frames()[:missing]

    def _frames(self) -> np.ndarray:
        """Compute all output frames whose input has arrived, and return their samples."""
        pieces: list[np.ndarray] = []
        while True:
            ideal = round(self._frame * self.hop * self.speed)
            last = max(ideal + self.tolerance, self._previous + self.hop) + 2 * self.hop
            if last > self._dropped + len(self._input):
                break
            pieces.append(self._add(ideal))
            unused = min(round(self._frame * self.hop * self.speed) - self.tolerance, self._previous) - self._dropped
            if unused > 0:
                self._input, self._dropped = self._input[unused:], self._dropped + unused
        result = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
        self._returned += len(result)
        return result

    def _add(self, ideal: int) -> np.ndarray:
        """Return the next ``hop`` samples, which fade from the end of the last frame to the next frame.

        The next frame is taken from the input near the position ``ideal``.
        """
        continuation = self._at(self._previous + self.hop, 2 * self.hop)
        if self._frame == 0:
            self._frame, self._previous = 1, 0
            return self._at(0, self.hop)
        first = max(0, ideal - self.tolerance)
        region = self._at(first, ideal + self.tolerance - first + 2 * self.hop)
        self._previous = first + best_match(region, continuation, ideal - first)
        self._frame += 1
        start = self._at(self._previous, self.hop)
        return continuation[: self.hop] * (1 - self.rise) + start * self.rise

    def _at(self, position: int, length: int) -> np.ndarray:
        start = position - self._dropped
        return self._input[start : start + length]


def best_match(region: np.ndarray, wanted: np.ndarray, default: int) -> int:
    """Return the index in ``region`` at which ``wanted`` matches best, by normalised cross-correlation.

    If nothing matches, as in silence, return ``default``.
    """
    windows = sliding_window_view(region, len(wanted))
    similarity = np.correlate(region, wanted, "valid")
    energy = np.einsum("ij,ij->i", windows, windows)
    score = similarity / np.sqrt(energy + 1e-9)
    best = int(np.argmax(score))
    return best if score[best] > 0 else default


def check_speed(speed: float) -> None:
    """Raise UserError if a speed is not from 0.5 to 2."""
    if not SPEEDS[0] <= speed <= SPEEDS[1]:
        raise UserError(f"speed must be from {SPEEDS[0]:g} to {SPEEDS[1]:g}, got {speed:g}", "speed")


def stretched(audio: np.ndarray, speed: float, sample_rate: int) -> np.ndarray:
    """Change the speed of a whole sound: (S,) float32 → (round(S / speed),) float32."""
    stretcher = TimeStretcher(speed, sample_rate)
    return np.concatenate((stretcher.feed(audio), stretcher.finish()))
