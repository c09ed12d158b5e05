"""The decoder's packages give what the torch decoder gives, whatever lanes do: lanes, slots and masks hide nothing."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.mil import Arithmetic
from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.torch.decoder import TorchDecoder
from ane.models.tortoise.networks.autoregressive import UnifiedVoice
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from converters.coreml.graph import CoreMLGraph, Style
from converters.tortoise import autoregressive as gpt2
from tests.backends.packaged.packages import FP16, NARROW, ROUNDED, functions, reference_network, saved

SCALE = 1 / 32
KINDS = ("step", "state")
STYLES = {"fp32": Style("fp32"), "matmul": Style("fp16"), "einsum": Style("fp16", heads="einsum"),
          "wide": Style("fp16", frozenset({"norm", "softmax"}))}
# arithmetic → the least dB; a state is fp16 whatever the rest is
BARS = {("fp32", "step"): [(FP16, 100)], ("fp32", "state"): [(FP16, 70)]}
FP16_BARS = [(FP16, 60), (ROUNDED, 55), (NARROW, 55)]


def graphs(network: UnifiedVoice, scale: float = SCALE) -> list[CoreMLGraph]:
    steps = [gpt2.step(network, columns, slots, kind, scale) for kind in ("io", "state")
             for columns, slots in ((1, 96), (4, 96), (8, 160))]
    return [gpt2.prefill(network, 16, scale), gpt2.prefill(network, 32, scale), gpt2.fill(network, 16, 160, scale),
            *steps]


@pytest.fixture(scope="module")
def network() -> UnifiedVoice:
    return reference_network("autoregressive")


@pytest.fixture(scope="module")
def packages(network: UnifiedVoice, tmp_path_factory: pytest.TempPathFactory):
    """``packages(style)``: the saved functions of a style, made when they are first asked for."""
    @cache
    def made(style: str) -> dict[str, Path]:
        return saved(graphs(network), STYLES[style], tmp_path_factory.mktemp(style))

    return made


@pytest.fixture(scope="module")
def decoder(network: UnifiedVoice, packages):
    """``decoder(style, kind, lanes, capacity)``: a packaged decoder; by default two pools' worth of room."""
    def made(style: str = "fp32", kind: str = "step", lanes: int = 5, capacity: int = 24,
             arithmetic: Arithmetic = FP16, slots: tuple[int, ...] = (96, 160), **prefixes: int) -> PackagedDecoder:
        loaded = functions(graphs(network), packages(style), arithmetic)
        return PackagedDecoder([f for f in loaded if f.kind == "prefill"], [f for f in loaded if f.kind == "fill"],
                               [f for f in loaded if f.kind == kind and f.bucket["slots"] in slots], lanes, capacity,
                               geometry(network), SCALE, STYLES[style].dtype, **prefixes)

    return made


def geometry(network: UnifiedVoice) -> tuple[int, int, int]:
    config = network.config
    return config.layers, config.heads, config.model_dim // config.heads


def reference(network: UnifiedVoice, lanes: int = 5, capacity: int = 24, **prefixes: int) -> TorchDecoder:
    return TorchDecoder(network, lanes, capacity, torch.device("cpu"), torch.float32, **prefixes)


def columns(seed: int, *shape: int, width: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*shape, width), dtype=np.float32)


def reading(decoder, turns: int = 14) -> list[np.ndarray]:
    """Five lanes that share a prefix: one is begun anew, one goes back, and one ends with a tail of seven positions."""
    said = [*decoder.prefill(columns(0, 20))]
    length = np.zeros(5, dtype=np.int64)
    for turn in range(turns):
        length[2] *= turn != 6
        length[0] = 3 if turn == 8 else length[0]
        said += decoder.step(columns(1 + turn, 5, 1), length)
        length += 1
    return [*said, *decoder.step(columns(99, 1, 7), length[3:4], first=3)]


