"""ConvNeXt's blocks and a stack of them in Core ML, and the networks of source-filter vocoders.

References: ``ane.models.vocoders.convnext``. x is 0 in the padding, and ``inside`` (1, 1, 1, N) is 1 in the sequence
and 0 after it.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import nn

from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.vocoders.convnext import ConvNextBlock, FrameDecoder, SourceFilterNetwork
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, array, mb
from converters.functions import Bucket, Function, Probe
from converters.onnx.graph import noise, traced

FRAMES = 64, 256        # a window of a stream, and the longest of whole speech
SOURCE_FILTER = {"fp16": (73.0, 50.0)}      # 6 dB or more below what the embedded networks reach
SMALLEST = 54           # frames of a window: new ones, and the largest margin on either side
MISSING = 5             # by how much a probe's input is shorter than its bucket
BATCH, LENGTH = 2, 29   # of the inputs that the ONNX graph is traced with


def frame_decoder(s: Style, x: Var, inside: Var, network: FrameDecoder, path: str = "") -> Var:
    """(1, C, 1, N) → (1, C', 1, N), anything in the padding. ``path``: of the network, with a dot at its end."""
    x = mb.mul(x=blocks.same_conv(s, x, network.dec_in, f"{path}dec_in"), y=inside)
    for index, block in enumerate(network.dec):
        x = convnext_block(s, x, inside, block, f"{path}dec.{index}")
    return blocks.linear(s, blocks.layer_norm(s, x, network.dec_norm, f"{path}dec_norm"), network.head)


def convnext_block(s: Style, x: Var, inside: Var, block: ConvNextBlock, name: str) -> Var:
    """(1, C, 1, N) → the same. The factors ``gamma`` are part of the second linear layer."""
    y = blocks.layer_norm(s, _depthwise(s, x, block.dw), block.norm, f"{name}.norm")
    y = mb.gelu(x=blocks.linear(s, y, block.pw1, f"{name}.pw1"), mode="EXACT")
    weight, bias = blocks.kernel(block.pw2)
    gamma = array(block.gamma)
    y = blocks.conv(s, y, weight * gamma[:, None, None, None], bias * gamma)
    return mb.add(x=x, y=mb.mul(x=y, y=inside), **blocks.named(name))


def _depthwise(s: Style, x: Var, layer: nn.Conv1d) -> Var:
    """A convolution of each channel by itself, with the layer's own padding and dilation."""
    weight, bias = blocks.kernel(layer)
    pad, = layer.padding
    return blocks.conv(s, x, weight, bias, pad_type="custom", pad=[0, 0, pad, pad], dilations=[1, *layer.dilation],
                       groups=layer.groups)


def source_filter(name: str) -> Function:
    """The function of a network that predicts parameters of sound: x (1, D, 1, N), inside → y (1, 66, 1, N)."""
    def graph(network: SourceFilterNetwork, frames: int) -> CoreMLGraph:
        inputs = {"x": (1, network.config.channels, 1, frames), "inside": (1, 1, 1, frames)}
        return CoreMLGraph(name, {"frames": frames}, inputs, partial(body, network=network))

    def body(s: Style, x: Var, inside: Var, *, network: SourceFilterNetwork) -> dict[str, Var]:
        return {"y": frame_decoder(s, x, inside, network)}

    return Function(name, name, source_filter_probe(name), outputs={"y": ""}, thresholds=SOURCE_FILTER,
                    coreml=lambda r: [graph(r.network, frames) for frames in r.lengths(name)],
                    onnx=onnx_source_filter, onnx_lengths={"frames": 40},
                    buckets={name: Bucket("frames", SMALLEST, lambda model: FRAMES)})


onnx_source_filter = traced(lambda network, *inputs: network(*inputs), ("parameters",), lambda network, dtype: {
    "frames": (noise(BATCH, LENGTH, network.config.channels).to(dtype), {0: "batch", 1: "frames"}),
    "mask": (torch.ones((BATCH, LENGTH), dtype=dtype), {0: "batch", 1: "frames"})})


def source_filter_probe(name: str) -> Probe:
    """Parameters of frames that nearly fill the bucket."""
    def probe(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
        length = bucket["frames"] - MISSING
        x = rng.standard_normal((1, length, model.config(name).channels), dtype=np.float32)
        return [backend.run(name, frames=x, mask=np.ones((1, length), np.float32))]

    return probe
