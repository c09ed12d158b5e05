"""Training clips (token ids and codes), and batches of clips of similar length."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ane.text import Tokenizer
from training.speech import voice_of


@dataclass(frozen=True)
class Clip:
    """One clip of the training speech.

    Attributes:
        text: token ids. codes: (n,) int64. voice: index of the teacher.
        shard, index: file of its audio, and position in it.
    """

    text: list[int]
    codes: np.ndarray
    voice: int
    shard: Path
    index: int


def load_clips(shards: Sequence[Path], codes: Sequence[Path], voices: Sequence[str],
               tokenizer: Tokenizer) -> list[Clip]:
    clips = []
    for shard_path, codes_path in zip(shards, codes, strict=True):
        voice = voice_of(shard_path, voices)
        with np.load(shard_path) as data:       # loads only the arrays it uses
            texts, frames = data["texts"].tolist(), data["frames"]
        rows = np.split(np.load(codes_path).astype(np.int64), np.cumsum(frames // 4)[:-1])
        clips += [Clip(tokenizer.encode_normalised(text), row, voice, shard_path, index)
                  for index, (text, row) in enumerate(zip(texts, rows, strict=True))]
    return clips


class Batches:
    """Batches of clips of similar length, about ``size`` positions each; the first epoch begins with short clips.

    ``batches[step]`` depends on the step alone.
    """

    def __init__(self, lengths: Sequence[int], size: int, seed: int):
        self.lengths, self.size, self.seed = np.asarray(lengths), size, seed
        self.epochs: dict[int, list[np.ndarray]] = {}
        self.epoch_steps = len(self.epoch(0))

    def __getitem__(self, step: int) -> np.ndarray:
        epoch = self.epoch(step // self.epoch_steps)
        return epoch[step % self.epoch_steps % len(epoch)]

    def epoch(self, epoch: int) -> list[np.ndarray]:
        if epoch not in self.epochs:
            rng = np.random.default_rng([self.seed, epoch])
            order = np.argsort(self.lengths + rng.uniform(0, 6, len(self.lengths)))
            ends = np.cumsum(self.lengths[order]) // self.size
            batches = np.split(order, np.flatnonzero(np.diff(ends)) + 1)
            if epoch == 0:      # short clips first, shuffled within a third of the epoch
                keys = np.arange(len(batches)) + rng.uniform(0, len(batches) / 3, len(batches))
                batches = [batches[index] for index in np.argsort(keys)]
            else:
                rng.shuffle(batches)
            self.epochs = {0: self.epochs.get(0, batches), epoch: batches}
        return self.epochs[epoch]


def pad_rows(rows: Sequence[np.ndarray], fill: int) -> torch.Tensor:
    """Rows of several lengths → (B, longest) int64, padded with ``fill``."""
    out = torch.full((len(rows), max(map(len, rows))), fill, dtype=torch.int64)
    for index, row in enumerate(rows):
        out[index, :len(row)] = torch.as_tensor(row)
    return out
