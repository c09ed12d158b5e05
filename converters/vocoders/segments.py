"""What the vocoders' graphs share: audio is computed in segments that join to exactly the audio of one long call.

A call computes ``frames`` frames of sound. Each level of a vocoder, from frames up to samples, also computes a margin
on either side, as wide as the receptive field of the levels after it needs
(``ane.models.vocoders.layers``). The margin shrinks as the rate grows, so the costly last levels
carry little of it. The padding of convolutions at the border of a segment affects samples of the margin only.

At the two ends of the audio, the reference pads every convolution with zeros, where a segment has a margin. So the
input of every convolution is multiplied by a mask that is 0 outside the audio. One graph serves first, middle and last
segments.
"""

from dataclasses import dataclass

import numpy as np
from torch import nn

from ane.system.errors import UserError
from converters import blocks
from converters.coreml.graph import Style, Var, mb
from converters.neural_engine import MAX_AXIS


def check_width(network: str, frames: int, margin: int, hop: int) -> None:
    """Raise UserError when ``frames``, with the last level's margins, exceed the engine's widest axis."""
    most = MAX_AXIS // hop - 2 * margin
    if not 1 <= frames <= most:
        raise UserError(f"buckets={network}={frames}: it takes 1 to {most} frames")


@dataclass(frozen=True)
class SoundMask:
    """1 in the frames of the sound, 0 outside; (1, 1, 1, frames + 2·margin)."""

    frames: Var
    margin: int

    def at(self, s: Style, margin: int, rate: int) -> Var:
        """The mask of a level, (1, 1, 1, (frames + 2·margin)·rate)."""
        mask = cropped(self.frames, self.margin - margin)
        n = mask.shape[3]
        if rate == 1:
            return mask
        repeated = mb.mul(x=mb.reshape(x=mask, shape=(1, 1, n, 1)), y=s.const(np.ones((1, 1, 1, rate))))
        return mb.reshape(x=repeated, shape=(1, 1, 1, n * rate))


def cropped(x: Var, columns: int) -> Var:
    """``x`` without ``columns`` columns at either end."""
    if not columns:
        return x
    *others, width = x.shape
    return mb.slice_by_index(x=x, begin=(0, 0, 0, columns), end=(*others, width - columns))


def leaky(s: Style, x: Var, slope: float) -> Var:
    return mb.leaky_relu(x=x, alpha=s.dtype(slope))


def upsampled(s: Style, x: Var, conv: nn.ConvTranspose1d, scale: float = 1.0) -> Var:
    """A transposed convolution of ``scale`` times x: (1, C, 1, n) → (1, O, 1, n·stride). Raises UserError when its
    kernel does not multiply the length by the stride."""
    (size,), (stride,), (pad,), (extra,) = conv.kernel_size, conv.stride, conv.padding, conv.output_padding
    if size - 2 * pad + extra != stride:
        raise UserError(f"a transposed convolution of size {size}, stride {stride} and padding {pad} does not multiply "
                        "the length by its stride: this vocoder cannot be converted")
    weight, bias = blocks.kernel(conv)
    return mb.conv_transpose(x=x, weight=s.const(weight * scale), bias=s.const(bias), strides=[1, stride],
                             pad_type="custom", pad=[0, 0, pad, pad - extra])
