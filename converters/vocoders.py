"""Build Core ML graphs of vocoders that compute audio in segments.

The joined segments are exactly the audio of one long call. The PyTorch networks are in ``ane.models.vocoders.hifigan``,
``ane.models.tortoise.networks.hifigan`` (HiFi-GAN conditioned on a voice) and ``ane.models.vocoders.bigvgan``.

A call computes ``frames`` frames of sound. A vocoder has several levels, and each level multiplies the rate, from
frames up to samples. Every level also computes a margin on both sides of the segment. The margin is as wide as the
receptive field of the later levels needs, so it is narrow at the last levels, which cost the most
(``ane.models.vocoders.hifigan``). The padding of a convolution at the border of a segment changes only the margin.

At the two ends of the audio, the PyTorch network pads every convolution with zeros. A segment has a margin there
instead. So the graph multiplies the input of every convolution by a mask that is 0 outside the audio. The same graph
then computes the first, the middle and the last segments.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from types import MappingProxyType

import numpy as np
from torch import nn

from ane.models.tortoise.networks.hifigan import Hifigan
from ane.models.vocoders.bigvgan import HOP, TAPS, Activation, BigVGAN, PeriodicBlock, low_pass
from ane.models.vocoders.hifigan import BORDER, HifiganResBlock, MelHifigan, SmallResBlock
from ane.system.errors import UserError
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, mb
from converters.neural_engine import MAX_AXIS

SLOPE, LAST_SLOPE = 0.1, 0.01  # slopes of HiFi-GAN's leaky ReLUs
# BigVGAN's low-pass filter is split into its even and its odd taps. Each half reads REACH positions on either side
REACH = TAPS // 4
EVEN, ODD = low_pass()[1::2], low_pass()[0::2]
# kernels over 2·REACH + 1 positions. UP computes the even and the odd samples at twice the rate, DOWN goes back
UP = 2 * np.pad(EVEN[::-1], (0, 1)), 2 * np.pad(ODD[::-1], (1, 0))
DOWN = np.pad(EVEN, (1, 0)), np.pad(ODD, (0, 1))


def hifigan(network: Hifigan | MelHifigan, frames: int, kind: str = "hifigan") -> CoreMLGraph:
    """Describe the graph with which HiFi-GAN makes sound from x (1, D, 1, W) (see ``segmented``).

    Tortoise's HiFi-GAN has one more input, the voice's conditioning (1, D', 1, 1).

    Each level computes the sum of its blocks instead of their mean. The weights of the next layer contain the division.
    The result stays the same, because the leaky ReLU before that layer commutes with a positive factor.
    """
    voice = {"conditioning": network.config.cond_channels} if isinstance(network, Hifigan) else {}
    return segmented(kind, network, frames, network.config.hop, _hifigan, {"x": network.conv_pre.in_channels}, voice)


def bigvgan(network: BigVGAN, frames: int) -> CoreMLGraph:
    """Describe the graph with which BigVGAN makes sound from x (1, M, 1, W) (see ``segmented``).

    BigVGAN's activations work at twice the rate. The graph keeps the even and the odd samples in two tensors, so that
    no axis is twice as long. A filter with 12 taps becomes two filters with 6 taps.

    Beyond the ends of the sound, convolutions read zeros, but the activations' filters read the first or the last
    sample again. The sound may begin or end anywhere in a segment, so masks select these two samples.
    """
    return segmented("bigvgan", network, frames, HOP, _bigvgan, {"x": network.config.num_mels})


def segmented(
    kind: str,
    network: nn.Module,
    frames: int,
    hop: int,
    build: Callable[..., dict[str, Var]],
    channels: Mapping[str, int],
    once: Mapping[str, int] = MappingProxyType({}),
) -> CoreMLGraph:
    """Describe the graph of a vocoder that computes one segment of ``frames`` frames.

    The graph reads W = frames + 2·margin frames, and returns sound (1, 1, 1, hop·frames). The input ``inside`` (1, 1,
    1, W) is 1 in the frames of the whole sound, and 0 before its beginning and after its end. All other inputs must be
    0 where ``inside`` is 0.

    Args:
        kind: Name of the function.
        network: PyTorch network.
        frames: Frames of sound in one call.
        hop: Samples per frame.
        build: Function that builds the graph's outputs from its inputs.
        channels: Number of channels of each input with the shape (1, channels, 1, W).
        once: Number of channels of each input with the shape (1, channels, 1, 1).

    Raises:
        UserError: ``frames`` is too large for the engine, or a kernel of the vocoder does not fit its stride.
    """
    margins, margin = network.config.level_margins, network.config.margin
    most = MAX_AXIS // hop - 2 * margins[-1]
    if not 1 <= frames <= most:
        raise UserError(f"buckets={kind}={frames}: it takes 1 to {most} frames")
    width = frames + 2 * margin
    inputs = {name: (1, count, 1, width) for name, count in channels.items()}
    inputs |= {name: (1, count, 1, 1) for name, count in once.items()} | {"inside": (1, 1, 1, width)}
    return CoreMLGraph(
        kind,
        {"frames": frames, "margin": margin},
        inputs,
        partial(build, network=network, margins=margins, margin=margin),
    )


def _hifigan(
    s: Style,
    x: Var,
    inside: Var,
    conditioning: Var | None = None,
    *,
    network: Hifigan | MelHifigan,
    margins: list[int],
    margin: int,
) -> dict[str, Var]:
    inside = SoundMask(inside, margin)
    x = blocks.conv(s, x, *blocks.kernel(network.conv_pre), "conv_pre")
    if conditioning is not None:
        x = mb.add(x=x, y=blocks.linear(s, conditioning, network.cond_layer, "cond_layer"))
    x = mb.mul(x=x, y=inside.at(s, margins[0], 1))
    rate, before, share = 1, margins[0], 1.0
    sizes = len(network.config.resblock_kernel_sizes)
    for level, up in enumerate(network.ups):
        x = leaky(s, cropped(x, (before - margins[level]) * rate), SLOPE)
        rate, before = rate * up.stride[0], margins[level]
        mask = inside.at(s, before, rate)
        x = mb.mul(x=upsampled(s, x, up, share), y=mask, name=blocks.value_name(f"ups.{level}"))
        x = _sum(
            [
                _block(s, x, mask, network.resblocks[index], f"resblocks.{index}")
                for index in range(level * sizes, (level + 1) * sizes)
            ]
        )
        share = 1 / sizes
    weight, bias = blocks.kernel(network.conv_post)
    x = leaky(s, cropped(x, before * rate - BORDER), LAST_SLOPE)
    return {"sound": mb.tanh(x=blocks.conv(s, x, weight * share, bias, "conv_post"))}


def _block(s: Style, x: Var, mask: Var, block: HifiganResBlock | SmallResBlock, name: str) -> Var:
    """Apply a residual block: (1, C, 1, n) → (1, C, 1, n). Input and output are 0 outside the sound."""
    pairs = (
        [(conv,) for conv in block.convs]
        if isinstance(block, SmallResBlock)
        else [*zip(block.convs1, block.convs2, strict=True)]
    )
    for index, convs in enumerate(pairs):
        y = x
        for conv in convs:
            y = mb.mul(x=blocks.same_conv(s, leaky(s, y, SLOPE), conv), y=mask)
        x = mb.add(x=x, y=y, **blocks.named(name if index == len(pairs) - 1 else None))
    return x


def _sum(values: Sequence[Var]) -> Var:
    return reduce(lambda total, value: mb.add(x=total, y=value), values)


def _bigvgan(s: Style, x: Var, inside: Var, *, network: BigVGAN, margins: list[int], margin: int) -> dict[str, Var]:
    sound = SoundMask(inside, margin)
    x = blocks.conv(s, x, *blocks.kernel(network.conv_pre), "conv_pre")
    x = mb.mul(x=x, y=sound.at(s, margins[0], 1))
    rate, before, sizes = 1, margins[0], len(network.config.resblock_kernel_sizes)
    for level, [up] in enumerate(network.ups):
        x = cropped(x, (before - margins[level]) * rate)
        rate, before = rate * up.stride[0], margins[level]
        ends = SoundEnds.of(s, sound.at(s, before, rate))
        x = mb.mul(x=upsampled(s, x, up), y=ends.inside, name=blocks.value_name(f"ups.{level}.0"))
        x = mb.mul(
            x=_sum(
                [
                    _periodic_block(s, x, ends, network.resblocks[index], f"resblocks.{index}")
                    for index in range(level * sizes, (level + 1) * sizes)
                ]
            ),
            y=s.dtype(1 / sizes),
        )
    x = cropped(_activation(s, x, ends, network.activation_post), before * rate - BORDER)
    x = blocks.conv(s, x, *blocks.kernel(network.conv_post), "conv_post")
    return {
        "sound": mb.tanh(x=x) if network.config.use_tanh_at_final else mb.clip(x=x, alpha=s.dtype(-1), beta=s.dtype(1))
    }


@dataclass(frozen=True)
class SoundEnds:
    """Masks for the samples at the ends of the sound, at the sample rate of one level of the vocoder.

    The elements of each mask (1, 1, 1, n) are 0 or 1.

    Attributes:
        inside: 1 in the sound.
        first: 1 at the sound's first sample, if this segment contains it.
        last: 1 at the sound's last sample, if this segment contains it.
        before: 1 at the REACH positions before the first sample.
        after: 1 at the REACH positions after the last sample.
    """

    inside: Var
    first: Var
    last: Var
    before: Var
    after: Var

    @classmethod
    def of(cls, s: Style, inside: Var) -> "SoundEnds":
        def shifted(x: Var, kernel: list[float]) -> Var:
            reach = len(kernel) // 2
            return blocks.conv(
                s, x, np.reshape(kernel, (1, 1, 1, -1)), None, pad_type="custom", pad=[0, 0, reach, reach]
            )

        first, last = (mb.relu(x=shifted(inside, kernel)) for kernel in ([-1, 1, 0], [0, 1, -1]))
        near = [0.0] * (REACH + 1) + [1.0] * REACH
        return cls(inside, first, last, shifted(first, near), shifted(last, near[::-1]))

    def repeated(self, first: Var, last: Var) -> Var:
        """Return a tensor (1, C, 1, n) that repeats the sound's end samples outside the sound, and is 0 elsewhere.

        Before the sound it repeats the first sample of the tensor ``first``, and after the sound the last sample of the
        tensor ``last``.
        """

        def copied(x: Var, sample: Var, mask: Var) -> Var:
            return mb.mul(x=mb.reduce_sum(x=mb.mul(x=x, y=sample), axes=[3], keep_dims=True), y=mask)

        return mb.add(x=copied(first, self.first, self.before), y=copied(last, self.last, self.after))


def _periodic_block(s: Style, x: Var, ends: SoundEnds, block: PeriodicBlock, name: str) -> Var:
    """Apply a residual block: (1, C, 1, n) → (1, C, 1, n). Input and output are 0 outside the sound."""
    pairs = list(zip(block.convs1, block.convs2, block.activations[::2], block.activations[1::2], strict=True))
    for index, (dilated, plain, first, second) in enumerate(pairs):
        y = x
        for activation, conv in ((first, dilated), (second, plain)):
            y = blocks.same_conv(s, _activation(s, y, ends, activation), conv)
            y = mb.mul(x=y, y=ends.inside)
        x = mb.add(x=x, y=y, **blocks.named(name if index == len(pairs) - 1 else None))
    return x


def _activation(s: Style, x: Var, ends: SoundEnds, activation: Activation) -> Var:
    """Apply Snake at twice the rate: (1, C, 1, n) → (1, C, 1, n). Input and output are 0 outside the sound."""
    x = mb.add(x=x, y=ends.repeated(x, x))
    even, odd = (mb.mul(x=_snake(s, _filtered(s, x, kernel), activation), y=ends.inside) for kernel in UP)
    repeated = ends.repeated(even, odd)
    halves = [_filtered(s, mb.add(x=half, y=repeated), kernel) for half, kernel in zip((even, odd), DOWN, strict=True)]
    return mb.mul(x=mb.add(x=halves[0], y=halves[1]), y=ends.inside)


def _filtered(s: Style, x: Var, kernel: np.ndarray) -> Var:
    """Filter every channel with the same kernel."""
    channels = x.shape[1]
    return blocks.conv(
        s, x, np.tile(kernel, (channels, 1, 1, 1)), None, pad_type="custom", pad=[0, 0, REACH, REACH], groups=channels
    )


def _snake(s: Style, x: Var, activation: Activation) -> Var:
    alpha, beta = (blocks.array(part)[None, :, None, None] for part in activation.act.scales())
    wave = mb.sin(x=mb.mul(x=x, y=s.const(alpha)))
    return mb.add(x=x, y=mb.mul(x=mb.mul(x=wave, y=wave), y=s.const(1 / beta)))


@dataclass(frozen=True)
class SoundMask:
    """A mask at the frame rate, (1, 1, 1, frames + 2·margin). It is 1 in the frames of the sound and 0 outside."""

    frames: Var
    margin: int

    def at(self, s: Style, margin: int, rate: int) -> Var:
        """Return the mask for a level with this margin on both sides, (1, 1, 1, (frames + 2·margin)·rate)."""
        mask = cropped(self.frames, self.margin - margin)
        n = mask.shape[3]
        if rate == 1:
            return mask
        repeated = mb.mul(x=mb.reshape(x=mask, shape=(1, 1, n, 1)), y=s.const(np.ones((1, 1, 1, rate))))
        return mb.reshape(x=repeated, shape=(1, 1, 1, n * rate))


def cropped(x: Var, columns: int) -> Var:
    """Remove ``columns`` columns at both ends of the last axis."""
    if not columns:
        return x
    *others, width = x.shape
    return mb.slice_by_index(x=x, begin=(0, 0, 0, columns), end=(*others, width - columns))


def leaky(s: Style, x: Var, slope: float) -> Var:
    return mb.leaky_relu(x=x, alpha=s.dtype(slope))


def upsampled(s: Style, x: Var, conv: nn.ConvTranspose1d, scale: float = 1.0) -> Var:
    """Apply a transposed convolution to ``scale`` times x: (1, C, 1, n) → (1, O, 1, n·stride).

    The operation gets an explicit output shape. A pass of coremltools would otherwise add this shape.

    Raises:
        UserError: The kernel's size and padding do not make the output exactly ``stride`` times as long.
    """
    (size,), (stride,), (pad,), (extra,) = conv.kernel_size, conv.stride, conv.padding, conv.output_padding
    if size - 2 * pad + extra != stride:
        raise UserError(
            f"a transposed convolution of size {size}, stride {stride} and padding {pad} does not multiply "
            "the length by its stride: this vocoder cannot be converted"
        )
    weight, bias = blocks.kernel(conv)
    return mb.conv_transpose(
        x=x,
        weight=s.const(weight * scale),
        bias=s.const(bias),
        strides=[1, stride],
        pad_type="custom",
        pad=[0, 0, pad, pad - extra],
        output_shape=[1, weight.shape[1], 1, x.shape[3] * stride],
    )