def worst(wanted: list[np.ndarray], got: list[np.ndarray]) -> float:
    return min(snr_db(right, left) for right, left in zip(wanted, got, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", STYLES)
def test_lanes_at_different_positions_read_as_on_torch(network, decoder, style, kind):
    wanted = reading(reference(network))
    for arithmetic, bar in BARS.get((style, kind), FP16_BARS):
        assert worst(wanted, reading(decoder(style, kind, arithmetic=arithmetic))) >= bar


def test_a_state_keeps_what_the_host_would(decoder):
    assert worst(reading(decoder("matmul", "step")), reading(decoder("matmul", "state"))) >= 70


def test_lanes_are_refilled_through_more_steps_than_the_pool_has_room_for(network, decoder):
    packaged, plain = decoder(lanes=4, capacity=10, slots=(96,)), reference(network, 4, 10)
    assert worst(plain.prefill(columns(0, 20)), packaged.prefill(columns(0, 20))) >= 100
    rng, length = np.random.default_rng(7), np.zeros(4, dtype=np.int64)
    for turn in range(60):                  # 240 positions; the pool has 96 slots
        x = columns(turn, 4, 1)
        assert worst(plain.step(x, length), packaged.step(x, length)) >= 100
        length = np.where((length == 9) | (rng.random(4) < 0.1), 0, length + 1)


def test_a_prefill_and_steps_are_a_longer_prefill(decoder):
    whole, parts = decoder(), decoder()
    x = columns(3, 26)
    parts.prefill(x[:20])
    for turn in range(6):
        hidden, logits = parts.step(np.repeat(x[None, 20 + turn:21 + turn], 5, axis=0), np.full(5, turn))
    long, its_logits = whole.prefill(x)
    assert worst([long, its_logits], [hidden[2, 0], logits[2]]) >= 100


def test_several_positions_at_once_are_as_many_steps(decoder):
    single, together = decoder(), decoder()
    x = columns(4, 2, 9)
    for each in (single, together):
        each.prefill(columns(0, 12))
    hidden, logits = together.step(x, np.array([0, 0]), first=1)        # 18 columns: more than any function has
    for turn in range(9):
        one, its_logits = single.step(x[:, turn:turn + 1], np.array([turn, turn]), first=1)
        assert worst([one[:, 0]], [hidden[:, turn]]) >= 100
    assert worst([its_logits], [logits]) >= 100


def test_a_lane_reads_the_same_alone_and_in_company(decoder):
    alone, company = decoder(lanes=1), decoder(lanes=5)
    for each in (alone, company):
        each.prefill(columns(0, 20))
    for turn in range(5):
        x = columns(turn, 5, 1)
        wanted, got = alone.step(x[3:4], np.array([turn])), company.step(x, np.array([1, 0, 4, turn, 2]))
        assert worst([wanted[0][0]], [got[0][3]]) >= 100


def test_a_prefix_too_long_for_every_prefill_goes_in_as_steps(network, decoder):
    x = columns(5, 50)
    assert worst(reference(network).prefill(x), decoder(capacity=8).prefill(x)) >= 100


def test_lanes_that_one_pool_cannot_hold_are_shared_among_several(network, decoder):
    packaged = decoder(lanes=5, capacity=30)            # 160 slots: 4 lanes of 30 beside a prefix of 20
    wanted = reading(reference(network, 5, 30))
    assert worst(wanted, reading(packaged)) >= 100
    assert [pool.lanes for pool in packaged.pools] == [4, 1]


def test_an_idle_lane_disturbs_nobody(network, decoder):
    packaged, plain = decoder("matmul"), reference(network)
    for each in (packaged, plain):
        each.prefill(columns(0, 20))
    for turn in range(4):
        x = columns(turn, 5, 1)
        x[1:3] = 0                                      # as `decode` leaves lanes that have nothing to say
        wanted, got = (each.step(x, np.array([turn, 0, 0, turn, turn])) for each in (plain, packaged))
        assert worst([wanted[0][[0, 3, 4]]], [got[0][[0, 3, 4]]]) >= 60


def test_a_text_that_no_pool_has_room_for_is_refused_in_a_line(decoder):
    with pytest.raises(UserError, match=r"takes 20 slots and its speech up to 200.*has 160.*--buckets"):
        decoder(capacity=200).prefill(columns(0, 20))


def test_a_lane_that_was_not_asked_for_is_a_bug(decoder):
    packaged = decoder(lanes=2, capacity=4)
    packaged.prefill(columns(0, 20))
    with pytest.raises(ValueError, match="lane 2, position 0"):
        packaged.step(columns(1, 3, 1), np.zeros(3, dtype=np.int64))


class Buffered:
    """An engine's function that keeps its inputs in buffers of its own, as Core ML's does."""

    def __init__(self, interpreter):
        self.interpreter = interpreter
        self.buffers = {name: np.full(type.shape, 7, np.float32) for name, type in interpreter.function.inputs.items()}

    def predict(self, inputs, state=None):
        for name, array in inputs.items():
            if array is not self.buffers[name]:
                assert name not in ("keys", "values"), "the pool was copied"
                self.buffers[name][...] = array
        return self.interpreter.predict(self.buffers, state)


def test_a_sole_pool_lies_where_the_engine_reads_it(network, packages):
    loaded = functions(graphs(network), packages("fp32"))
    step, = [f for f in loaded if f.name == "step_8_160"]
    step._loaded = Buffered(step.loaded)
    packaged = PackagedDecoder([f for f in loaded if f.kind == "prefill"], [], [step], 5, 24, geometry(network), SCALE,
                               np.float32)
    assert worst(reading(reference(network)), reading(packaged)) >= 100


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(0, 7), min_size=4, max_size=4), min_size=1, max_size=8))
def test_whatever_lanes_do_they_read_as_on_torch(network, packages, schedule):
    """Each turn every lane goes on, or back to some earlier length."""
    loaded = functions(graphs(network), packages("fp32"))
    packaged = PackagedDecoder([f for f in loaded if f.kind == "prefill"], [],
                               [f for f in loaded if f.kind == "step"], 4,
                               12, geometry(network), SCALE, np.float32)
    plain = reference(network, 4, 12)
    for each in (packaged, plain):
        each.prefill(columns(0, 9))
    held = np.zeros(4, dtype=np.int64)
    for turn, wishes in enumerate(schedule):
        length = np.minimum(held, wishes)
        x = columns(turn, 4, 1)
        assert worst(plain.step(x, length), packaged.step(x, length)) >= 95
        held = length + 1


