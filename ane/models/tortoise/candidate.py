"""What the decoder is given for a chunk, and what it returns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ane.models.tortoise.sampling import Sampler


@dataclass(frozen=True)
class Prompt:
    """What the decoder continues for one chunk; each of ``samplers`` samples one candidate.

    Attributes:
        conditioning: the voice's conditioning latent (1, D) float32.
        tokens: the result of ``ane.models.tortoise.chunks.text_tokens``.
    """

    conditioning: np.ndarray
    tokens: Sequence[int]
    samplers: Sequence[Sampler]


@dataclass
class Candidate:
    """One code sequence sampled for a chunk.

    Attributes:
        codes: the sampled codes, without the stop code.
        stopped: whether the stop code was sampled within ``max_codes`` codes.
        hidden: (len(codes) + stopped, D) float32: latents of the codes and of the stop code.
        padded_codes: (max_codes,) int64: the codes as upstream ranks them (``pad_codes``).
        latents: (t, D) float32: the input of diffusion: those of ``padded_codes``, trimmed (``trimmed_length``).
        log_probability: mean of the codes' and the stop code's, in nats, among those that could be sampled.
        prefix_scores: (heads, len(codes) + stopped, prefix length − 1) float32: what each code and the stop code attend
            to before the start code (``ane.backends.base.Decoder.record``); None: it was not recorded.
    """

    codes: list[int]
    stopped: bool
    hidden: np.ndarray
    padded_codes: np.ndarray
    latents: np.ndarray
    log_probability: float = 0.0
    prefix_scores: np.ndarray | None = None
