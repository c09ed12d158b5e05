"""What the decoder makes of texts that it has learned, several times each, and how clearly the listener hears it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ane.autoregressive import text_tokens
from ane.backends.pytorch import TorchBackend
from ane.demo.training.clips import Clip
from ane.demo.training.listener import Listener
from ane.demo.training.recipe import ENTRIES
from ane.lanes import Chunk, decode
from ane.model import Model
from ane.sampling import by_inverse_cdf
from ane.settings import Settings

READ, READINGS = 4000, 4    # clips that the decoder reads too, and how often
LANES = 48
WARMER = 0.3            # by so much the readings' temperature is above the model's own, so that they differ


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


def read(model: Model, clips: Sequence[Clip], voices: np.ndarray) -> list[list[Tensor]]:
    """The codes (n,) int64 of ``READINGS`` readings of every clip. ``voices``: (voices, D) float32."""
    config, own = model.config("autoregressive"), Settings.of(model=model.settings).sampling
    warm = replace(own, temperature=own.temperature + WARMER)
    chunks = [Chunk(voices[clip.voice:clip.voice + 1], text_tokens(clip.text, config),
                    [by_inverse_cdf(np.random.default_rng([number, index])) for index in range(READINGS)])
              for number, clip in enumerate(clips)]
    return [[torch.tensor(reading.codes) for reading in found]
            for found in decode(TorchBackend(model, "cpu"), chunks, config, warm, LANES, rewritten=False)]


@torch.no_grad()
def listened(listener: Listener, clips: Sequence[Clip], readings: Sequence[Sequence[Tensor]]) -> Iterator[Read]:
    """Clips beside readings of them; those that are too short for their texts to be heard in are left out."""
    for clip, others in zip(clips, readings, strict=True):
        codes = [clip.codes, *(one.numpy() for one in others)]
        spoken = [one[one < ENTRIES] for one in codes]      # the listener knows no silence after the end
        misheard = listener.misheard([clip.text] * len(codes), spoken, [clip.voice] * len(codes)).cpu()
        if misheard[0].isfinite():
            yield Read(clip, codes, misheard)
