"""Random streams depend on the seed and their key, not on when they are drawn."""

import numpy as np
import pytest

from ane.models.tortoise.sampling import Randomness
from ane.system.errors import UserError


def numbers(rng: np.random.Generator) -> tuple[float, ...]:
    return tuple(rng.random(4))


def test_the_same_seed_gives_the_same_streams_in_any_order():
    first, second = Randomness(7), Randomness(7)
    assert numbers(first.candidate(1, 2)) == numbers(second.candidate(1, 2))
    second.vocoder(0, 0).random(100)
    assert numbers(first.diffusion(0, 1)) == numbers(second.diffusion(0, 1))


def test_all_streams_of_a_request_differ():
    randomness = Randomness(7)
    streams = [randomness.voice(), randomness.diffusion(0, 0), randomness.vocoder(0, 0), randomness.vocoder(0, 1),
               *(randomness.candidate(chunk, index) for chunk in range(3) for index in range(3))]
    assert len({numbers(stream) for stream in streams}) == len(streams)


def test_other_seeds_give_other_streams():
    assert numbers(Randomness(1).candidate(0, 0)) != numbers(Randomness(2).candidate(0, 0))


def test_a_negative_seed_is_refused_and_zero_is_not():
    assert Randomness(0).seed == 0
    with pytest.raises(UserError, match=r"^seed must be at least 0, got -1$"):
        Randomness(-1)
