"""HiFi-GAN in chunks (``sound``), channels first; twin of ``ane.models.tortoise.networks.hifigan``.

The mean over blocks of a level is their sum: the rest is folded into the weights
that read it, which the leaky ReLU between lets pass.
"""

from collections.abc import Sequence
from functools import partial, reduce

from ane.models.tortoise.networks.hifigan import BORDER, Hifigan, ResBlock
from converters import blocks as layers
from converters.coreml.graph import Graph, Style, Var, mb
from converters.tortoise.vocoder_chunks import Inside, check_width, cropped, leaky, upsampled

SLOPE, LAST_SLOPE = 0.1, 0.01


def hifigan(twin: Hifigan, frames: int) -> Graph:
    """Frames 0 … ``frames`` of a chunk, made from frames −margin … ``frames`` + margin.

    x (1, D, 1, W), conditioning (1, D', 1, 1), inside (1, 1, 1, W) → sound (1, 1, 1, hop·frames), where W = frames +
    2·margin. ``inside`` is 1 in frames of the sound and 0 outside, where x is 0.

    Raises:
        UserError: too many frames for the engine, or upsampling kernels that do not fit their factors.
    """
    config = twin.config
    each, margin = config.level_margins, config.margin
    check_width("hifigan", frames, each[-1], config.hop)
    width = frames + 2 * margin
    return Graph("hifigan", {"frames": frames, "margin": margin},
                 {"x": (1, config.in_channels, 1, width), "conditioning": (1, config.cond_channels, 1, 1),
                  "inside": (1, 1, 1, width)}, partial(_hifigan, twin=twin, margins=each, margin=margin))


def _levels(twin: Hifigan) -> list[tuple]:
    """A transposed convolution and the blocks that read it, for each level."""
    sizes = len(twin.config.resblock_kernel_sizes)
    return [(up, twin.resblocks[level * sizes:(level + 1) * sizes]) for level, up in enumerate(twin.ups)]


def _hifigan(s: Style, x: Var, conditioning: Var, inside: Var, *, twin: Hifigan, margins: list[int],
             margin: int) -> dict[str, Var]:
    inside = Inside(inside, margin)
    x = layers.conv(s, x, *layers.kernel(twin.conv_pre), "conv_pre")
    x = mb.add(x=x, y=layers.linear(s, conditioning, twin.cond_layer, "cond_layer"))
    x = mb.mul(x=x, y=inside.at(s, margins[0], 1))
    rate, before, share = 1, margins[0], 1.0
    for level, (up, blocks) in enumerate(_levels(twin)):
        first = level * len(blocks)
        x = leaky(s, cropped(x, (before - margins[level]) * rate), SLOPE)
        rate, before = rate * up.stride[0], margins[level]
        mask = inside.at(s, before, rate)
        x = mb.mul(x=upsampled(s, x, up, share), y=mask, name=layers.spelt(f"ups.{level}"))
        x = _sum([_block(s, x, mask, block, f"resblocks.{index}") for index, block in enumerate(blocks, first)])
        share = 1 / len(blocks)
    weight, bias = layers.kernel(twin.conv_post)
    x = leaky(s, cropped(x, before * rate - BORDER), LAST_SLOPE)
    return {"sound": mb.tanh(x=layers.conv(s, x, weight * share, bias, "conv_post"))}


def _block(s: Style, x: Var, mask: Var, twin: ResBlock, name: str) -> Var:
    """(1, C, 1, n), zero outside the sound, as is the result."""
    for index, (dilated, plain) in enumerate(zip(twin.convs1, twin.convs2, strict=True)):
        label = {"name": layers.spelt(name)} if index == len(twin.convs1) - 1 else {}
        y = mb.mul(x=leaky(s, layers.same_conv(s, leaky(s, x, SLOPE), dilated), SLOPE), y=mask)
        x = mb.add(x=x, y=mb.mul(x=layers.same_conv(s, y, plain), y=mask), **label)
    return x


def _sum(values: Sequence[Var]) -> Var:
    return reduce(lambda total, value: mb.add(x=total, y=value), values)
