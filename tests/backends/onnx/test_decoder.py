"""The decoder on ONNX Runtime reads as the one on torch does, whatever lanes do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends import load_backend
from ane.backends.onnx.backend import OrtBackend
from ane.backends.onnx.blocks import Memory
from ane.backends.onnx.decoder import UNIT
from ane.backends.onnx.providers import DEVICES
from converters.proof.parity import UnpublishedModel, mean_snr_db

EXACT = 100             # dB: float32 on both sides, in another order


@pytest.fixture(scope="module")
def torch(bundle):
    return load_backend("torch:cpu", bundle, "fp32", threads=1, keep=True)


@pytest.fixture(scope="module")
def onnx(bundle):
    return load_backend("onnx:cpu", bundle, "fp32", threads=1, keep=True)


@pytest.fixture(params=["written by NumPy", "written by a graph"])
def decoder(onnx, request):
    """``decoder(lanes, capacity, …)``, its caches written as on the host or as on a GPU."""
    def made(*args):
        made = onnx.decoder(*args)
        if request.param == "written by a graph":
            memory = Memory(DEVICES["cpu"], written=True)
            made.memory = memory
            for cache in made.own:
                cache.memory = memory
        return made

    return made


def columns(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*shape, 64), dtype=np.float32)


def near(wanted, got, bar: float = EXACT) -> bool:
    return mean_snr_db([*wanted], [*got]) >= bar


@pytest.mark.parametrize("length", [2, 5, 40])
def test_a_prefill_reads_as_on_torch(torch, onnx, length):
    x = columns(length, length)
    assert near(torch.decoder(1, 4).prefill(x), onnx.decoder(1, 4).prefill(x))


def test_lanes_at_different_positions_refilled_and_a_tail_read_as_on_torch(torch, decoder):
    each = torch.decoder(5, 40), decoder(5, 40)
    wanted, got = (one.prefill(columns(0, 20)) for one in each)
    assert near(wanted, got)
    length = np.zeros(5, dtype=np.int64)
    for turn in range(6):
        if turn == 3:
            length[2] = 0           # a lane begins anew
            length[4] -= 2          # another goes back
        x = columns(turn, 5, 1)
        assert near(*(one.step(x, length) for one in each)), turn
        length += 1
    x = columns(9, 1, 7)
    assert near(*(one.step(x, length[3:4], 3) for one in each))
    x = columns(10, 2, 1)
    assert near(*(one.step(x, length[1:3], 1) for one in each))


def test_a_cache_that_grows_keeps_what_it_holds(torch, decoder):
    each = torch.decoder(2, 3 * UNIT), decoder(2, 3 * UNIT)
    for one in each:
        one.prefill(columns(0, 6))
    x = columns(1, 2, UNIT - 2)
    length = np.zeros(2, dtype=np.int64)
    assert near(*(one.step(x, length) for one in each))
    for turn in range(4):           # across the first bucket
        x = columns(turn, 2, 1)
        assert near(*(one.step(x, length + UNIT - 2 + turn) for one in each))
    assert each[1].own[0].length == 2 * UNIT
    x = columns(7, 2, UNIT)
    assert near(*(one.step(x, length + UNIT + 2) for one in each))


def test_lanes_on_different_prefixes_read_each_its_own(torch, decoder):
    starts = [columns(20, 9), columns(21, 15), columns(22, 4)]
    place = np.array([2, 0, 1, 2])
    together = decoder(4, 12, 3, 15)
    alone = []
    for number, start in enumerate(starts):
        together.prefill(start, number)
    for lane in range(4):
        alone.append(torch.decoder(1, 12))
        alone[lane].prefill(starts[place[lane]])
    length = np.array([0, 3, 1, 0])
    for turn in range(4):
        x = columns(turn, 4, 1)
        if turn == 2:               # a lane moves to another prefix, and one prefix makes place for a new one
            place[3], length[3] = 0, 0
            alone[3] = torch.decoder(1, 12)
            alone[3].prefill(starts[0])
            together.prefill(columns(23, 12), 1)
            alone[2].prefill(columns(23, 12))
        got = together.step(x, length, 0, place)
        wanted = [np.concatenate(part) for part in zip(
            *(alone[lane].step(x[lane:lane + 1], length[lane:lane + 1]) for lane in range(4)), strict=True)]
        if turn == 0:               # lane 1 sees positions that nothing wrote: in both the zeros of a new cache
            assert near([wanted[0][[0, 3]]], [got[0][[0, 3]]])
        assert near([part[[0, 3]] for part in wanted], [part[[0, 3]] for part in got]), turn
        length += 1


def test_lanes_of_one_place_among_several_read_it(torch, decoder):
    together, alone = decoder(2, 6, 2, 15), torch.decoder(2, 6)
    for number, start in enumerate((columns(1, 15), columns(2, 7))):
        together.prefill(start, number)
    alone.prefill(columns(2, 7))
    x = columns(3, 2, 1)
    assert near(alone.step(x, np.zeros(2, dtype=np.int64)), together.step(x, np.zeros(2, dtype=np.int64), 0,
                                                                          np.array([1, 1])))


def test_a_prefix_longer_than_the_first_moves_no_lane(torch, decoder):
    together, alone = decoder(1, 8, 2), torch.decoder(1, 8)
    for one in (together, alone):
        one.prefill(columns(1, 5))
    x = columns(3, 1, 2)
    assert near(alone.step(x, np.zeros(1, dtype=np.int64)), together.step(x, np.zeros(1, dtype=np.int64)))
    together.prefill(columns(2, 30), 1)
    x = columns(4, 1, 1)
    assert near(alone.step(x, np.full(1, 2)), together.step(x, np.full(1, 2)))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(0, 7), min_size=4, max_size=4), min_size=1, max_size=8))
def test_whatever_lanes_do_they_read_as_on_torch(torch, onnx, schedule):
    """Each turn every lane goes on, or back to some earlier length."""
    each = torch.decoder(4, 12), onnx.decoder(4, 12)
    for one in each:
        one.prefill(columns(0, 9))
    held = np.zeros(4, dtype=np.int64)
    for turn, wishes in enumerate(schedule):
        length = np.minimum(held, wishes)
        x = columns(turn, 4, 1)
        assert near(*(one.step(x, length) for one in each), bar=95)
        held = length + 1


def test_a_step_on_bound_buffers_is_a_step_on_plain_arrays(onnx):
    decoder = onnx.decoder(3, 10)
    decoder.prefill(columns(0, 11))
    decoder.step(columns(1, 3, 2), np.zeros(3, dtype=np.int64))
    feeds = {"columns": columns(2, 3, 1), "mask": decoder._mask(np.full(3, 2), 1, np.zeros(3, dtype=np.int64))}
    for pair, names in ((decoder.own, ("keys", "values")), (decoder.stored, ("prefix_keys", "prefix_values"))):
        for cache, name in zip(pair, names, strict=True):
            for layer in range(decoder.geometry.layers):
                array = cache.block.array[layer].copy()
                feeds[f"{name}_{layer}"] = array[0] if name.startswith("prefix") else array
    session = onnx.session("autoregressive", "step", {})
    wanted = dict(zip((output.name for output in session.get_outputs()), session.run(None, feeds), strict=True))
    hidden, logits = decoder.step(feeds["columns"], np.full(3, 2))
    assert (hidden == wanted["hidden"]).all()
    assert (logits == wanted["logits"]).all()
    assert (decoder.own[0].block.array[:, :, :, 2] == wanted["new_keys"][:, :, :, 0]).all()


def test_what_a_step_gave_stays_when_the_next_is_taken(onnx):
    decoder = onnx.decoder(1, 4)
    decoder.prefill(columns(0, 5))
    hidden, _ = decoder.step(columns(1, 1, 1), np.zeros(1, dtype=np.int64))
    kept = hidden.copy()
    decoder.step(columns(2, 1, 1), np.ones(1, dtype=np.int64))
    assert (hidden == kept).all()


@pytest.mark.parametrize(("precision", "bar"), [("fp16", 50), ("int8", 25), ("int4", 9)])
def test_fewer_bits_are_as_near_as_they_are_said_to_be(torch, bundle, precision, bar):
    package, = (each for each in bundle.onnx_packages
                if (each.network, each.precision) == ("autoregressive", precision))
    assert min(function.parity["cpu"] for function in package.functions.values()) >= bar
    backend = OrtBackend(UnpublishedModel(bundle, bundle.path, [package], torch), DEVICES["cpu"], torch, threads=1)
    each = torch.decoder(2, 8), backend.decoder(2, 8)
    assert near(*(one.prefill(columns(0, 12) / 20) for one in each), bar=bar)
    for turn in range(3):
        x = columns(turn, 2, 1) / 20
        assert near(*(one.step(x, np.full(2, turn)) for one in each), bar=bar)


def test_a_lane_or_a_place_that_was_not_asked_for_is_a_bug(onnx):
    decoder = onnx.decoder(2, 4)
    with pytest.raises(ValueError, match="before any prefill"):
        decoder.step(columns(1, 1, 1), np.zeros(1, dtype=np.int64))
    decoder.prefill(columns(0, 20))
    with pytest.raises(ValueError, match="lane 2, position 0"):
        decoder.step(columns(1, 3, 1), np.zeros(3, dtype=np.int64))
    with pytest.raises(ValueError, match="asked for place 1"):
        decoder.prefill(columns(0, 20), 1)
