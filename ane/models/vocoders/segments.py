"""Vocoders on fixed-shape functions: any number of frames, in windows whose joined sound equals that of the whole.

A function returns the sound of ``frames`` frames, given these and ``margin`` more on either side, both in its bucket.
Before the beginning and after the end of the sound its inputs are zeros, and a mask marks them
(``converters.vocoders``).
"""

from collections.abc import Callable, Sequence

import numpy as np

from ane.backends.fixed_shapes import FixedFunction, smallest_fitting


def zero_padded(columns: np.ndarray, start: int, width: int) -> np.ndarray:
    """Columns ``start`` … ``start + width`` of (C, n), zeros outside of it: (1, C, 1, width) float32."""
    left, right = max(start, 0), min(start + width, columns.shape[1])
    out = np.zeros((1, len(columns), 1, width), np.float32)
    if left < right:
        out[0, :, 0, left - start : right - start] = columns[:, left:right]
    return out


def sound_of_windows(
    functions: Sequence[FixedFunction], stop: int, length: int, inputs: Callable[[int, int], dict[str, np.ndarray]]
) -> np.ndarray:
    """The sound (samples,) of frames 0 … ``stop`` of ``length``, in windows of the largest bucket, the last in the
    smallest that fits.

    Args:
        functions: all of one kind and one margin: they belong to one network.
        inputs: ``inputs(begin, width)`` returns those of frames ``begin`` … ``begin + width``, except ``inside``.
    """
    inside, sound = np.ones((1, length), np.float32), []
    margin, largest = functions[0].bucket["margin"], max(function.bucket["frames"] for function in functions)
    for first in range(0, stop, largest):
        count = min(stop - first, largest)
        function = smallest_fitting(functions, "a window of sound", frames=count)
        begin, width = first - margin, function.bucket["frames"] + 2 * margin
        out = function(inside=zero_padded(inside, begin, width), **inputs(begin, width))["sound"][0, 0, 0]
        sound.append(out[: count * (len(out) // function.bucket["frames"])])
    return np.concatenate(sound)


def hifigan_sounds(
    functions: Sequence[FixedFunction], frames: np.ndarray, conditioning: np.ndarray | None = None
) -> np.ndarray:
    """frames (B, D, L), and for a network that is conditioned (B, D'), → (B, 1, hop·L), all float32."""
    sounds = []
    for index, row in enumerate(frames):
        constant = {} if conditioning is None else {"conditioning": conditioning[index : index + 1, :, None, None]}
        sounds.append(
            sound_of_windows(
                functions,
                row.shape[1],
                row.shape[1],
                lambda begin, width, row=row, constant=constant: {"x": zero_padded(row, begin, width), **constant},
            )[None]
        )
    return np.stack(sounds)
