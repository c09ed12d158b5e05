"""What the decoder makes of texts that are new to it, several times each, and how clearly the listener hears it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

import numpy as np
import torch
from torch import Tensor, nn

from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.decoding import Prompt, decode
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.networks.autoregressive import UnifiedVoice
from ane.models.tortoise.sampling import inverse_cdf_sampler
from ane.models.tortoise.settings import Settings
from training.clips import Clip
from training.listener import Listener
from training.loop import received, sent
from training.recipe import CONFIGS, ENTRIES, SETTINGS
from training.trained import TrainedModel

READ, READINGS = 4000, 8    # texts that the decoder reads at most, and how often
WARMER = 0.3                # their temperature is above the model's own, so that there is something to choose
LANES, SHARE = 48, 200      # readings side by side in a process, and texts that it is given at a time


@dataclass(frozen=True)
class Read:
    """A clip, and readings of its text by the decoder.

    Attributes:
        codes: (n,) int64 of the clip itself and of ``READINGS`` readings.
        misheard: of each, nats a letter (float32): see ``Listener.misheard``.
    """

    clip: Clip
    codes: list[np.ndarray]
    misheard: Tensor


def read_texts(decoder: nn.Module, clips: Sequence[Clip], voices: np.ndarray, workers: int) -> list[list[Tensor]]:
    """Codes (n,) int64 of ``READINGS`` readings of every clip's text.

    ``voices``: (voices, D) float32, the latent of each teacher.
    """
    job, starts = partial(read, sent(decoder), voices), range(0, len(clips), SHARE)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        shares = pool.map(job, [clips[start:start + SHARE] for start in starts], starts)
        return [[torch.from_numpy(codes) for codes in row] for share in shares for row in share]


def read(state: bytes, voices: np.ndarray, clips: Sequence[Clip], first: int) -> list[list[np.ndarray]]:
    """Readings of clips, in a process of its own. ``state``: the decoder's, ``sent``; ``first``: the number of
    the first clip, which its randomness is drawn by."""
    torch.set_num_threads(1)
    config = CONFIGS["autoregressive"]
    decoder = UnifiedVoice(config)
    received(state, decoder)
    backend = TorchBackend(TrainedModel({"autoregressive": decoder}, np.empty(0), ""), "cpu")
    chunks = [Prompt(voices[clip.voice:clip.voice + 1], text_tokens(clip.text, config),
                    [inverse_cdf_sampler(np.random.default_rng([number, index])) for index in range(READINGS)])
              for number, clip in enumerate(clips, first)]
    own = Settings.of(model=SETTINGS).sampling
    warm = replace(own, temperature=own.temperature + WARMER)
    return [[np.array(reading.codes, dtype=np.int64) for reading in found]
            for found in decode(backend, chunks, config, warm, LANES, rewritten=False)]


@torch.no_grad()
def listened(listener: Listener, clips: Sequence[Clip], readings: Sequence[Sequence[Tensor]]) -> Iterator[Read]:
    """Clips beside readings of them; those that are too short for their texts to be heard in are left out."""
    for clip, others in zip(clips, readings, strict=True):
        codes = [clip.codes, *(one.numpy() for one in others)]
        spoken = [one[one < ENTRIES] for one in codes]      # the listener knows no code of silence
        misheard = listener.misheard([clip.text] * len(codes), spoken, [clip.voice] * len(codes)).cpu()
        if misheard[0].isfinite():
            yield Read(clip, codes, misheard)
