"""Provide networks, calls of decoders, schedules of steps, and comparisons of the arrays that decoders return."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from ane.backends.decoding import Decoder
from ane.bundles.weights import skeleton
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.networks.autoregressive import UnifiedVoice
from ane.system.decibels import snr_db
from tests.arrays import noise

CPU = torch.device("cpu")
LANES, CAPACITY, PREFIXES, LONGEST = 4, 30, 3, 12  # LONGEST is the maximum number of positions in a prefix
HALF_PRECISION = [(torch.float16, 0.01), (torch.bfloat16, 0.08)]  # dtype, largest error


def columns(seed: int, *shape: int, width: int = 64) -> np.ndarray:
    return noise(*shape, width, seed=seed)


def turns(prefix: int, lanes: int, count: int, width: int = 64, seed: int = 0) -> list[tuple[Any, ...]]:
    """The calls of a prefix and of ``count`` steps, each of which adds a column to every lane."""
    steps = ((columns(seed + turn, lanes, 1, width=width), np.full(lanes, turn)) for turn in range(count))
    return [(columns(seed, prefix, width=width),), *steps]


def answers(decoder: Decoder, calls: Iterable[tuple[Any, ...]]) -> list[np.ndarray]:
    """Everything that a decoder returns for calls: the arguments of a prefill, or of a step (three axes)."""
    return [array for call in calls for array in (decoder.prefill if call[0].ndim == 2 else decoder.step)(*call)]


def in_dtype(network: UnifiedVoice, dtype: torch.dtype) -> UnifiedVoice:
    """The network with weights of that dtype; its norms stay in float32."""
    state = {
        key: tensor.to(torch.float32 if ".ln_" in key or "norm" in key else dtype)
        for key, tensor in network.state_dict().items()
        if not tensor.is_meta
    }
    converted = skeleton(NETWORKS["autoregressive"], network.config)
    converted.load_state_dict(state, strict=False, assign=True)
    return converted.eval().requires_grad_(False)


def assert_close(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray], tolerance: float = 2e-5) -> None:
    for one, other in zip(expected, actual, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(other, one, rtol=0, atol=tolerance * np.abs(one).max())


def schedules(longest: int, lanes: int = LANES) -> st.SearchStrategy:
    """Up to ``longest`` prefills and steps.

    ("prefill", index of the prefix, its length), or ("step", lanes from, to; positions that each is rewound; index of
    its prefix; columns per lane).
    """
    prefills = st.tuples(st.just("prefill"), st.integers(0, PREFIXES - 1), st.integers(1, LONGEST))
    steps = st.tuples(
        st.just("step"),
        st.integers(0, lanes - 1),
        st.integers(1, lanes),
        st.lists(st.sampled_from([0, 0, 0, 1, 5, CAPACITY]), min_size=lanes, max_size=lanes),
        st.lists(st.integers(0, PREFIXES - 1), min_size=lanes, max_size=lanes),
        st.sampled_from([1, 1, 1, 1, 3, 7]),
    )
    return st.lists(st.one_of(prefills, steps, steps, steps), min_size=1, max_size=longest)


def assert_near(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray], decibels: float) -> None:
    for one, other in zip(expected, actual, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert snr_db(one, other) >= decibels


def calls_of(schedule: list[tuple], lanes: int, width: int) -> list[tuple[Any, ...]]:
    """The calls that fill all prefixes and then follow the schedule."""
    calls, held = [(columns(index, 3 + index, width=width), index) for index in range(PREFIXES)], np.zeros(lanes, int)
    for turn, (action, *rest) in enumerate(schedule):
        if action == "prefill":
            calls.append((columns(turn, rest[1], width=width), rest[0]))
            continue
        low, high, back, seen, each = rest
        chosen = slice(low, max(high, low + 1))
        length = np.minimum(np.maximum(held - back, 0), CAPACITY - each)[chosen]
        calls.append((columns(turn, len(length), each, width=width), length, low, np.array(seen)[chosen]))
        held[chosen] = length + each
    return calls
