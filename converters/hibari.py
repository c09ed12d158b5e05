"""Convert hibari, a text-to-speech model, as three functions: ``text``, ``prosody`` and ``spectra``.

The PyTorch network is in ``ane.models.hibari.networks``. The host, which is the program that calls the packages, looks
up embeddings, repeats the states of a phoneme for its frames, and puts the prosody's frames in order.

Every Core ML graph takes x (1, C, 1, N) and ``inside`` (1, 1, 1, N), and returns y (1, C', 1, N). ``inside`` is 1 in
the sequence and 0 in the padding after it, where x is also 0. The number of phonemes in a text decides the length of
``text``. The host calls ``prosody`` and ``spectra`` for windows of frames, which may have any length up to the
function's length.
"""

from collections.abc import Mapping

import numpy as np
import torch

from ane.backends.base import Backend
from ane.bundles import Bundle
from ane.models.hibari.networks import AttentionLayer, Hibari, PhonemeEncoder
from converters import blocks
from converters.convnext import BATCH, LENGTH, MISSING, convnext_block, frame_decoder, masked_graph
from converters.coreml.graph import CoreMLGraph, Style, Var, array, mb
from converters.function_table import Bucket, ConvertibleModel, Function, stage_probe
from converters.onnx.graph import masked, noise, traced

SYMBOLS = 64, 128, 256, 416
SLOW_FRAMES = 256, 512
FRAMES = 96, 512
SMALLEST = 16  # smallest length that a function may have


def text(network: Hibari, symbols: int) -> CoreMLGraph:
    """Describe the graph that encodes phonemes to states for the prosody, states for the sound, and log durations.

    In x, the channels of the prosody's embedding come first, then the channels of the sound's embedding.
    """
    widths = [network.config.prosody_width, network.config.width]

    def compute(s: Style, x: Var, inside: Var) -> Var:
        prosody_x, sound_x = mb.split(x=x, split_sizes=widths, axis=1)
        states = _encoder(s, prosody_x, inside, network.pn.text, "pn.text")
        first, _, last = network.pn.dur
        y = mb.gelu(x=blocks.same_conv(s, states, first, "pn.dur.0"), mode="EXACT")
        durations = mb.mul(x=blocks.linear(s, y, last, "pn.dur.2"), y=inside)
        return mb.concat(values=[states, _encoder(s, sound_x, inside, network.m.text, "m.text"), durations], axis=1)

    return masked_graph("text", "symbols", symbols, sum(widths), compute)


def prosody(network: Hibari, frames: int) -> CoreMLGraph:
    """Describe the graph that predicts f0 and energy.

    The input x has the states for prosody, repeated for their durations. One position of x covers two frames, and the
    output has the f0, in hundreds of Hz, and the energy of both frames.
    """

    def compute(s: Style, x: Var, inside: Var) -> Var:
        x = mb.mul(x=blocks.linear(s, x, network.pn.pro_in, "pn.pro_in"), y=inside)
        for index, block in enumerate(network.pn.pro):
            x = convnext_block(s, x, inside, block, f"pn.pro.{index}")
        return blocks.linear(s, x, network.pn.pro_out)

    return masked_graph("prosody", "frames", frames, network.config.prosody_width, compute)


def spectra(network: Hibari, frames: int) -> CoreMLGraph:
    """Describe the graph that predicts the spectra of the sound, five spectra of 601 bins for every frame.

    In x, the channels of the states for sound come first, then log f0, then energy.
    """
    return masked_graph(
        "spectra",
        "frames",
        frames,
        network.config.width + 2,
        lambda s, x, inside: frame_decoder(s, x, inside, network.m, "m."),
    )


def _encoder(s: Style, x: Var, inside: Var, encoder: PhonemeEncoder, path: str) -> Var:
    """Encode phonemes: (1, C, 1, T) → (1, C, 1, T). The output is 0 in the padding.

    The encoder applies its attention layer several times with the same weights, which the package stores once.
    """
    for index, block in enumerate(encoder.convs):
        x = convnext_block(s, x, inside, block, f"{path}.convs.{index}")
    mask = blocks.key_mask(s, inside)
    for _ in range(encoder.repeats):
        x = _attention(s, x, mask, encoder.attn)
    return mb.mul(x=blocks.layer_norm(s, x, encoder.norm, f"{path}.norm"), y=inside, **blocks.named(path))


