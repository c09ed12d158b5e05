"""UnivNet in chunks (``sound``), channels first; twin of ``ane.models.tortoise.networks.univnet``.

The location-variable convolution has a kernel for each frame, so it is a product of matrices a frame: frames leave the
last axis for it, and come back. Its three taps are one depthwise convolution with weights of 0 and 1, which pads as it
must and needs no slices of the last axis (offset ones are costly, and far ones wrong, on the first Neural Engines).
"""

from functools import partial
from math import prod

import numpy as np

from ane.models.tortoise.networks.univnet import BORDER, TAPS, KernelPredictor, LVCBlock, UnivNet
from converters import blocks as layers
from converters.coreml.graph import Graph, Style, Var, mb
from converters.tortoise.vocoder_chunks import Inside, check_width, cropped, leaky, upsampled


def univnet(twin: UnivNet, frames: int) -> Graph:
    """Frames 0 … ``frames`` of a chunk, made from frames −margin … ``frames`` + margin.

    mel (1, 100, 1, W), noise (1, Z, 1, W), inside (1, 1, 1, W) → sound (1, 1, 1, 256·frames), where W = frames +
    2·margin. ``inside`` is 1 in frames of the sound, the silent ones at its end included, and 0 outside; there mel is 0
    and the noise is mirrored, for 3 frames at least.

    Raises:
        UserError: too many frames for the engine, or strides that do not fit.
    """
    config = twin.config
    each, margin = config.level_margins, config.margin
    check_width("univnet", frames, each[-1], prod(config.strides))
    width = frames + 2 * margin
    return Graph("univnet", {"frames": frames, "margin": margin},
                 {"mel": (1, config.n_mel_channels, 1, width), "noise": (1, config.noise_dim, 1, width),
                  "inside": (1, 1, 1, width)}, partial(_univnet, twin=twin, margins=each, margin=margin))


def _univnet(s: Style, mel: Var, noise: Var, inside: Var, *, twin: UnivNet, margins: list[int],
             margin: int) -> dict[str, Var]:
    inside = Inside(inside, margin)
    x = layers.conv(s, cropped(noise, margin - margins[0] - BORDER), *layers.kernel(twin.conv_pre), "conv_pre")
    x = mb.mul(x=x, y=inside.at(s, margins[0], 1))
    rate, before = 1, margins[0]
    for index, (block, own) in enumerate(zip(twin.res_stack, margins, strict=True)):
        x = cropped(x, (before - own) * rate)
        x = _block(s, x, mel, inside, block, own, f"res_stack.{index}")
        rate, before = block.hop, own
    return {"sound": mb.tanh(x=_last(s, x, inside, twin, margins[-1] * rate))}


