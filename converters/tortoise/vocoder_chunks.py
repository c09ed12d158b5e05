"""What the vocoders' graphs share: sound in chunks, each sample of which is that of the whole.

A chunk gives ``frames`` frames of sound. Every level of a vocoder, from the frames up to the samples, works on these
and on a margin of frames at either side of them, as many as the levels after it need (``ane.models.tortoise.networks.receptive_field``): the
margin shrinks as the rate grows, so that the dear levels at the end carry little of it. What a convolution pads at the
border of a chunk spoils samples of the margin, and no others.

The borders of the sound itself are another thing: there the network pads with zeros, before each convolution, and the
chunk goes on. So all that a convolution is given is made zero outside the sound by a mask that comes with the frames.
Every chunk is alike in this: the first, the last, one that is both, one in the middle.
"""

from dataclasses import dataclass

import numpy as np
from torch import nn

from ane.system.errors import UserError
from converters import blocks as layers
from converters.coreml.graph import Style, Var, mb

WIDEST = 16384          # the engine's limit for an axis (hollance/neural-engine)


def check_width(network: str, frames: int, margin: int, hop: int) -> None:
    """Raises UserError when a chunk of so many frames, and the last level's margin, is wider than an axis may be."""
    most = WIDEST // hop - 2 * margin
    if not 1 <= frames <= most:
        raise UserError(f"a bucket of {frames} frames for {network}: there can be 1 to {most}")


@dataclass(frozen=True)
class Inside:
    """The mask of a chunk: 1 in frames of the sound, 0 outside; (1, 1, 1, frames + 2·margin)."""

    frames: Var
    margin: int

    def at(self, s: Style, margin: int, rate: int) -> Var:
        """For a level: (1, 1, 1, (frames + 2·margin)·rate)."""
        mask = cropped(self.frames, self.margin - margin)
        n = mask.shape[3]
        if rate == 1:
            return mask
        repeated = mb.mul(x=mb.reshape(x=mask, shape=(1, 1, n, 1)), y=s.const(np.ones((1, 1, 1, rate))))
        return mb.reshape(x=repeated, shape=(1, 1, 1, n * rate))


def cropped(x: Var, columns: int) -> Var:
    """Without so many columns at either end."""
    if not columns:
        return x
    *others, width = x.shape
    return mb.slice_by_index(x=x, begin=(0, 0, 0, columns), end=(*others, width - columns))


def leaky(s: Style, x: Var, slope: float) -> Var:
    return mb.leaky_relu(x=x, alpha=s.dtype(slope))


def upsampled(s: Style, x: Var, twin: nn.ConvTranspose1d, scale: float = 1.0) -> Var:
    """A transposed convolution that gives ``stride`` samples for one: (1, C, 1, n) → (1, O, 1, n·stride).

    Its weights are multiplied by ``scale``, its bias is not: that is, its input is.

    Raises:
        UserError: it gives another number of samples.
    """
    (size,), (stride,), (pad,), (extra,) = twin.kernel_size, twin.stride, twin.padding, twin.output_padding
    if size - 2 * pad + extra != stride:
        raise UserError(f"a transposed convolution of size {size}, stride {stride} and padding {pad} does not multiply "
                        "the length by its stride: this vocoder cannot be converted")
    weight, bias = layers.kernel(twin)
    return mb.conv_transpose(x=x, weight=s.const(weight * scale), bias=s.const(bias), strides=[1, stride],
                             pad_type="custom", pad=[0, 0, pad, pad - extra])
