"""Candidates that the decoder samples for texts it was not trained on, each with the listener's score."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

import numpy as np
import torch
from torch import Tensor, nn

from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.candidate import Prompt
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.decoding import decode
from ane.models.tortoise.networks.autoregressive import UnifiedVoice
from ane.models.tortoise.sampling import InverseCdfSampler
from ane.models.tortoise.settings import Settings
from training.clips import Clip
from training.listener import Listener
from training.recipe import CONFIGS, ENTRIES, SETTINGS
from training.trained_model import TrainedModel
from training.trainer import load_state_bytes, state_bytes

MAX_TEXTS, CANDIDATES = 4000, 8     # texts at most, and candidates of each
EXTRA_TEMPERATURE = 0.3             # above the model's own, so that candidates differ in clarity
LANES, TEXTS_PER_JOB = 48, 200      # of one process


@dataclass(frozen=True)
class ScoredCandidates:
    """A clip and candidates for its text.

    Attributes:
        codes: (n,) int64 each: the clip's own, then those of ``CANDIDATES`` candidates.
        nats: (1 + CANDIDATES,) float32, ``Listener.nats_per_letter`` of each.
    """

    clip: Clip
    codes: list[np.ndarray]
    nats: Tensor


def sample_candidates(decoder: nn.Module, clips: Sequence[Clip], voices: np.ndarray,
                      workers: int) -> list[list[Tensor]]:
    """Codes (n,) int64 of ``CANDIDATES`` candidates for every clip's text.

    ``voices``: (voices, D) float32, the latent of each teacher.
    """
    job, starts = partial(sample_job, state_bytes(decoder), voices), range(0, len(clips), TEXTS_PER_JOB)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        results = pool.map(job, [clips[start:start + TEXTS_PER_JOB] for start in starts], starts)
        return [[torch.from_numpy(codes) for codes in row] for rows in results for row in rows]


def sample_job(state: bytes, voices: np.ndarray, clips: Sequence[Clip], first: int) -> list[list[np.ndarray]]:
    """Sample in a separate process.

    ``state``: ``state_bytes`` of the decoder; ``first``: the number of the first clip. A clip's number seeds its
    candidates.
    """
    torch.set_num_threads(1)
    config = CONFIGS["autoregressive"]
    decoder = UnifiedVoice(config)
    load_state_bytes(decoder, state)
    backend = TorchBackend(TrainedModel({"autoregressive": decoder}, np.empty(0), ""), "cpu")
    chunks = [Prompt(voices[clip.voice:clip.voice + 1], text_tokens(clip.text, config),
                    [InverseCdfSampler(np.random.default_rng([number, index])) for index in range(CANDIDATES)])
              for number, clip in enumerate(clips, first)]
    sampling = Settings.of(model=SETTINGS).sampling
    sampling = replace(sampling, temperature=sampling.temperature + EXTRA_TEMPERATURE)
    return [[np.array(candidate.codes, dtype=np.int64) for candidate in candidates]
            for candidates in decode(backend, chunks, config, sampling, LANES, rewrite_tail=False)]


@torch.no_grad()
def score_candidates(listener: Listener, clips: Sequence[Clip],
                     candidates: Sequence[Sequence[Tensor]]) -> Iterator[ScoredCandidates]:
    """Clips with their scored candidates. Clips too short to hold their text are left out."""
    for clip, others in zip(clips, candidates, strict=True):
        codes = [clip.codes, *(one.numpy() for one in others)]
        spoken = [one[one < ENTRIES] for one in codes]      # the listener has no embedding of the silence code
        nats = listener.nats_per_letter([clip.text] * len(codes), spoken, [clip.voice] * len(codes)).cpu()
        if nats[0].isfinite():
            yield ScoredCandidates(clip, codes, nats)