@pytest.mark.parametrize("planted", [3000.0, 6000.0])
def test_channels_of_thousands_in_the_residual_stream_do_no_harm(tmp_path, planted):
    """As trained networks have them; a norm whose every inner step is fp16 is the worst engine there could be."""
    network = reference_network("autoregressive")
    for channel, sign in ((7, 1), (40, -0.6)):
        network.gpt.h[0].mlp.c_proj.bias[channel] += sign * planted
        for block in network.gpt.h[1:]:
            block.ln_1.weight[channel] /= planted / 10      # as training would: what reads the stream minds them little
            block.ln_2.weight[channel] /= planted / 10
    scale = gpt2.stream_scale(network)
    assert scale < 1
    paths = saved(graphs(network, scale), Style("fp16"), tmp_path)
    wanted = reading(reference(network), 4)
    for arithmetic in (FP16, ROUNDED, NARROW):
        loaded = functions(graphs(network, scale), paths, arithmetic)
        packaged = PackagedDecoder([f for f in loaded if f.kind == "prefill"], [],
                                   [f for f in loaded if f.kind == "step"], 5, 24, geometry(network), scale, np.float16)
        assert worst(wanted, reading(packaged, 4)) >= 50


def test_the_scale_of_a_stream_leaves_room_for_its_squares(network):
    assert gpt2.stream_scale(network) == 1
    loud = reference_network("autoregressive")
    loud.gpt.h[1].mlp.c_proj.bias[3] += 3000.0
    assert 3000 * gpt2.stream_scale(loud) <= 64


TURNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20), st.lists(st.integers(0, 2), min_size=5, max_size=5)),
                 min_size=1, max_size=4)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(turns=TURNS, pools=st.sampled_from([(160,), (96,)]))
def test_lanes_of_several_prefixes_read_as_alone_on_torch(network, decoder, kind, turns, pools):
    """In each turn a prefix of some length is stored at a place, and every lane sees that of a place of its own."""
    places = {"prefixes": 3, "longest": 20}
    packaged = decoder("fp32", kind, 5, 12, slots=pools, **places)
    company, alone = reference(network, 5, 12, **places), [reference(network, 1, 12, longest=20) for _ in range(5)]
    stored = [columns(200 + place, 4 + place) for place in range(3)]
    for place, prefix in enumerate(stored):
        company.prefill(prefix, place)
        packaged.prefill(prefix, place)
    bar = 65 if kind == "state" else 100        # a state is fp16 whatever the rest is
    for turn, (place, length, seen) in enumerate(turns):
        stored[place] = columns(turn, length)
        wanted, got = company.prefill(stored[place], place), packaged.prefill(stored[place], place)
        assert worst(wanted, got) >= bar
        for position in range(3):
            x, length = columns(50 + position, 5, 1), np.full(5, position)
            got = packaged.step(x, length, prefix=np.array(seen))
            together = company.step(x, length, prefix=np.array(seen))
            for lane, single in enumerate(alone):
                if position == 0:
                    single.prefill(stored[seen[lane]])
                wanted = single.step(x[lane:lane + 1], length[:1])
                assert worst(wanted, [part[lane:lane + 1] for part in together]) >= 100
                assert worst(wanted, [part[lane:lane + 1] for part in got]) >= bar


def test_more_prefixes_or_longer_ones_than_agreed_are_a_mistake(network, decoder):
    for made in (decoder("fp32", prefixes=2, longest=20), reference(network, prefixes=2, longest=20)):
        made.prefill(columns(0, 5))
        for place, length in ((2, 5), (0, 21)):
            with pytest.raises(ValueError, match="decoder of 2 prefixes of 20 positions"):
                made.prefill(columns(0, length), place)
