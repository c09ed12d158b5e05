"""The converted functions of hibari, their default lengths and their test inputs, and its ONNX graphs.

A text gets its bucket by its phonemes. Frames are computed in windows of any length up to the largest bucket.
"""

from collections.abc import Mapping

import numpy as np
import torch

from ane.backends.base import Backend
from ane.bundles import Model
from converters.functions import Bucket, ConvertibleModel, Function
from converters.hibari import graphs
from converters.onnx.graph import noise, traced

SYMBOLS = 64, 128, 256, 416
SLOW_FRAMES = 256, 512
FRAMES = 96, 512
MISSING = 5             # by how much a probe's input is shorter than its bucket
BATCH, LENGTH = 2, 29   # of the inputs that ONNX graphs are traced with

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
             coreml=lambda r: [graphs.text(r.network, size) for size in r.lengths("text")],
             buckets={"text": bucket("symbols", SYMBOLS)}),
    Function("prosody", "hibari", probe_prosody, onnx=onnx_prosody, onnx_lengths={"frames": 90},
             coreml=lambda r: [graphs.prosody(r.network, size) for size in r.lengths("prosody")],
             buckets={"prosody": bucket("frames", SLOW_FRAMES)}),
    Function("spectra", "hibari", probe_spectra, onnx=onnx_spectra, onnx_lengths={"frames": 90},
             coreml=lambda r: [graphs.spectra(r.network, size) for size in r.lengths("spectra")],
             buckets={"spectra": bucket("frames", FRAMES)}),
)
MODEL = ConvertibleModel("ane.models.hibari.networks", FUNCTIONS)
