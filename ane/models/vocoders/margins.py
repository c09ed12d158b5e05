"""How far the networks over frames see, without torch."""

FRAME_KERNEL = 7  # of a ``ConvNextBlock`` over frames


def frame_margin(layers: int) -> int:
    """Return the frames on either side that an output of a ``FrameDecoder`` with so many layers depends on."""
    return FRAME_KERNEL // 2 * (1 + layers)
