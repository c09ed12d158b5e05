"""Build Core ML graphs of ConvNeXt blocks, of stacks of blocks, and of the networks of source-filter vocoders.

The PyTorch networks are in ``ane.models.vocoders.convnext``. Every graph has an input ``inside`` (1, 1, 1, N), which is
1 in the sequence and 0 in the padding after it. The input x is 0 in the padding.
"""

from collections.abc import Callable

from torch import nn

from ane.models.vocoders.convnext import ConvNextBlock, FrameDecoder, SourceFilterNetwork
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, array, mb
from converters.function_table import Bucket, Function, stage_probe
from converters.onnx.graph import masked, network_call, noise, traced

FRAMES = 64, 256  # lengths of the functions, in frames: one for a stream's window, one for the longest window of speech
SOURCE_FILTER = {"fp16": (73.0, 50.0)}  # thresholds in dB, at least 6 dB below what the networks of `demo` reach
SMALLEST = 54  # smallest length of a function, in frames: new frames, and the largest margin on either side of them
MISSING = 5  # a test input is this much shorter than the function's length
BATCH, LENGTH = 2, 29  # batch and length of the inputs with which ONNX graphs are traced


def masked_graph(
    kind: str, unit: str, length: int, channels: int, compute: Callable[[Style, Var, Var], Var]
) -> CoreMLGraph:
    """Describe a graph with two inputs, x (1, channels, 1, N) and inside (1, 1, 1, N), and with one output, y.

    ``compute(style, x, inside)`` builds the operations that compute y.
    """
    return CoreMLGraph(
        kind,
        {unit: length},
        {"x": (1, channels, 1, length), "inside": (1, 1, 1, length)},
        lambda s, x, inside: {"y": compute(s, x, inside)},
    )


def frame_decoder(s: Style, x: Var, inside: Var, network: FrameDecoder, path: str = "") -> Var:
    """Apply a ``FrameDecoder``: (1, C, 1, N) → (1, C', 1, N). The output has meaningless values in the padding.

    ``path`` is the network's module path, with a dot at its end.
    """
    x = mb.mul(x=blocks.same_conv(s, x, network.dec_in, f"{path}dec_in"), y=inside)
    for index, block in enumerate(network.dec):
        x = convnext_block(s, x, inside, block, f"{path}dec.{index}")
    return blocks.linear(s, blocks.layer_norm(s, x, network.dec_norm, f"{path}dec_norm"), network.head)


def convnext_block(s: Style, x: Var, inside: Var, block: ConvNextBlock, name: str) -> Var:
    """Apply a ConvNeXt block: (1, C, 1, N) → (1, C, 1, N).

    The block's factors ``gamma`` become part of its second linear layer.
    """
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
    """List the function of a source-filter network, which computes y (1, 66, 1, N) from x (1, D, 1, N) and ``inside``.

    y has the parameters of the sound for N frames. The test input is a little shorter than the function's fixed length.
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