def _block(s: Style, x: Var, mel: Var, inside: Inside, twin: LVCBlock, margin: int, name: str) -> Var:
    """(1, C, 1, n) → (1, C, 1, n·stride), zero outside the sound."""
    hidden = _hidden(s, mel, inside, twin.kernel_predictor, f"{name}.kernel_predictor")
    hidden = cropped(hidden, inside.margin - margin - twin.kernel_predictor.kernel_conv.kernel_size[0] // 2)
    mask = inside.at(s, margin, twin.hop)
    x = mb.mul(x=upsampled(s, leaky(s, x, twin.slope), twin.convt_pre["1"]), y=mask,
               name=layers.spelt(f"{name}.convt_pre.1"))
    for layer, conv in enumerate(twin.conv_blocks):
        y = layers.same_conv(s, leaky(s, x, twin.slope), conv["1"], f"{name}.conv_blocks.{layer}.1")
        y = leaky(s, y, twin.slope)
        kernel, bias = _kernel(s, hidden, twin.kernel_predictor, layer)
        y = mb.add(x=mb.matmul(x=kernel, y=_taps(s, mb.mul(x=y, y=mask), twin.hop)), y=bias)
        gate, value = mb.split(x=y, num_splits=2, axis=2)
        y = mb.transpose(x=mb.mul(x=mb.sigmoid(x=gate), y=mb.tanh(x=value)), perm=(0, 2, 1, 3))     # (1, C, L, hop)
        y = mb.mul(x=mb.reshape(x=y, shape=x.shape), y=mask)
        last = layer == len(twin.conv_blocks) - 1
        x = mb.add(x=x, y=y, name=layers.spelt(name if last else f"{name}.conv_blocks.{layer}"))
    return x


def _hidden(s: Style, mel: Var, inside: Inside, twin: KernelPredictor, name: str) -> Var:
    """What kernels are made from: (1, mels, 1, W) → (1, hidden, 1, W), zero outside the sound."""
    def masked(x: Var, conv: str) -> Var:
        x = layers.same_conv(s, x, twin.get_submodule(conv), f"{name}.{conv}")
        return mb.mul(x=leaky(s, x, twin.slope), y=inside.frames)

    c = masked(mel, "input_conv.0")
    for index in range(len(twin.residual_convs)):
        c = mb.add(x=c, y=masked(masked(c, f"residual_convs.{index}.1"), f"residual_convs.{index}.3"))
    return c


def _kernel(s: Style, hidden: Var, twin: KernelPredictor, layer: int) -> tuple[Var, Var]:
    """A layer's kernels (1, L, 2C, 3C) and biases (1, L, 2C, 1), columns ordered (channel, tap), from L + 2 columns.

    The rows of the convolution that makes them are put in that order, so that frames are all that has to move.
    """
    C = twin.channels
    weight, bias = layers.kernel(twin.kernel_conv)      # rows: layer, channel, output, tap
    order = np.arange(len(weight)).reshape(twin.layers, C, 2 * C, TAPS)[layer].transpose(1, 0, 2).ravel()
    kernel = mb.transpose(x=layers.conv(s, hidden, weight[order], bias[order]), perm=(0, 3, 2, 1))
    weight, bias = layers.kernel(twin.bias_conv)
    rows = slice(2 * C * layer, 2 * C * (layer + 1))
    shift = mb.transpose(x=layers.conv(s, hidden, weight[rows], bias[rows]), perm=(0, 3, 1, 2))
    return mb.reshape(x=kernel, shape=(1, kernel.shape[1], 2 * C, TAPS * C)), shift


def _taps(s: Style, x: Var, hop: int) -> Var:
    """Each sample with its neighbours, frame by frame: (1, C, 1, L·hop) → (1, L, 3C, hop), rows (channel, tap)."""
    _, C, _, S = x.shape
    weight = np.tile(np.eye(TAPS), (C, 1))[:, None, None]
    x = layers.conv(s, x, weight, None, pad_type="custom", pad=[0, 0, TAPS // 2, TAPS // 2], groups=C)
    return mb.transpose(x=mb.reshape(x=x, shape=(1, TAPS * C, S // hop, hop)), perm=(0, 2, 1, 3))


def _last(s: Style, x: Var, inside: Inside, twin: UnivNet, crop: int) -> Var:
    """conv_post on the frames that count: (1, C, 1, S + 2·crop) → (1, 1, 1, S).

    It mirrors at the left end of the sound where the others have zeros. Outputs 0, 1 and 2 see mirrored samples there,
    which are samples 1, 2 and 3: that part is added if the chunk is the first. At the right end nothing is heard.
    """
    x = leaky(s, x, twin.config.lReLU_slope)
    weight, bias = layers.kernel(twin.conv_post["1"])
    y = layers.conv(s, cropped(x, crop - BORDER), weight, bias)
    mirrored = np.zeros((BORDER, *weight.shape[1:3], BORDER), np.float32)
    for output in range(BORDER):
        for sample in range(1, BORDER + 1 - output):
            mirrored[output, ..., sample - 1] = weight[0, ..., BORDER - output - sample]
    head = mb.slice_by_index(x=x, begin=(0, 0, 0, crop + 1), end=(1, x.shape[1], 1, crop + 1 + BORDER))
    head = mb.reshape(x=layers.conv(s, head, mirrored, None), shape=(1, 1, 1, BORDER))
    before = mb.slice_by_index(x=inside.frames, begin=(0, 0, 0, inside.margin - 1), end=(1, 1, 1, inside.margin))
    head = mb.mul(x=head, y=mb.sub(x=s.dtype(1), y=before))
    head = mb.pad(x=head, pad=[0, 0, 0, y.shape[3] - BORDER], mode="constant", constant_val=s.dtype(0))
    return mb.add(x=y, y=head, name=layers.spelt("conv_post.1"))
