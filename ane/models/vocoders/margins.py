"""Compute how many neighboring frames a network over frames reads, without importing torch."""

FRAME_KERNEL = 7  # kernel size of a ``ConvNextBlock`` over frames


def frame_margin(layers: int) -> int:
    """Return the frames on either side that an output of a ``FrameDecoder`` with ``layers`` blocks depends on."""
    return FRAME_KERNEL // 2 * (1 + layers)
