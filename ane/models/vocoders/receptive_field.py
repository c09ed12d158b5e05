"""Receptive field of a vocoder: how many frames on either side the sound of a frame depends on.

A window cut out of a longer sequence is padded at its ends, where the longer sequence continues. The resulting error
spreads inwards in every upsampling level of the vocoder; beyond the margin computed here the results are equal.
"""

from collections.abc import Sequence


def margins(rates: Sequence[int], reaches: Sequence[int]) -> list[int]:
    """Frames on either side that the input of each level needs as margin, for padding in that and all later levels.

    Args:
        rates: samples per frame of each level, in order.
        reaches: samples, at the level's own rate, at either end that padding in this level affects.
    """
    own = [-(-reach // rate) for rate, reach in zip(rates, reaches, strict=True)]
    return [sum(own[level:]) for level in range(len(own))]


def affected_samples(size: int, stride: int, pad: int) -> int:
    """Output samples at an end that a transposed convolution would compute differently if its input continued there."""
    return max(size - stride - pad, pad)
