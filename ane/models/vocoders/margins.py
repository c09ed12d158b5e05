"""Compute how many neighboring frames a ConvNeXt network reads. This module does not import torch."""

FRAME_KERNEL = 7  # kernel size of a ``ConvNextBlock`` over frames


def frame_margin(layers: int) -> int:
    """Return how many frames before and after a frame a ``FrameDecoder`` with ``layers`` blocks reads."""
    return FRAME_KERNEL // 2 * (1 + layers)
