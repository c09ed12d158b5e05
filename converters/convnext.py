"""Build Core ML graphs of ConvNeXt blocks, stacks of them, and the networks of source-filter vocoders.

References: ``ane.models.vocoders.convnext``. x is 0 in the padding, and ``inside`` (1, 1, 1, N) is 1 in the sequence
and 0 after it.
"""

from collections.abc import Callable

from torch import nn

from ane.models.vocoders.convnext import ConvNextBlock, FrameDecoder, SourceFilterNetwork
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, array, mb
from converters.function_table import Bucket, Function, stage_probe
from converters.onnx.graph import masked, network_call, noise, traced

FRAMES = 64, 256  # a window of a stream, and the longest window of whole speech
SOURCE_FILTER = {"fp16": (73.0, 50.0)}  # 6 dB or more below what the embedded networks reach
SMALLEST = 54  # frames of a window: new frames, and the largest margin on either side
MISSING = 5  # length of a bucket less the length of its test input
BATCH, LENGTH = 2, 29  # sizes of the inputs that ONNX graphs are traced with


def masked_graph(
    kind: str, unit: str, length: int, channels: int, compute: Callable[[Style, Var, Var], Var]
) -> CoreMLGraph:
    """Return the graph x (1, channels, 1, N), inside (1, 1, 1, N) → y, where y is ``compute(style, x, inside)``."""
    return CoreMLGraph(
        kind,
        {unit: length},
        {"x": (1, channels, 1, length), "inside": (1, 1, 1, length)},
        lambda s, x, inside: {"y": compute(s, x, inside)},
    )


def frame_decoder(s: Style, x: Var, inside: Var, network: FrameDecoder, path: str = "") -> Var:
    """Decode (1, C, 1, N) → (1, C', 1, N), with arbitrary values in the padding.

    ``path`` is the network's module path, with a dot at its end.
    """
    x = mb.mul(x=blocks.same_conv(s, x, network.dec_in, f"{path}dec_in"), y=inside)
    for index, block in enumerate(network.dec):
        x = convnext_block(s, x, inside, block, f"{path}dec.{index}")
    return blocks.linear(s, blocks.layer_norm(s, x, network.dec_norm, f"{path}dec_norm"), network.head)


def convnext_block(s: Style, x: Var, inside: Var, block: ConvNextBlock, name: str) -> Var:
    """Apply a block: (1, C, 1, N) → (1, C, 1, N). The factors ``gamma`` are part of the second linear layer."""
    y = blocks.layer_norm(s, _depthwise(s, x, block.dw), block.norm, f"{name}.norm")
    y = mb.gelu(x=blocks.linear(s, y, block.pw1, f"{name}.pw1"), mode="EXACT")
    weight, bias = blocks.kernel(block.pw2)
    gamma = array(block.gamma)
    y = blocks.conv(s, y, weight * gamma[:, None, None, None], bias * gamma)
    return mb.add(x=x, y=mb.mul(x=y, y=inside), **blocks.named(name))


def _depthwise(s: Style, x: Var, layer: nn.Conv1d) -> Var:
    """Convolve each channel by itself, with the layer's padding and dilation."""
    weight, bias = blocks.kernel(layer)
    (pad,) = layer.padding
    return blocks.conv(
        s, x, weight, bias, pad_type="custom", pad=[0, 0, pad, pad], dilations=[1, *layer.dilation], groups=layer.groups
    )


def source_filter(name: str) -> Function:
    """Return the function of a network that predicts parameters of sound: x (1, D, 1, N), inside → y (1, 66, 1, N).

    Its test inputs are parameters of frames that nearly fill the bucket.
    """

    def graph(network: SourceFilterNetwork, frames: int) -> CoreMLGraph:
        return masked_graph(
            name, "frames", frames, network.config.channels, lambda s, x, inside: frame_decoder(s, x, inside, network)
        )

    probe = stage_probe(
        name, masked=True, frames=lambda model, bucket: (1, bucket["frames"] - MISSING, model.config(name).channels)
    )
    return Function(
        name,
        name,
        probe,
        outputs={"y": ""},
        thresholds=SOURCE_FILTER,
        coreml=lambda r: [graph(r.network, frames) for frames in r.lengths(name)],
        onnx=onnx_source_filter,
        onnx_lengths={"frames": 40},
        bucket=Bucket("frames", SMALLEST, lambda model: FRAMES),
    )


onnx_source_filter = traced(
    network_call,
    ("parameters",),
    lambda network, dtype: masked("frames", noise(BATCH, LENGTH, network.config.channels).to(dtype), "frames", dtype),
)
