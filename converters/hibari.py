"""hibari's three parts as Core ML graphs and as ONNX graphs, their default lengths and their test inputs.

Reference: ``ane.models.hibari.networks``. The embedding tables, the repeats of states and the order of the
prosody's frames stay on the host. In every Core ML graph x is 0 in the padding, and ``inside`` (1, 1, 1, N) is 1 in the
sequence and 0 after it; the output is y (1, C', 1, N). A text gets its bucket by its phonemes. Frames are computed in
windows of any length up to the largest bucket.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.hibari.networks import AttentionLayer, Hibari, PhonemeEncoder
from converters import blocks
from converters.convnext import convnext_block, frame_decoder
from converters.coreml.graph import CoreMLGraph, Style, Var, array, mb
from converters.functions import Bucket, ConvertibleModel, Function
from converters.onnx.graph import noise, traced

SYMBOLS = 64, 128, 256, 416
SLOW_FRAMES = 256, 512
FRAMES = 96, 512
MISSING = 5             # by how much a probe's input is shorter than its bucket
BATCH, LENGTH = 2, 29   # of the inputs that ONNX graphs are traced with


def text(network: Hibari, symbols: int) -> CoreMLGraph:
    """x: embeddings of phonemes, for the prosody and then for the sound → states of both, and log durations."""
    config = network.config
    return graph("text", "symbols", symbols, config.prosody_width + config.width, partial(_text, network=network))


def prosody(network: Hibari, frames: int) -> CoreMLGraph:
    """x: states of the prosody, repeated → f0 of two frames in hundreds of Hz, then their energy."""
    return graph("prosody", "frames", frames, network.config.prosody_width, partial(_prosody, network=network))


def spectra(network: Hibari, frames: int) -> CoreMLGraph:
    """x: states of the sound, log f0 and energy → five spectra of 601 bins."""
    return graph("spectra", "frames", frames, network.config.width + 2, partial(_spectra, network=network))


def graph(kind: str, unit: str, length: int, channels: int, body: partial) -> CoreMLGraph:
    return CoreMLGraph(kind, {unit: length}, {"x": (1, channels, 1, length), "inside": (1, 1, 1, length)}, body)


def _text(s: Style, x: Var, inside: Var, *, network: Hibari) -> dict[str, Var]:
    prosody_x, sound_x = mb.split(x=x, split_sizes=[network.config.prosody_width, network.config.width], axis=1)
    states = _encoder(s, prosody_x, inside, network.pn.text, "pn.text")
    first, _, last = network.pn.dur
    y = mb.gelu(x=blocks.same_conv(s, states, first, "pn.dur.0"), mode="EXACT")
    durations = mb.mul(x=blocks.linear(s, y, last, "pn.dur.2"), y=inside)
    return {"y": mb.concat(values=[states, _encoder(s, sound_x, inside, network.m.text, "m.text"), durations], axis=1)}


def _prosody(s: Style, x: Var, inside: Var, *, network: Hibari) -> dict[str, Var]:
    x = mb.mul(x=blocks.linear(s, x, network.pn.pro_in, "pn.pro_in"), y=inside)
    for index, block in enumerate(network.pn.pro):
        x = convnext_block(s, x, inside, block, f"pn.pro.{index}")
    return {"y": blocks.linear(s, x, network.pn.pro_out)}


def _spectra(s: Style, x: Var, inside: Var, *, network: Hibari) -> dict[str, Var]:
    return {"y": frame_decoder(s, x, inside, network.m, "m.")}


def _encoder(s: Style, x: Var, inside: Var, encoder: PhonemeEncoder, path: str) -> Var:
    """(1, C, 1, T) → the same, 0 in the padding. The layer that is applied several times has its weights once."""
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
    """Weight and bias of the queries, of the keys and of the values; queries and keys are times width^−¼ each."""
    weight, bias = array(layer.self_attn.in_proj_weight), array(layer.self_attn.in_proj_bias)
    width = len(weight) // (3 * layer.self_attn.heads)
    factors = width ** -0.25, width ** -0.25, 1.0
    return [(w[:, :, None, None] * factor, b * factor)
            for w, b, factor in zip(np.split(weight, 3), np.split(bias, 3), factors, strict=True)]


# ONNX graphs and test inputs

onnx_text = traced(lambda network, ids, mask: network.text(ids, mask), ("encoded",), lambda network, dtype: {
    "ids": (torch.ones((BATCH, LENGTH), dtype=torch.int64), {0: "batch", 1: "symbols"}),
    "mask": (torch.ones((BATCH, LENGTH), dtype=dtype), {0: "batch", 1: "symbols"})})
onnx_prosody = traced(lambda network, states, mask: network.prosody(states, mask), ("prosody",),
                      lambda network, dtype: {
    "states": (noise(BATCH, LENGTH, network.config.prosody_width).to(dtype), {0: "batch", 1: "frames"}),
    "mask": (torch.ones((BATCH, LENGTH), dtype=dtype), {0: "batch", 1: "frames"})})
onnx_spectra = traced(lambda network, *inputs: network.spectra(*inputs), ("spectra",), lambda network, dtype: {
    "frames": (noise(BATCH, LENGTH, network.config.width + 2).to(dtype), {0: "batch", 1: "frames"}),
    "mask": (torch.ones((BATCH, LENGTH), dtype=dtype), {0: "batch", 1: "frames"})})


def probe_text(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """States and log durations of phonemes that nearly fill the bucket."""
    length = bucket["symbols"] - MISSING
    ids = rng.integers(1, model.config("hibari").symbols, (1, length))
    return [backend.run("text", ids=ids, mask=np.ones((1, length), np.float32))]


def probe_prosody(backend: Backend, model: Model, bucket: Mapping[str, int],
                  rng: np.random.Generator) -> list[np.ndarray]:
    """f0 and energy of states that nearly fill the bucket."""
    return probe_frames(backend, "prosody", "states", model.config("hibari").prosody_width, bucket["frames"], rng)


def probe_spectra(backend: Backend, model: Model, bucket: Mapping[str, int],
                  rng: np.random.Generator) -> list[np.ndarray]:
    """Spectra of frames that nearly fill the bucket."""
    return probe_frames(backend, "spectra", "frames", model.config("hibari").width + 2, bucket["frames"], rng)


def probe_frames(backend: Backend, stage: str, name: str, channels: int, length: int,
                 rng: np.random.Generator) -> list[np.ndarray]:
    x = rng.standard_normal((1, length - MISSING, channels), dtype=np.float32)
    return [backend.run(stage, **{name: x}, mask=np.ones(x.shape[:2], np.float32))]


def bucket(unit: str, lengths: tuple[int, ...]) -> Bucket:
    return Bucket(unit, 16, lambda model: lengths)


FUNCTIONS = (
    Function("text", "hibari", probe_text, onnx=onnx_text, onnx_lengths={"symbols": 40},
             coreml=lambda r: [text(r.network, size) for size in r.lengths("text")],
             buckets={"text": bucket("symbols", SYMBOLS)}),
    Function("prosody", "hibari", probe_prosody, onnx=onnx_prosody, onnx_lengths={"frames": 90},
             coreml=lambda r: [prosody(r.network, size) for size in r.lengths("prosody")],
             buckets={"prosody": bucket("frames", SLOW_FRAMES)}),
    Function("spectra", "hibari", probe_spectra, onnx=onnx_spectra, onnx_lengths={"frames": 90},
             coreml=lambda r: [spectra(r.network, size) for size in r.lengths("spectra")],
             buckets={"spectra": bucket("frames", FRAMES)}),
)
MODEL = ConvertibleModel("ane.models.hibari.networks", FUNCTIONS)
