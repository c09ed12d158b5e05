"""The vocoders on packages: any stretch of frames, in chunks that join without a trace. The stages univnet and hifigan.

A function gives ``frames`` frames of sound from these and ``margin`` more on either side, both in its bucket. Where the
sound has not begun or is over, its inputs are zeros and its mask says so (``converters.sound``). While more is to come,
the last ``margin`` frames cannot be rendered yet.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ane.backends.packaged.functions import Function, smallest
from ane.networks.hifigan import Hifigan
from ane.networks.univnet import SILENCE, SILENT_FRAMES

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

    def _sound(self, start: int, stop: int, length: int,
               rest: Callable[[int, int], dict[str, np.ndarray]]) -> np.ndarray:
        """Frames ``start`` … ``stop`` of ``length``: (samples,). ``rest`` gives the inputs of a window but its mask."""
        inside, sound = np.ones((1, length), np.float32), []
        for function, first, count in chunks(self.functions, start, stop):
            begin, width = first - self.margin, function.bucket["frames"] + 2 * self.margin
            out = function(inside=window(inside, begin, width), **rest(begin, width))["sound"].reshape(-1)
            sound.append(out[:count * (len(out) // function.bucket["frames"])])
        return np.concatenate(sound)


class UnivnetVocoder(Vocoder):
    def __call__(self, mel: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """mel (B, 100, L), noise (B, Z, L + 10) → (B, 1, 256·L), all float32."""
        return np.stack([self.render(*row, 0, mel.shape[2])[None] for row in zip(mel, noise, strict=True)])

    def ready(self, frames: int) -> int:
        """Frames that can be rendered of so many while more are to come."""
        return max(frames - self.margin, 0)

    def render(self, mel: np.ndarray, noise: np.ndarray, start: int, stop: int, ended: bool = True) -> np.ndarray:
        """Sound of the frames ``start`` … ``stop``: (samples,) float32.

        Args:
            mel: (100, L), all frames so far. noise: (Z, L + 10), or (Z, L) at least while more frames are to come.
            ended: no frames will follow; until then ``stop`` is at most ``ready(L)``.

        Raises:
            ValueError: frames that are not there yet, or the wrong length of noise.
        """
        frames = mel.shape[1]
        if ended:
            mel = np.pad(mel, ((0, 0), (0, SILENT_FRAMES)), constant_values=SILENCE)
        length = mel.shape[1]
        if stop > (frames if ended else self.ready(frames)) or noise.shape[1] < length:
            raise ValueError(f"univnet: frames {start} to {stop} of {frames}, {noise.shape[1]} of noise, "
                             f"ended: {ended}")
        noise = np.pad(noise[:, :length], ((0, 0), (MIRRORED, MIRRORED)), mode="reflect")
        return self._sound(start, stop, length, lambda begin, width: {
            "mel": window(mel, begin, width), "noise": window(noise, begin + MIRRORED, width)})


class HifiganVocoder(Vocoder):
    def __call__(self, latents: np.ndarray, conditioning: np.ndarray) -> np.ndarray:
        """latents (B, N, D), conditioning (B, D') → (B, 1, samples), all float32."""
        stop = frame_count(latents.shape[1])
        return np.stack([self.render(*row, 0, stop)[None] for row in zip(latents, conditioning, strict=True)])

    def ready(self, latents: int) -> int:
        """Frames that can be rendered of so many latents while more are to come."""
        return max(settled(latents) - self.margin, 0)

    def render(self, latents: np.ndarray, conditioning: np.ndarray, start: int, stop: int,
               ended: bool = True) -> np.ndarray:
        """Sound of the frames ``start`` … ``stop``: (samples,) float32.

        Args:
            latents: (N, D), all so far. conditioning: (D',).
            ended: no latents will follow: there are ``frame_count(N)`` frames. Until then there are ``ready(N)``.

        Raises:
            ValueError: frames that are not there yet.
        """
        if stop > (frame_count(len(latents)) if ended else self.ready(len(latents))):
            raise ValueError(f"hifigan: frames {start} to {stop} of {len(latents)} latents, ended: {ended}")
        frames = interpolated(latents)
        voice = conditioning[None, :, None, None]
        return self._sound(start, stop, frames.shape[1] if ended else settled(len(latents)), lambda begin, width: {
            "x": window(frames, begin, width), "conditioning": voice})


SCALES = Hifigan.code_frames, Hifigan.rate_ratio


def frame_count(latents: int) -> int:
    """⌊⌊4·N⌋·24000/22050⌋."""
    for scale in SCALES:
        latents = int(latents * scale)
    return latents


def interpolated(latents: np.ndarray) -> np.ndarray:
    """Latents (N, D) at the rate of frames: (D, ``frame_count(N)``) float32."""
    columns = latents.T
    for scale in SCALES:
        columns = stretched(columns, scale)
    return columns


def settled(latents: int) -> int:
    """Frames of so many latents that stay what they are when more latents follow."""
    kept = latents
    for scale in SCALES:
        source = _sources(latents, scale)
        if len(source) == latents:      # a copy now, and none when there are more
            return 0
        kept, latents = int(np.count_nonzero(np.floor(source) + 1 < kept)), len(source)
    return kept


def stretched(columns: np.ndarray, scale: float) -> np.ndarray:
    """torch's linear interpolation with a scale factor given, not aligned at corners: (C, n) → (C, ⌊n·scale⌋).

    As torch does, a result of the same length is a copy, whatever the scale.
    """
    n = columns.shape[1]
    if int(n * scale) == n:
        return columns
    source = _sources(n, scale)
    before = np.minimum(source.astype(np.int64), n - 1)
    after = np.minimum(before + 1, n - 1)
    part = source - before.astype(np.float32)
    return columns[:, before] * (1 - part) + columns[:, after] * part


def _sources(length: int, scale: float) -> np.ndarray:
    """Where in the input each output lies: (⌊length·scale⌋,) float32.

    torch rounds 1/scale to float32, then the rest once (UpSample.h, which compilers make one fused multiply-add of).
    """
    places = np.arange(int(length * scale)) + 0.5
    return np.maximum(np.float64(np.float32(1 / scale)) * places - 0.5, 0).astype(np.float32)
