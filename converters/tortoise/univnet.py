"""Build Core ML graphs of the vocoder UnivNet, which compute audio in segments.

The PyTorch network is in ``ane.models.tortoise.networks.univnet``. UnivNet's location-variable convolution has another
kernel for each frame. The graph computes this convolution as a matrix product per frame. For this product, the graph
moves the frames away from the last axis, and back afterwards.

A kernel has three taps. The graph gets every sample and its two neighbours from a depthwise convolution with weights of
0 and 1, instead of slices of the last axis. Slices with an offset are slow on the first Neural Engines, and wrong for
large values.
"""

from math import prod

import numpy as np

from ane.models.tortoise.networks.univnet import BORDER, TAPS, KernelPredictor, LVCBlock, UnivNet
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, mb
from converters.vocoders import SoundMask, cropped, leaky, segmented, upsampled


def univnet(network: UnivNet, frames: int) -> CoreMLGraph:
    """Describe the graph mel (1, 100, 1, W), noise (1, Z, 1, W), inside → sound (``segmented``).

    The silent frames at the end of the sound count as sound. Before and after the sound, the host must mirror the noise
    for at least 3 frames.
    """
    config = network.config
    return segmented(
        "univnet",
        network,
        frames,
        prod(config.strides),
        _univnet,
        {"mel": config.n_mel_channels, "noise": config.noise_dim},
    )


def _univnet(
    s: Style, mel: Var, noise: Var, inside: Var, *, network: UnivNet, margins: list[int], margin: int
) -> dict[str, Var]:
    inside = SoundMask(inside, margin)
    x = blocks.conv(s, cropped(noise, margin - margins[0] - BORDER), *blocks.kernel(network.conv_pre), "conv_pre")
    x = mb.mul(x=x, y=inside.at(s, margins[0], 1))
    rate, before = 1, margins[0]
    for index, (block, level_margin) in enumerate(zip(network.res_stack, margins, strict=True)):
        x = cropped(x, (before - level_margin) * rate)
        x = _block(s, x, mel, inside, block, level_margin, f"res_stack.{index}")
        rate, before = block.hop, level_margin
    return {"sound": mb.tanh(x=_last(s, x, inside, network, margins[-1] * rate))}


