"""HiFi-GAN in segments of audio, as Core ML graphs.

References: ``ane.models.tortoise.networks.hifigan``, which is conditioned on a voice, and
``ane.models.vocoders.hifigan``, which is not.

The mean over a level's blocks is computed as their sum. The division is folded into the weights that read it, which is
exact because the leaky ReLU in between commutes with a positive factor.
"""

from collections.abc import Sequence
from functools import partial, reduce

from ane.models.tortoise.networks.hifigan import Hifigan
from ane.models.vocoders.hifigan import BORDER, HifiganResBlock, MelHifigan, SmallResBlock
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, mb
from converters.vocoders.segments import SoundMask, check_width, cropped, leaky, upsampled

SLOPE, LAST_SLOPE = 0.1, 0.01


def hifigan(network: Hifigan | MelHifigan, frames: int, kind: str = "hifigan") -> CoreMLGraph:
    """The sound of ``frames`` frames, computed from these and ``margin`` more on either side.

    x (1, D, 1, W), conditioning (1, D', 1, 1) if the network has it, inside (1, 1, 1, W) → sound (1, 1, 1, hop·frames),
    where W = frames + 2·margin. ``inside`` is 1 in the frames of the sound and 0 before and after it, where x is 0.

    Raises:
        UserError: more frames than the engine's widest axis allows, or kernels that do not fit their strides.
    """
    config = network.config
    each, margin = config.level_margins, config.margin
    check_width(kind, frames, each[-1], config.hop)
    width = frames + 2 * margin
    inputs = {"x": (1, network.conv_pre.in_channels, 1, width)}
    if isinstance(network, Hifigan):
        inputs["conditioning"] = (1, config.cond_channels, 1, 1)
    return CoreMLGraph(kind, {"frames": frames, "margin": margin}, inputs | {"inside": (1, 1, 1, width)},
                       partial(_hifigan, network=network, margins=each, margin=margin))


def _levels(network: Hifigan | MelHifigan) -> list[tuple]:
    """For each level, the transposed convolution and the blocks that read it."""
    sizes = len(network.config.resblock_kernel_sizes)
    return [(up, network.resblocks[level * sizes:(level + 1) * sizes]) for level, up in enumerate(network.ups)]


def _hifigan(s: Style, x: Var, inside: Var, conditioning: Var | None = None, *, network: Hifigan | MelHifigan,
             margins: list[int], margin: int) -> dict[str, Var]:
    inside = SoundMask(inside, margin)
    x = blocks.conv(s, x, *blocks.kernel(network.conv_pre), "conv_pre")
    if conditioning is not None:
        x = mb.add(x=x, y=blocks.linear(s, conditioning, network.cond_layer, "cond_layer"))
    x = mb.mul(x=x, y=inside.at(s, margins[0], 1))
    rate, before, share = 1, margins[0], 1.0
    for level, (up, resblocks) in enumerate(_levels(network)):
        first = level * len(resblocks)
        x = leaky(s, cropped(x, (before - margins[level]) * rate), SLOPE)
        rate, before = rate * up.stride[0], margins[level]
        mask = inside.at(s, before, rate)
        x = mb.mul(x=upsampled(s, x, up, share), y=mask, name=blocks.value_name(f"ups.{level}"))
        x = _sum([_block(s, x, mask, block, f"resblocks.{index}") for index, block in enumerate(resblocks, first)])
        share = 1 / len(resblocks)
    weight, bias = blocks.kernel(network.conv_post)
    x = leaky(s, cropped(x, before * rate - BORDER), LAST_SLOPE)
    return {"sound": mb.tanh(x=blocks.conv(s, x, weight * share, bias, "conv_post"))}


def _block(s: Style, x: Var, mask: Var, block: HifiganResBlock | SmallResBlock, name: str) -> Var:
    """(1, C, 1, n) → the same; both are 0 outside the sound."""
    pairs = [(conv,) for conv in block.convs] if isinstance(block, SmallResBlock) else [
        *zip(block.convs1, block.convs2, strict=True)]
    for index, convs in enumerate(pairs):
        y = x
        for conv in convs:
            y = mb.mul(x=blocks.same_conv(s, leaky(s, y, SLOPE), conv), y=mask)
        x = mb.add(x=x, y=y, **blocks.named(name if index == len(pairs) - 1 else None))
    return x


def _sum(values: Sequence[Var]) -> Var:
    return reduce(lambda total, value: mb.add(x=total, y=value), values)
