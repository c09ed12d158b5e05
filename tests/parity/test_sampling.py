"""The processors of logits return exactly the scores of upstream's, and lead to the same codes."""

from collections.abc import Callable

import numpy as np

from ane.models.tortoise.sampling import (
    Sampling,
    distribution,
    process_scores,
    repetition_penalty,
    top_k,
    top_p,
    typical,
)

UPSTREAM = Sampling(temperature=0.8, repetition_penalty=2.0, top_k=50, top_p=0.8)
TYPICAL = Sampling(temperature=0.8, repetition_penalty=2.0, top_k=50, top_p=0.8, typical_mass=0.9)

PROCESSORS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "repetition_penalty": lambda scores, history: repetition_penalty(scores, history, 2.0),
    "temperature": lambda scores, history: scores / np.float32(0.8),
    "top_k": lambda scores, history: top_k(scores, 50),
    "top_p": lambda scores, history: top_p(scores, 0.8),
    "typical": lambda scores, history: typical(scores, 0.9),
    "chain": lambda scores, history: process_scores(scores, history, UPSTREAM),
    "chain_typical": lambda scores, history: process_scores(scores, history, TYPICAL),
}


def test_each_processor_and_the_chain_equal_transformers(golden_stage):
    """A golden set can omit single processors, but not the chain."""
    stage = golden_stage("logits")
    assert "chain" in stage
    for name in PROCESSORS.keys() & stage.keys():
        for raw, history, expected in zip(stage["raw"], stage["history"], stage[name], strict=True):
            np.testing.assert_array_equal(PROCESSORS[name](raw, history), expected, err_msg=name)


def test_with_upstreams_random_numbers_the_same_codes_are_sampled(golden_stage):
    stage = golden_stage("logits")
    for draw, chosen in enumerate(stage["multinomial_chosen"]):
        for row, (raw, history) in enumerate(zip(stage["raw"], stage["history"], strict=True)):
            ids, probabilities = distribution(raw, history, UPSTREAM)
            possible = stage["multinomial_ids"][draw, row] >= 0
            assert set(ids) == set(stage["multinomial_ids"][draw, row][possible])
            exponential = dict(zip(stage["multinomial_ids"][draw, row][possible],
                                   stage["multinomial_exponential"][draw, row][possible], strict=True))
            assert ids[np.argmax(probabilities / [exponential[i] for i in ids])] == chosen[row]
