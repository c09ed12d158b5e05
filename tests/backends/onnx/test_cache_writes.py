"""A step's graph that writes the caches does what NumPy does, in one run. It is CUDA's path; the CPU takes it here."""

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends import load_backend
from ane.backends.onnx import decoder as onnx_decoder
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from converters.proof.parity import UnpublishedModel

LANES, CAPACITY, WIDTH = 4, 12, 32
PREFIXES = (9, 15)                  # positions of each
STEP = st.tuples(st.integers(0, LANES - 1), st.integers(1, LANES), st.integers(1, 3),
                 st.lists(st.tuples(st.integers(0, CAPACITY), st.integers(0, 1)), min_size=LANES, max_size=LANES))


@pytest.fixture(scope="module")
def torch(decoder_bundle):
    return load_backend("torch:cpu", decoder_bundle, "fp32", threads=1, keep=True)


@pytest.fixture(scope="module", params=["fp32", "fp16", "int4"])
def backends(torch, decoder_bundle, request) -> tuple[OnnxBackend, OnnxBackend]:
    """Caches written by NumPy, and by the steps' graphs."""
    packages = [package for package in decoder_bundle.onnx_packages if package.precision == request.param]
    model = UnpublishedModel(decoder_bundle, decoder_bundle.path, packages, torch)
    by_numpy, by_graph = (OnnxBackend(model, DEVICES["cpu"], torch, threads=1, as_on_cuda=way)
                          for way in (False, True))
    return by_numpy, by_graph


def columns(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*shape, WIDTH), dtype=np.float32)


@settings(max_examples=15, deadline=None)
@given(schedule=st.lists(STEP, min_size=1, max_size=8))
def test_any_schedule_gives_the_same_bits(backends, schedule):
    """Steps of some lanes, of several columns, with one prefix or several, of lanes that continue or are rewound."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_decoder, "GROWTH", 4)            # the caches grow, too
        both = [backend.decoder(LANES, CAPACITY, len(PREFIXES), max(PREFIXES)) for backend in backends]
        for decoder in both:
            for index, length in enumerate(PREFIXES):
                decoder.prefill(columns(index, length), index)
        held = np.zeros(LANES, np.int64)
        for turn, (first, count, T, lanes) in enumerate(schedule):
            last = min(first + count, LANES)
            limits, indices = np.array(lanes).T[:, first:last]
            lengths = np.minimum(held[first:last], np.minimum(limits, CAPACITY - T))
            outputs = [decoder.step(columns(turn, last - first, T), lengths, first, indices) for decoder in both]
            held[first:last] = lengths + T
            caches = [[cache.buffer.numpy() for cache in decoder.lane_caches] for decoder in both]
            for one, other in zip(*outputs, strict=True):
                np.testing.assert_array_equal(one, other)
            for one, other in zip(*caches, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("indices", [[0, 0], [0, 1]])
@pytest.mark.parametrize("T", [1, 3])
def test_a_step_is_one_run(backends, monkeypatch, T, indices):
    decoder = backends[1].decoder(2, CAPACITY, len(PREFIXES), max(PREFIXES))
    for index, length in enumerate(PREFIXES):
        decoder.prefill(columns(index, length), index)
    runs: list[str] = []
    for name in ("run", "run_with_iobinding"):
        real = getattr(onnxruntime.InferenceSession, name)
        monkeypatch.setattr(onnxruntime.InferenceSession, name,
                            lambda self, *args, name=name, real=real: runs.append(name) or real(self, *args))
    decoder.step(columns(2, 2, T), np.zeros(2, np.int64), 0, np.array(indices))
    assert runs == ["run_with_iobinding"]


def test_a_step_computes_the_same_when_it_runs_twice(backends):
    """ONNX Runtime runs a step once before it records it."""
    decoder = backends[1].decoder(2, CAPACITY)
    decoder.prefill(columns(0, PREFIXES[0]))
    decoder.step(columns(1, 2, 1), np.zeros(2, np.int64))
    outputs = [decoder.step(columns(2, 2, 1), np.ones(2, np.int64)) for _ in range(2)]
    for one, other in zip(*outputs, strict=True):
        np.testing.assert_array_equal(one, other)
