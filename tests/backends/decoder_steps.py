"""Provide networks, columns (decoder inputs) and schedules of steps, with which tests compare decoders."""

import numpy as np
import torch
from hypothesis import strategies as st

from ane.backends.decoding import Decoder
from ane.backends.torch.decoder import TorchDecoder
from ane.bundles.weights import skeleton
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.networks.autoregressive import UnifiedVoice
from ane.system.decibels import snr_db

CPU = torch.device("cpu")
LANES, CAPACITY, PREFIXES, LONGEST = 4, 30, 3, 12  # LONGEST is the maximum number of positions in a prefix
HALF_PRECISION = [(torch.float16, 0.01), (torch.bfloat16, 0.08)]  # dtype, largest error


def columns(seed: int, *shape: int, width: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*shape, width), dtype=np.float32)


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


def assert_close(expected: tuple[np.ndarray, ...], actual: tuple[np.ndarray, ...], tolerance: float = 2e-5) -> None:
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


def assert_near(expected: tuple[np.ndarray, ...], actual: tuple[np.ndarray, ...], decibels: float) -> None:
    for one, other in zip(expected, actual, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert snr_db(one, other) >= decibels


def assert_same_results(both: tuple[TorchDecoder, Decoder], schedule: list[tuple], decibels: float) -> None:
    """Fill all prefixes, then run the schedule on both decoders."""
    lanes, width = both[0].lanes, both[0].shape.width
    for index in range(PREFIXES):
        assert_near(*(decoder.prefill(columns(index, 3 + index, width=width), index) for decoder in both), decibels)
    held = np.zeros(lanes, dtype=np.int64)
    for turn, (action, *rest) in enumerate(schedule):
        if action == "prefill":
            index, length = rest
            assert_near(*(decoder.prefill(columns(turn, length, width=width), index) for decoder in both), decibels)
            continue
        low, high, back, seen, each = rest
        chosen = slice(low, max(high, low + 1))
        length = np.minimum(np.maximum(held - back, 0), CAPACITY - each)[chosen]
        x = columns(turn, len(length), each, width=width)
        assert_near(*(decoder.step(x, length, low, np.array(seen)[chosen]) for decoder in both), decibels)
        held[chosen] = length + each