def _block(s: Style, x: Var, mel: Var, inside: SoundMask, block: LVCBlock, margin: int, name: str) -> Var:
    """Apply a block: (1, C, 1, n) → (1, C, 1, n·stride). The output is 0 outside the sound."""
    hidden = _hidden(s, mel, inside, block.kernel_predictor, f"{name}.kernel_predictor")
    hidden = cropped(hidden, inside.margin - margin - block.kernel_predictor.kernel_conv.kernel_size[0] // 2)
    mask = inside.at(s, margin, block.hop)
    x = mb.mul(
        x=upsampled(s, leaky(s, x, block.slope), block.convt_pre["1"]),
        y=mask,
        name=blocks.value_name(f"{name}.convt_pre.1"),
    )
    for layer, conv in enumerate(block.conv_blocks):
        y = blocks.same_conv(s, leaky(s, x, block.slope), conv["1"], f"{name}.conv_blocks.{layer}.1")
        y = leaky(s, y, block.slope)
        kernel, bias = _kernel(s, hidden, block.kernel_predictor, layer)
        y = mb.add(x=mb.matmul(x=kernel, y=_taps(s, mb.mul(x=y, y=mask), block.hop)), y=bias)
        gate, value = mb.split(x=y, num_splits=2, axis=2)
        y = mb.transpose(x=mb.mul(x=mb.sigmoid(x=gate), y=mb.tanh(x=value)), perm=(0, 2, 1, 3))  # (1, C, L, hop)
        y = mb.mul(x=mb.reshape(x=y, shape=x.shape), y=mask)
        last = layer == len(block.conv_blocks) - 1
        x = mb.add(x=x, y=y, name=blocks.value_name(name if last else f"{name}.conv_blocks.{layer}"))
    return x


def _hidden(s: Style, mel: Var, inside: SoundMask, predictor: KernelPredictor, name: str) -> Var:
    """Compute the features from which kernels are predicted: (1, mels, 1, W) → (1, hidden, 1, W).

    The output is 0 outside the sound.
    """

    def masked(x: Var, conv: str) -> Var:
        x = blocks.same_conv(s, x, predictor.get_submodule(conv), f"{name}.{conv}")
        return mb.mul(x=leaky(s, x, predictor.slope), y=inside.frames)

    c = masked(mel, "input_conv.0")
    for index in range(len(predictor.residual_convs)):
        c = mb.add(x=c, y=masked(masked(c, f"residual_convs.{index}.1"), f"residual_convs.{index}.3"))
    return c


def _kernel(s: Style, hidden: Var, predictor: KernelPredictor, layer: int) -> tuple[Var, Var]:
    """Predict a layer's kernels (1, L, 2C, 3C) and biases (1, L, 2C, 1) for L frames, from L + 2 columns of features.

    The last axis of the kernels is ordered by channel, then by tap. The rows of the convolution that predicts the
    kernels are reordered, so that the graph transposes only frames.
    """
    C = predictor.channels
    weight, bias = blocks.kernel(predictor.kernel_conv)  # rows: layer, channel, output, tap
    order = np.arange(len(weight)).reshape(predictor.layers, C, 2 * C, TAPS)[layer].transpose(1, 0, 2).ravel()
    kernel = mb.transpose(x=blocks.conv(s, hidden, weight[order], bias[order]), perm=(0, 3, 2, 1))
    weight, bias = blocks.kernel(predictor.bias_conv)
    rows = slice(2 * C * layer, 2 * C * (layer + 1))
    shift = mb.transpose(x=blocks.conv(s, hidden, weight[rows], bias[rows]), perm=(0, 3, 1, 2))
    return mb.reshape(x=kernel, shape=(1, kernel.shape[1], 2 * C, TAPS * C)), shift


def _taps(s: Style, x: Var, hop: int) -> Var:
    """Put each sample together with its two neighbours, frame by frame: (1, C, 1, L·hop) → (1, L, 3C, hop).

    The third axis is ordered by channel, then by tap.
    """
    _, C, _, S = x.shape
    weight = np.tile(np.eye(TAPS), (C, 1))[:, None, None]
    x = blocks.conv(s, x, weight, None, pad_type="custom", pad=[0, 0, TAPS // 2, TAPS // 2], groups=C)
    return mb.transpose(x=mb.reshape(x=x, shape=(1, TAPS * C, S // hop, hop)), perm=(0, 2, 1, 3))


def _last(s: Style, x: Var, inside: SoundMask, network: UnivNet, crop: int) -> Var:
    """Apply the last convolution, ``conv_post``, and remove the margins: (1, C, 1, S + 2·crop) → (1, 1, 1, S).

    At the left end of the sound, this convolution reads mirrored samples, where the other convolutions read zeros. The
    mirrored samples are the samples 1, 2 and 3, and only the outputs 0, 1 and 2 depend on them. The graph computes the
    contribution of the mirrored samples separately, and adds it only in the first segment. At the right end, the sound
    is silent, so nothing is mirrored.
    """
    x = leaky(s, x, network.config.lReLU_slope)
    weight, bias = blocks.kernel(network.conv_post["1"])
    y = blocks.conv(s, cropped(x, crop - BORDER), weight, bias)
    mirrored = np.zeros((BORDER, *weight.shape[1:3], BORDER), np.float32)
    for output in range(BORDER):
        for sample in range(1, BORDER + 1 - output):
            mirrored[output, ..., sample - 1] = weight[0, ..., BORDER - output - sample]
    head = mb.slice_by_index(x=x, begin=(0, 0, 0, crop + 1), end=(1, x.shape[1], 1, crop + 1 + BORDER))
    head = mb.reshape(x=blocks.conv(s, head, mirrored, None), shape=(1, 1, 1, BORDER))
    before = mb.slice_by_index(x=inside.frames, begin=(0, 0, 0, inside.margin - 1), end=(1, 1, 1, inside.margin))
    head = mb.mul(x=head, y=mb.sub(x=s.dtype(1), y=before))
    head = mb.pad(x=head, pad=[0, 0, 0, y.shape[3] - BORDER], mode="constant", constant_val=s.dtype(0))
    return mb.add(x=y, y=head, name=blocks.value_name("conv_post.1"))
