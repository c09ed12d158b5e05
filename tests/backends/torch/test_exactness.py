"""On the CPU a lane gets the same bits alone and beside any others, in every precision and on any number of threads."""

import platform
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.linear import prepacking
from tests.random_model import RandomModel

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only promised on x86-64")

PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8")
WIDTH, CAPACITY, LONGEST = 64, 70, 50

LANES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, CAPACITY - 1)), min_size=1, max_size=9)   # prefix, length


@pytest.fixture(scope="module", params=PRECISIONS)
def backend(request) -> TorchBackend:
    return TorchBackend(RandomModel(), "cpu", request.param)


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def columns(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, WIDTH), dtype=np.float32)


def prefix(index: int) -> np.ndarray:
    return columns(index, (LONGEST, 3, 17, 32)[index])


def stepped(backend: TorchBackend, lanes: list[tuple[int, int]], first_lane: int = 0,
            new: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Hidden states and logits of every lane; those of a prefix and a length are always fed the same columns."""
    decoder = backend.decoder(first_lane + len(lanes), CAPACITY + new, 4, LONGEST)
    for index in {index for index, _ in lanes}:
        decoder.prefill(prefix(index), index)
    for lane, (index, length) in enumerate(lanes):
        if length:
            decoder.step(columns(index, length)[None], np.zeros(1, np.int64), first_lane + lane, np.array([index]))
    fed = np.stack([columns(100 + length, new) for _, length in lanes])
    hidden, logits = decoder.step(fed, np.array([length for _, length in lanes]), first_lane,
                                  np.array([index for index, _ in lanes]))
    return list(zip(hidden, logits, strict=True))


@settings(max_examples=12, deadline=None)
@given(lanes=LANES, first_lane=st.integers(0, 2), new=st.sampled_from((1, 1, 3)))
def test_a_lane_does_not_depend_on_its_neighbours(backend, lanes, first_lane, new):
    for together, lane in zip(stepped(backend, lanes, first_lane, new), lanes, strict=True):
        for one, alone in zip(together, stepped(backend, [lane], 0, new)[0], strict=True):
            np.testing.assert_array_equal(one, alone)


def test_a_lane_does_not_depend_on_the_number_of_threads(backend):
    lanes = [(0, 40), (0, 3), (2, 60), (1, 0), (0, 17)]
    outputs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        outputs.append([array for pair in stepped(backend, lanes) for array in pair])
    for one, two in zip(*outputs, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("weights", ["fp32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize("channels", [1024, 4096])
def test_a_row_of_a_packed_layer_does_not_depend_on_the_number_of_rows(weights, channels):
    make = prepacking(weights)
    if make is None:
        pytest.skip("this CPU has no packed layers")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, channels, generator=generator) / channels ** 0.5
    layer, x = make(weight, torch.zeros(96)), torch.randn(64, channels, generator=generator)
    expected = layer(x)
    for rows in (1, 2, 3, 7, 8, 14, 16, 17, 31, 32, 44, 61):
        assert torch.equal(layer(x[:rows]), expected[:rows]), rows
    assert torch.equal(layer(x[None, :1]), expected[None, :1])
