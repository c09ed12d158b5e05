"""All random numbers of a request, drawn with NumPy so that they are the same on every backend.

Every use of randomness has a generator (stream) of its own: a ``numpy.random.SeedSequence`` of the request's seed with
a key for the use. So the random numbers of a candidate depend only on the seed, its chunk and its index, not on the
number of lanes or the order in which they are filled.
"""

import numpy as np

from ane.system.errors import UserError

VOICE, CANDIDATE, DIFFUSION, VOCODER = range(4)


class Randomness:
    """Random streams of one request.

    Raises:
        UserError: a negative seed.

    ===========  ====================  ===========================================================================
    stream       key                   draws, in order
    ===========  ====================  ===========================================================================
    voice                              for each ``random`` voice the decoder's noise (1, D), then the diffusion
                                       decoder's (1, C). Crops of long clips have a seed of their own (0), so that
                                       a voice stays the same in every request
    candidate    chunk, candidate      one uniform number per code
    diffusion    chunk, rank           x_T (1, 100, L), then for sampler ``p`` one (1, 100, L) per step, the last unused
    vocoder      chunk, rank           UnivNet's noise, one row per frame: (L + 10, 64), at once or incrementally
    ===========  ====================  ===========================================================================
    """

    def __init__(self, seed: int):
        if seed < 0:
            raise UserError(f"seed must be at least 0, got {seed}", "seed")
        self.seed = seed

    def _stream(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))

    def voice(self) -> np.random.Generator:
        return self._stream(VOICE)

    def candidate(self, chunk: int, candidate: int) -> np.random.Generator:
        return self._stream(CANDIDATE, chunk, candidate)

    def diffusion(self, chunk: int, rank: int) -> np.random.Generator:
        return self._stream(DIFFUSION, chunk, rank)

    def vocoder(self, chunk: int, rank: int) -> np.random.Generator:
        return self._stream(VOCODER, chunk, rank)
