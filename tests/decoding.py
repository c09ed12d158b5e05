"""Decode candidates of chunks on separate lanes, without the other work of a request."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ane.backends.base import Backend
from ane.models.tortoise.decoding import Candidate, Embeddings, Prompt, make_lanes
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.sampling import CodeSampler, Sampling


@dataclass
class ChunkPrompt:
    """What distinguishes the prompts of chunks; the other fields of ``Prompt`` are arguments of ``decode``."""

    conditioning: np.ndarray
    tokens: Sequence[int]
    samplers: Sequence[CodeSampler]

    def bound(
        self, backend: Backend, config: UnifiedVoiceConfig, sampling: Sampling, rewrite_tail: bool = True
    ) -> Prompt:
        return Prompt(
            self.conditioning,
            self.tokens,
            self.samplers,
            Embeddings(**backend.embeddings()),
            config,
            sampling,
            rewrite_tail,
        )


def decode(
    backend: Backend,
    prompts: Sequence[ChunkPrompt],
    config: UnifiedVoiceConfig,
    sampling: Sampling,
    lanes: int = 16,
    rewrite_tail: bool = True,
    progress: Callable[[int, int], None] = lambda codes, finished: None,
    recorded_heads: Sequence[tuple[int, int]] = (),
) -> Iterator[list[Candidate]]:
    """Yield the candidates of each chunk in order, as soon as they and those of earlier chunks have ended.

    ``progress`` is called after every step, with the codes sampled and the candidates finished. Others: ``Prompt``,
    ``make_lanes``.
    """
    lanes = min(lanes, sum(len(prompt.samplers) for prompt in prompts))
    longest = max(Embeddings.prefix_length(prompt.tokens) for prompt in prompts)
    shared = make_lanes(backend, config, lanes, sampling.max_codes, min(lanes, len(prompts)), longest, recorded_heads)
    made = [shared.submit(prompt.bound(backend, config, sampling, rewrite_tail)) for prompt in prompts]
    for decoding in made:
        yield decoding.all(
            lambda: progress(sum(each.prompt.codes for each in made), sum(each.finished for each in made))
        )
