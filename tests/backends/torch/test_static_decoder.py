"""Test the decoder's static steps: run on the CPU, or recorded and replayed by a fake of CUDA graphs."""

import gc
import weakref

import numpy as np
import pytest
import torch

from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.static_decoder import StaticDecoder, StepRunner
from ane.bundles.weights import skeleton
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.networks.autoregressive import UnifiedVoice
from tests.backends.decoder_steps import (
    CAPACITY,
    CPU,
    HALF_PRECISION,
    LANES,
    LONGEST,
    PREFIXES,
    assert_close,
    columns,
    in_dtype,
)
from tests.random_model import random_model


@pytest.fixture(scope="module")
def network() -> UnifiedVoice:
    model = random_model()
    module = skeleton(NETWORKS["autoregressive"], model.config("autoregressive"))
    module.load_state_dict(model.tensors("autoregressive"), assign=True)
    return module.eval().requires_grad_(False)


def static(
    network: UnifiedVoice, run: StepRunner, smallest: int = 4, dtype: torch.dtype = torch.float32
) -> StaticDecoder:
    return StaticDecoder(network, LANES, CAPACITY, CPU, dtype, PREFIXES, LONGEST, run, smallest)


def plain(network: UnifiedVoice, dtype: torch.dtype = torch.float32) -> TorchDecoder:
    return TorchDecoder(network, LANES, CAPACITY, CPU, dtype, PREFIXES, LONGEST)


@pytest.mark.parametrize(("dtype", "tolerance"), HALF_PRECISION)
def test_in_half_precision_static_steps_differ_by_rounding(network, fake_graphs, dtype, tolerance):
    half = in_dtype(network, dtype)
    both = plain(half, dtype), static(half, fake_graphs(), dtype=dtype)
    assert_close(*(decoder.prefill(columns(0, 9)) for decoder in both), tolerance)
    for turn in range(12):
        x, length = columns(turn, LANES, 1), np.full(LANES, turn)
        assert_close(*(decoder.step(x, length) for decoder in both), tolerance)


def test_a_step_is_recorded_once_per_bucket_on_a_fake_of_cuda(network, fake_graphs):
    run = fake_graphs()
    decoder = static(network, run)
    decoder.prefill(columns(0, 5))
    for turn in range(CAPACITY):
        decoder.step(columns(turn, 2, 1), np.array([turn, 0]), first_lane=1)
    assert {bucket: graph.replays for (_, bucket), graph in run.graphs.items()} == {4: 3, 8: 3, 16: 7, 30: 13}
    recordings = list(run.graphs.values())
    for turn in range(CAPACITY):
        decoder.step(columns(turn, 1, 1), np.array([turn]))
    assert list(run.graphs.values()) == recordings
    assert [graph.replays for graph in recordings] == [7, 7, 15, 27]


def test_an_unreferenced_decoder_is_freed_at_once(network, fake_graphs):
    """With its caches and graphs: GPU memory must not wait for the garbage collector."""
    decoder = static(network, fake_graphs())
    decoder.prefill(columns(0, 5))
    for turn in range(3):
        decoder.step(columns(turn, LANES, 1), np.full(LANES, turn))
    references = [weakref.ref(decoder), weakref.ref(decoder.keys), *map(weakref.ref, decoder.run.graphs.values())]
    gc.disable()
    try:
        del decoder
        assert [each() for each in references] == [None] * 3
    finally:
        gc.enable()


def test_a_longer_prefix_replaces_the_buffer_of_prefixes(network, fake_graphs):
    """This happens in decoders of one prefix without a longest length."""
    run = fake_graphs()
    both = (
        TorchDecoder(network, 2, 10, CPU, torch.float32),
        StaticDecoder(network, 2, 10, CPU, torch.float32, run=run),
    )
    for length in (4, 60, 9):
        assert_close(*(decoder.prefill(columns(length, length)) for decoder in both))
        for turn in range(3):
            x = columns(turn, 2, 1)
            assert_close(*(decoder.step(x, np.full(2, turn)) for decoder in both))
    assert list(run.graphs) == [(48, 10), (64, 10)]
