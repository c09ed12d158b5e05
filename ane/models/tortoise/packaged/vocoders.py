"""The vocoders on packages: any number of frames, in chunks that join without a trace. The stages univnet and hifigan.

A function gives ``frames`` frames of sound from these and ``margin`` more on either side, both in its bucket. Where the
sound has not begun or is over, its inputs are zeros and its mask says so (``converters.tortoise.vocoder_stretches``).
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ane.backends.packaged.functions import Function, smallest
from ane.models.tortoise.networks.univnet import SILENCE, SILENT_FRAMES

MIRRORED = 3        # frames of noise that UnivNet's first convolution mirrors at either end


def chunks(functions: Sequence[Function], start: int, stop: int) -> Iterator[tuple[Function, int, int]]:
    """Frames ``start`` … ``stop`` in parts: (function, first frame, frames); the last by the smallest that takes it."""
    most = max(function.bucket["frames"] for function in functions)
    while start < stop:
        count = min(stop - start, most)
        yield smallest(functions, "a chunk of sound", frames=count), start, count
        start += count


def window(columns: np.ndarray, start: int, width: int) -> np.ndarray:
    """Columns ``start`` … ``start + width`` of (C, n), zero where there are none: (1, C, 1, width) float32."""
    left, right = max(start, 0), min(start + width, columns.shape[1])
    out = np.zeros((1, len(columns), 1, width), np.float32)
    if left < right:
        out[0, :, 0, left - start:right - start] = columns[:, left:right]
    return out


class Vocoder:
    """What both have in common.

    Args:
        functions: all of one kind, and of one margin: they are of one network.
    """

    def __init__(self, functions: Sequence[Function]):
        self.functions = functions
        self.margin = functions[0].bucket["margin"]

    def _sound(self, stop: int, length: int, rest: Callable[[int, int], dict[str, np.ndarray]]) -> np.ndarray:
        """Frames 0 … ``stop`` of ``length``: (samples,). ``rest`` gives the inputs of a window but its mask."""
        inside, sound = np.ones((1, length), np.float32), []
        for function, first, count in chunks(self.functions, 0, stop):
            begin, width = first - self.margin, function.bucket["frames"] + 2 * self.margin
            out = function(inside=window(inside, begin, width), **rest(begin, width))["sound"].reshape(-1)
            sound.append(out[:count * (len(out) // function.bucket["frames"])])
        return np.concatenate(sound)


class UnivnetVocoder(Vocoder):
    def __call__(self, mel: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """mel (B, 100, L), noise (B, Z, L + 10) → (B, 1, 256·L), all float32."""
        return np.stack([self._row(*row)[None] for row in zip(mel, noise, strict=True)])

    def _row(self, mel: np.ndarray, noise: np.ndarray) -> np.ndarray:
        stop = mel.shape[1]
        mel = np.pad(mel, ((0, 0), (0, SILENT_FRAMES)), constant_values=SILENCE)
        length = mel.shape[1]
        noise = np.pad(noise[:, :length], ((0, 0), (MIRRORED, MIRRORED)), mode="reflect")
        return self._sound(stop, length, lambda begin, width: {
            "mel": window(mel, begin, width), "noise": window(noise, begin + MIRRORED, width)})


class HifiganVocoder(Vocoder):
    def __call__(self, frames: np.ndarray, conditioning: np.ndarray) -> np.ndarray:
        """frames (B, D, L), conditioning (B, D') → (B, 1, 256·L), all float32."""
        return np.stack([self._row(*row)[None] for row in zip(frames, conditioning, strict=True)])

    def _row(self, frames: np.ndarray, conditioning: np.ndarray) -> np.ndarray:
        length, voice = frames.shape[1], conditioning[None, :, None, None]
        return self._sound(length, length, lambda begin, width: {
            "x": window(frames, begin, width), "conditioning": voice})
