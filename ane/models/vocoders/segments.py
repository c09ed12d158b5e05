"""Run a vocoder of fixed shape on any number of frames, window by window. The joined sound equals one long call.

A package's function has a fixed length, which the numbers ``frames`` and ``margin`` describe. The function takes
``frames`` frames and ``margin`` more frames on either side, and returns the sound of the inner frames. Beyond the
beginning and the end of the speech, its inputs are zeros, and a mask marks these zeros (``converters.vocoders``).
"""

from collections.abc import Callable, Sequence

import numpy as np

from ane.backends.fixed_shapes import FixedFunction, smallest_fitting


def zero_padded(columns: np.ndarray, start: int, width: int) -> np.ndarray:
    """Return the columns ``start`` to ``start + width`` of an array (C, n), with zeros for columns outside the array.

    The result is (1, C, 1, width) float32.
    """
    left, right = max(start, 0), min(start + width, columns.shape[1])
    out = np.zeros((1, len(columns), 1, width), np.float32)
    if left < right:
        out[0, :, 0, left - start : right - start] = columns[:, left:right]
    return out


def sound_of_windows(
    functions: Sequence[FixedFunction], stop: int, length: int, inputs: Callable[[int, int], dict[str, np.ndarray]]
) -> np.ndarray:
    """Make the sound (samples,) of the first ``stop`` frames, window by window.

    The function with most frames computes all windows but the last. The smallest function that fits computes the last
    window.

    Args:
        functions: Functions of one network that differ only in their number of frames.
        stop: Number of frames that need sound.
        length: Number of frames that exist. Frame ``stop`` and later frames are only context.
        inputs: Function that returns the network's inputs for frames ``begin`` to ``begin + width``, without the mask
            ``inside``. Its arguments are ``begin`` and ``width``.
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
    """Make the sound (B, 1, hop·L) of frames (B, D, L) with HiFi-GAN. Tortoise's also takes a conditioning (B, D').

    All arrays are float32.
    """
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
