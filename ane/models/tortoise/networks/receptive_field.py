"""How far a vocoder hears: from which frames on either side the sound of a frame is made.

A stretch of frames that is cut out of a longer one is padded at its borders where the longer one goes on. What that
spoils grows from level to level, in samples of the level's own rate; the rest of the stretch is the longer one's.
"""

from collections.abc import Sequence


def margins(rates: Sequence[int], reaches: Sequence[int]) -> list[int]:
    """Frames at either side that each level works on.

    Args:
        rates: samples a frame of each level, from the first on.
        reaches: samples of its own rate that each level loses at a border: those that a border's padding gets into.
    """
    own = [-(-reach // rate) for rate, reach in zip(rates, reaches, strict=True)]
    return [sum(own[level:]) for level in range(len(own))]


def lost(size: int, stride: int, pad: int) -> int:
    """Samples at a border that a transposed convolution would make otherwise if its input went on there."""
    return max(size - stride - pad, pad)