def _attention(s: Style, x: Var, mask: Var, layer: AttentionLayer) -> Var:
    y = blocks.layer_norm(s, x, layer.norm1)
    q, k, v = (blocks.conv(s, y, *part) for part in _queries_keys_values(layer))
    y = blocks.attention(s, q, k, v, layer.self_attn.heads, mask)
    x = mb.add(x=x, y=blocks.linear(s, y, layer.self_attn.out_proj))
    y = mb.gelu(x=blocks.linear(s, blocks.layer_norm(s, x, layer.norm2), layer.linear1), mode="EXACT")
    return mb.add(x=x, y=blocks.linear(s, y, layer.linear2))


def _queries_keys_values(layer: AttentionLayer) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the weight and bias for queries, for keys and for values. Scale queries and keys by width^−¼ each."""
    weight, bias = array(layer.self_attn.in_proj_weight), array(layer.self_attn.in_proj_bias)
    width = len(weight) // (3 * layer.self_attn.heads)
    factors = width**-0.25, width**-0.25, 1.0
    return [
        (w[:, :, None, None] * factor, b * factor)
        for w, b, factor in zip(np.split(weight, 3), np.split(bias, 3), factors, strict=True)
    ]


# ONNX graphs and test inputs

onnx_text = traced(
    lambda network, *inputs: network.text(*inputs),
    ("encoded",),
    lambda network, dtype: masked("ids", torch.ones((BATCH, LENGTH), dtype=torch.int64), "symbols", dtype),
)
onnx_prosody = traced(
    lambda network, *inputs: network.prosody(*inputs),
    ("prosody",),
    lambda network, dtype: masked(
        "states", noise(BATCH, LENGTH, network.config.prosody_width).to(dtype), "frames", dtype
    ),
)
onnx_spectra = traced(
    lambda network, *inputs: network.spectra(*inputs),
    ("spectra",),
    lambda network, dtype: masked("frames", noise(BATCH, LENGTH, network.config.width + 2).to(dtype), "frames", dtype),
)


def probe_text(
    backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator
) -> list[np.ndarray]:
    """Encode nearly as many random phonemes as the function takes, and return the states and log durations."""
    length = bucket["symbols"] - MISSING
    ids = rng.integers(1, model.config("hibari").symbols, (1, length))
    return [backend.run("text", ids=ids, mask=np.ones((1, length), np.float32))]


# both probes use random inputs that are nearly as long as the function's bucket
probe_prosody = stage_probe(
    "prosody",
    masked=True,
    states=lambda model, bucket: (1, bucket["frames"] - MISSING, model.config("hibari").prosody_width),
)
probe_spectra = stage_probe(
    "spectra",
    masked=True,
    frames=lambda model, bucket: (1, bucket["frames"] - MISSING, model.config("hibari").width + 2),
)

FUNCTIONS = (
    Function(
        "text",
        "hibari",
        probe_text,
        onnx=onnx_text,
        onnx_lengths={"symbols": 40},
        coreml=lambda r: [text(r.network, size) for size in r.lengths("text")],
        bucket=Bucket("symbols", SMALLEST, lambda model: SYMBOLS),
    ),
    Function(
        "prosody",
        "hibari",
        probe_prosody,
        onnx=onnx_prosody,
        onnx_lengths={"frames": 90},
        coreml=lambda r: [prosody(r.network, size) for size in r.lengths("prosody")],
        bucket=Bucket("frames", SMALLEST, lambda model: SLOW_FRAMES),
    ),
    Function(
        "spectra",
        "hibari",
        probe_spectra,
        onnx=onnx_spectra,
        onnx_lengths={"frames": 90},
        coreml=lambda r: [spectra(r.network, size) for size in r.lengths("spectra")],
        bucket=Bucket("frames", SMALLEST, lambda model: FRAMES),
    ),
)
MODEL = ConvertibleModel("ane.models.hibari.networks", FUNCTIONS)
