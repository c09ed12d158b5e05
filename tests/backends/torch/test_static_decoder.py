"""Test the decoder's static steps: run on the CPU, or recorded and replayed by a fake of CUDA graphs."""

import gc
import weakref

import numpy as np
import pytest
import torch

from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.static_decoder import StaticDecoder
from ane.models.tortoise.networks.autoregressive import UnifiedVoice
from tests.backends.decoder_steps import (
    CAPACITY,
    CPU,
    HALF_PRECISION,
    LANES,
    LONGEST,
    PREFIXES,
    answers,
    assert_close,
    columns,
    in_dtype,
    turns,
)
from tests.backends.packaged.packages import reference_network


@pytest.fixture(scope="module")
def network() -> UnifiedVoice:
    return reference_network("autoregressive")


@pytest.mark.parametrize(("dtype", "tolerance"), HALF_PRECISION)
def test_in_half_precision_static_steps_differ_by_rounding(network, fake_graphs, dtype, tolerance):
    sizes = in_dtype(network, dtype), LANES, CAPACITY, CPU, dtype, PREFIXES, LONGEST
    both = TorchDecoder(*sizes), StaticDecoder(*sizes, fake_graphs(), 4)
    assert_close(*(answers(decoder, turns(9, LANES, 12)) for decoder in both), tolerance)


def test_a_step_is_recorded_once_per_bucket_on_a_fake_of_cuda(network, fake_graphs):
    static = StaticDecoder(network, LANES, CAPACITY, CPU, torch.float32, PREFIXES, LONGEST, fake_graphs(), 4)
    graphs = static.run.graphs
    answers(static, [(columns(0, 5),), *((columns(at, 2, 1), np.array([at, 0]), 1) for at in range(CAPACITY))])
    assert {bucket: graph.replays for (_, bucket), graph in graphs.items()} == {4: 3, 8: 3, 16: 7, 30: 13}
    recordings = list(graphs.values())
    answers(static, turns(5, 1, CAPACITY)[1:])
    assert list(graphs.values()) == recordings
    assert [graph.replays for graph in recordings] == [7, 7, 15, 27]


def test_an_unreferenced_decoder_is_freed_at_once(network, fake_graphs):
    """With its caches and graphs: GPU memory must not wait for the garbage collector."""
    decoder = StaticDecoder(network, LANES, CAPACITY, CPU, torch.float32, PREFIXES, LONGEST, fake_graphs(), 4)
    answers(decoder, turns(5, LANES, 3))
    references = [weakref.ref(decoder), weakref.ref(decoder.keys), *map(weakref.ref, decoder.run.graphs.values())]
    gc.disable()
    try:
        del decoder
        assert [each() for each in references] == [None] * 3
    finally:
        gc.enable()


def test_a_longer_prefix_replaces_the_buffer_of_prefixes(network, fake_graphs):
    """This happens in decoders of one prefix without a longest length."""
    run, sizes = fake_graphs(), (network, 2, 10, CPU, torch.float32)
    calls = [
        (columns(prefix, prefix),) if turn is None else (columns(turn, 2, 1), np.full(2, turn))
        for prefix in (4, 60, 9)
        for turn in (None, 0, 1, 2)
    ]
    assert_close(*(answers(each, calls) for each in (TorchDecoder(*sizes), StaticDecoder(*sizes, run=run))))
    assert list(run.graphs) == [(48, 10), (64, 10)]
