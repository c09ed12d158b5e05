"""All random numbers of a request, drawn on the host so that no engine has a say in them.

A request's seed makes one ``numpy.random.SeedSequence``; each user of randomness has a stream of its own, keyed by
who it is and never by when it asks. So a candidate's codes depend on the seed, its chunk and its index alone, whatever
the number of lanes and the order of filling.
"""

import numpy as np

VOICE, CANDIDATE, DIFFUSION, VOCODER = range(4)


class Randomness:
    """Streams of one request.

    ===========  ====================  ===========================================================================
    stream       key                   draws, in order
    ===========  ====================  ===========================================================================
    voice                              for each ``random`` voice the decoder's noise (1, D), then the diffusion
                                       decoder's (1, C). Crops of long clips have a seed of their own (0), so that
                                       a voice stays the same from request to request
    candidate    chunk, candidate      one uniform number a code
    diffusion    chunk, rank           x_T (1, 100, L), then for sampler ``p`` one (1, 100, L) a step, the last unused
    vocoder      chunk, rank           UnivNet's noise, a row a frame: (L + 10, 64), all at once or bit by bit
    ===========  ====================  ===========================================================================
    """

    def __init__(self, seed: int):
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
