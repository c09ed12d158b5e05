"""BigVGAN in segments of audio, as a Core ML graph; reference: ``ane.models.vocoders.bigvgan``.

An activation works at twice the rate. Its even and odd samples are two tensors here, so that no axis is twice as long:
a filter of 12 taps becomes one of 6 for each. At the ends of the sound, where convolutions see zeros, the filters see
the first and the last sample again; these are selected by masks, since the end may lie anywhere in a segment.
"""

from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from ane.models.vocoders.bigvgan import HOP, TAPS, Activation, BigVGAN, PeriodicBlock, low_pass
from ane.models.vocoders.hifigan import BORDER
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, mb
from converters.vocoders.segments import SoundMask, check_width, cropped, upsampled

REACH = TAPS // 4               # positions on either side that half of a filter reads
EVEN, ODD = low_pass()[1::2], low_pass()[0::2]
# kernels over 2·REACH + 1 positions: to the even and odd samples of twice the rate, and back from them
UP = 2 * np.pad(EVEN[::-1], (0, 1)), 2 * np.pad(ODD[::-1], (1, 0))
DOWN = np.pad(EVEN, (1, 0)), np.pad(ODD, (0, 1))


def bigvgan(network: BigVGAN, frames: int) -> CoreMLGraph:
    """The sound of ``frames`` frames, computed from these and ``margin`` more on either side.

    x (1, M, 1, W), inside (1, 1, 1, W) → sound (1, 1, 1, 256·frames), where W = frames + 2·margin. ``inside`` is 1 in
    the frames of the sound and 0 before and after it, where x is 0.

    Raises:
        UserError: more frames than the engine's widest axis allows, or kernels that do not fit their strides.
    """
    config = network.config
    each, margin = config.level_margins, config.margin
    check_width("bigvgan", frames, each[-1], HOP)
    width = frames + 2 * margin
    return CoreMLGraph("bigvgan", {"frames": frames, "margin": margin},
                       {"x": (1, config.num_mels, 1, width), "inside": (1, 1, 1, width)},
                       partial(_bigvgan, network=network, margins=each, margin=margin))


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
        parts = [_block(s, x, ends, network.resblocks[index], f"resblocks.{index}")
                 for index in range(level * sizes, (level + 1) * sizes)]
        x = mb.mul(x=reduce(lambda total, part: mb.add(x=total, y=part), parts), y=s.dtype(1 / sizes))
    x = cropped(_activation(s, x, ends, network.activation_post), before * rate - BORDER)
    x = blocks.conv(s, x, *blocks.kernel(network.conv_post), "conv_post")
    return {"sound": mb.tanh(x=x) if network.config.use_tanh_at_final else mb.clip(x=x, alpha=s.dtype(-1),
                                                                                   beta=s.dtype(1))}


@dataclass(frozen=True)
class SoundEnds:
    """Masks (1, 1, 1, n) of a level.

    Attributes:
        inside: 1 in the sound. first, last: 1 at its first and at its last sample, if they are in the segment.
        before, after: 1 at the REACH positions before the first sample and after the last.
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
            return blocks.conv(s, x, np.reshape(kernel, (1, 1, 1, -1)), None, pad_type="custom",
                               pad=[0, 0, reach, reach])

        first, last = (mb.relu(x=shifted(inside, kernel)) for kernel in ([-1, 1, 0], [0, 1, -1]))
        near = [0.0] * (REACH + 1) + [1.0] * REACH
        return cls(inside, first, last, shifted(first, near), shifted(last, near[::-1]))

    def repeated(self, first: Var, last: Var) -> Var:
        """``first``'s first sample before the sound and ``last``'s last one after it: (1, C, 1, n), 0 elsewhere."""
        def copied(x: Var, sample: Var, mask: Var) -> Var:
            return mb.mul(x=mb.reduce_sum(x=mb.mul(x=x, y=sample), axes=[3], keep_dims=True), y=mask)

        return mb.add(x=copied(first, self.first, self.before), y=copied(last, self.last, self.after))


def _block(s: Style, x: Var, ends: SoundEnds, block: PeriodicBlock, name: str) -> Var:
    """(1, C, 1, n) → the same; both are 0 outside the sound."""
    pairs = list(zip(block.convs1, block.convs2, block.activations[::2], block.activations[1::2], strict=True))
    for index, (dilated, plain, first, second) in enumerate(pairs):
        y = x
        for activation, conv in ((first, dilated), (second, plain)):
            y = blocks.same_conv(s, _activation(s, y, ends, activation), conv)
            y = mb.mul(x=y, y=ends.inside)
        x = mb.add(x=x, y=y, **blocks.named(name if index == len(pairs) - 1 else None))
    return x


def _activation(s: Style, x: Var, ends: SoundEnds, activation: Activation) -> Var:
    """Snake at twice the rate: (1, C, 1, n) → the same; both are 0 outside the sound."""
    x = mb.add(x=x, y=ends.repeated(x, x))
    even, odd = (mb.mul(x=_snake(s, _filtered(s, x, kernel), activation), y=ends.inside) for kernel in UP)
    repeated = ends.repeated(even, odd)
    halves = [_filtered(s, mb.add(x=half, y=repeated), kernel) for half, kernel in zip((even, odd), DOWN, strict=True)]
    return mb.mul(x=mb.add(x=halves[0], y=halves[1]), y=ends.inside)


def _filtered(s: Style, x: Var, kernel: np.ndarray) -> Var:
    """Each channel by the same kernel."""
    channels = x.shape[1]
    return blocks.conv(s, x, np.tile(kernel, (channels, 1, 1, 1)), None, pad_type="custom",
                       pad=[0, 0, REACH, REACH], groups=channels)


def _snake(s: Style, x: Var, activation: Activation) -> Var:
    alpha, beta = (blocks.array(part)[None, :, None, None] for part in activation.act.scales())
    wave = mb.sin(x=mb.mul(x=x, y=s.const(alpha)))
    return mb.add(x=x, y=mb.mul(x=mb.mul(x=wave, y=wave), y=s.const(1 / beta)))
