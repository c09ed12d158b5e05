"""Receptive field of a vocoder: how many frames on either side the sound of a frame depends on.

A window cut out of a longer sequence is padded at its ends, where the longer sequence continues. The resulting error
spreads from level to level, in samples of each level's own rate; outside that margin the results are equal.
"""

from collections.abc import Sequence


def margins(rates: Sequence[int], reaches: Sequence[int]) -> list[int]:
    """Frames on either side that each level needs as margin.

    Args:
        rates: samples a frame of each level, starting with the first.
        reaches: samples of its own rate at a border that each level's padding affects.
    """
    own = [-(-reach // rate) for rate, reach in zip(rates, reaches, strict=True)]
    return [sum(own[level:]) for level in range(len(own))]


def lost(size: int, stride: int, pad: int) -> int:
    """Samples at a border that a transposed convolution would compute differently if its input continued there."""
    return max(size - stride - pad, pad)
