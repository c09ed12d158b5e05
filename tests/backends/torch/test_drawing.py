"""Tokens drawn on the device are those that NumPy samples with the same uniform numbers."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.backends.base import Draws
from ane.backends.torch.cuda_graphs import run_eagerly
from ane.backends.torch.drawing import MOST_TOP_K, DrawBuffers
from ane.models.tortoise.sampling import Sampling, distribution, id_at

CPU, EXCLUDED, VOCABULARY = torch.device("cpu"), 192, 300


def draws_of(history: np.ndarray, uniform: np.ndarray, options: list[Sampling]) -> Draws:
    return Draws(history, uniform, *(np.array([getattr(each, name) for each in options], dtype=np.float64)
                                     for name in ("repetition_penalty", "temperature", "top_p")),
                 top_k=np.array([each.top_k for each in options]), excluded=EXCLUDED)


def drawn(logits: np.ndarray, draws: Draws, run=run_eagerly) -> tuple[np.ndarray, np.ndarray]:
    buffers = DrawBuffers(CPU, len(logits), draws.history.shape[1] + 5)
    buffers.send(draws, slice(0, len(logits)))
    run("draw", partial(buffers.draw, torch.from_numpy(logits)))
    return buffers.tokens.host.numpy(), buffers.probabilities.host.numpy()


def sampled(logits: np.ndarray, draws: Draws, options: list[Sampling]) -> tuple[np.ndarray, np.ndarray]:
    """The same by the functions that sample a row in NumPy."""
    tokens, probabilities = [], []
    for row, history, uniform, sampling in zip(logits, draws.history, draws.uniform, options, strict=True):
        scores = row.copy()
        scores[EXCLUDED] = -np.inf
        ids, shares = distribution(scores, history, sampling)
        tokens.append(id_at(uniform, ids, shares))
        probabilities.append(shares[ids == tokens[-1]].sum())
    return np.array(tokens), np.array(probabilities)


sampling = st.builds(Sampling, temperature=st.floats(0.05, 3), repetition_penalty=st.floats(0.5, 4),
                     top_k=st.integers(1, MOST_TOP_K - 1), top_p=st.floats(0.01, 1))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), options=st.lists(sampling, min_size=1, max_size=5), seen=st.integers(1, 40),
       spread=st.floats(0.1, 10), steps=st.sampled_from([None, 0.5]))
def test_the_same_uniform_number_draws_the_code_that_numpy_samples(seed, options, seen, spread, steps):
    """Also where many logits are equal."""
    rng, lanes = np.random.default_rng(seed), len(options)
    logits = (rng.standard_normal((lanes, VOCABULARY)) * spread).astype(np.float32)
    if steps:
        logits = np.round(logits / steps).astype(np.float32) * np.float32(steps)
    draws = draws_of(rng.integers(0, VOCABULARY, (lanes, seen)), rng.random(lanes), options)
    tokens, probabilities = drawn(logits, draws)
    expected, shares = sampled(logits, draws, options)
    complete = tokens >= 0
    assert complete.all() or steps
    np.testing.assert_array_equal(tokens[complete], expected[complete])
    np.testing.assert_allclose(probabilities[complete], shares[complete], rtol=1e-5)


def test_ten_thousand_codes_with_the_usual_settings_are_the_same():
    rng = np.random.default_rng(0)
    options = [Sampling()] * 100
    for _ in range(100):
        logits = (rng.standard_normal((100, 2000)) * 3).astype(np.float32)
        draws = draws_of(rng.integers(0, 2000, (100, 60)), rng.random(100), options)
        np.testing.assert_array_equal(drawn(logits, draws)[0], sampled(logits, draws, options)[0])


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_smallest_and_the_largest_number_draw_the_first_and_the_last_code(uniform):
    logits = np.full((1, VOCABULARY), -20, np.float32)
    logits[0, [40, 7, 250]] = 1, 1.5, 2
    options = [Sampling(top_p=1.0, top_k=3)]
    [token], _ = drawn(logits, draws_of(np.array([[0]]), np.array([uniform]), options))
    assert token == (7 if uniform == 0 else 250)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_draws_nothing_and_leaves_the_others_alone(value):
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((3, VOCABULARY), dtype=np.float32)
    draws, options = draws_of(np.zeros((3, 1), np.int64), rng.random(3), [Sampling()] * 3), [Sampling()] * 3
    expected, _ = sampled(logits, draws, options)
    logits[1, 5] = value
    tokens, _ = drawn(logits, draws)
    assert tokens.tolist() == [expected[0], -1, expected[2]]


def test_more_equal_codes_than_are_looked_at_draw_nothing():
    draws = draws_of(np.zeros((1, 1), np.int64), np.array([0.5]), [Sampling(repetition_penalty=1.0)])
    assert drawn(np.zeros((1, VOCABULARY), np.float32), draws)[0].tolist() == [-1]


def test_the_excluded_code_is_never_drawn():
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, EXCLUDED], logits[0, 3] = 50, 20
    draws = draws_of(np.zeros((1, 1), np.int64), np.array([0.99]), [Sampling(top_k=1)])
    assert drawn(logits, draws)[0].tolist() == [3]


def test_a_recorded_draw_reads_everything_from_its_buffers(graphs):
    rng, run = np.random.default_rng(2), graphs()
    buffers, logits = DrawBuffers(CPU, 4, 30), torch.zeros(4, VOCABULARY)
    options = [Sampling(), Sampling(top_k=5), Sampling(temperature=2.0, repetition_penalty=1.2), Sampling(top_p=0.99)]
    for length in (3, 30, 11, 4):
        rng.shuffle(options)
        logits[:] = torch.from_numpy((rng.standard_normal((4, VOCABULARY)) * 3).astype(np.float32))
        draws = draws_of(rng.integers(0, VOCABULARY, (4, length)), rng.random(4), options)
        buffers.send(draws, slice(0, 4))
        run("draw", partial(buffers.draw, logits))
        np.testing.assert_array_equal(buffers.tokens.host.numpy(), sampled(logits.numpy(), draws, options)[0])
    assert run.graphs["draw"].replays == 3
