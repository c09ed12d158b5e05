"""Streams of random numbers belong to who draws, not to when."""

import numpy as np

from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.sampling import inverse_cdf_sampler


def numbers(rng: np.random.Generator) -> tuple[float, ...]:
    return tuple(rng.random(4))


def test_the_same_seed_gives_the_same_streams_in_any_order():
    first, second = Randomness(7), Randomness(7)
    assert numbers(first.candidate(1, 2)) == numbers(second.candidate(1, 2))
    second.vocoder(0, 0).random(100)
    assert numbers(first.diffusion(0, 1)) == numbers(second.diffusion(0, 1))


def test_no_two_streams_of_a_request_are_alike():
    randomness = Randomness(7)
    streams = [randomness.voice(), randomness.diffusion(0, 0), randomness.vocoder(0, 0), randomness.vocoder(0, 1),
               *(randomness.candidate(chunk, index) for chunk in range(3) for index in range(3))]
    assert len({numbers(stream) for stream in streams}) == len(streams)


def test_seeds_matter():
    assert numbers(Randomness(1).candidate(0, 0)) != numbers(Randomness(2).candidate(0, 0))


def test_codes_are_chosen_as_often_as_they_are_probable():
    choose = inverse_cdf_sampler(np.random.default_rng(0))
    ids, probabilities = np.array([3, 5, 11]), np.array([0.2, 0.5, 0.3], dtype=np.float32)
    drawn = [choose(ids, probabilities) for _ in range(4000)]
    shares = [drawn.count(code) / len(drawn) for code in ids]
    np.testing.assert_allclose(shares, probabilities, atol=0.03)


def test_a_number_at_the_very_end_still_chooses_a_code():
    class One:
        def random(self) -> float:
            return 1.0 - 2**-53

    assert inverse_cdf_sampler(One())(np.array([4, 9]), np.array([0.5, 0.5], dtype=np.float32)) == 9
