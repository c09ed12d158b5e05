"""The listener: a recogniser that predicts letters from codes; its loss measures how clearly codes speak a text.

Convolutions over codes, at most two letters for each code, trained with connectionist temporal classification (Graves
et al. 2006) on the codes of the teachers' speech. CLVP is trained to rank candidates by its score.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.clips import Batches, Clip, pad_rows
from training.recipe import ENTRIES, TOKENS
from training.trainer import PartSchedule, Trainer

WIDTH = 128
DILATIONS = (1, 1, 1, 2, 2, 2)
LETTERS_PER_CODE = 2    # at most
BLANK = 0               # CTC's blank: the stop token, which no text contains
CODES_PER_BATCH = 3000
REPLACED = 0.1          # share of codes replaced at random in training, so that it relies on no single code


class Listener(nn.Module):
    """Codes of known voices → letters; see the module."""

    def __init__(self, voices: int):
        super().__init__()
        self.codes, self.voices = nn.Embedding(ENTRIES, WIDTH), nn.Embedding(voices, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in DILATIONS)
        self.layers = nn.ModuleList(nn.Conv1d(WIDTH, 2 * WIDTH, 5, padding=2 * dilation, dilation=dilation)
                                    for dilation in DILATIONS)
        self.expand = nn.Linear(WIDTH, LETTERS_PER_CODE * WIDTH)
        self.letters = nn.Linear(WIDTH, TOKENS)

    def forward(self, codes: Tensor, lengths: Tensor, voices: Tensor) -> Tensor:
        """Codes (B, S) of ``lengths`` (B,) by ``voices`` (B,) → log-probabilities (B, LETTERS_PER_CODE · S, TOKENS)."""
        mask = (torch.arange(codes.shape[1], device=codes.device) < lengths[:, None])[..., None]
        x = (self.codes(codes) + self.voices(voices)[:, None]) * mask
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + F.glu(layer((norm(x) * mask).transpose(1, 2)).transpose(1, 2), dim=2)
        x = self.expand(x).unflatten(2, (LETTERS_PER_CODE, WIDTH)).flatten(1, 2)
        return F.log_softmax(self.letters(F.gelu(x)), dim=2)

    def nats_per_letter(self, texts: Sequence[Sequence[int]], codes: Sequence[np.ndarray],
                        voices: Sequence[int]) -> Tensor:
        """CTC loss of the texts (token ids) given codes (n,) without silence: (B,) nats a letter, low for clear speech.

        Infinite where there are too few codes for the text.
        """
        device = self.letters.weight.device
        lengths = torch.tensor([len(row) for row in codes], device=device)
        likely = self(pad_rows(codes, 0).to(device), lengths, torch.tensor(voices, device=device))
        letters = torch.tensor([len(text) for text in texts], device=device)
        targets = torch.tensor([token for text in texts for token in text], device=device)
        loss = F.ctc_loss(likely.transpose(0, 1), targets, LETTERS_PER_CODE * lengths, letters, blank=BLANK,
                          reduction="none", zero_infinity=True)
        # CTC needs a blank between two equal letters
        doubled = torch.tensor([sum(a == b for a, b in pairwise(text)) for text in texts], device=device)
        return torch.where(LETTERS_PER_CODE * lengths >= letters + doubled, loss / letters, torch.inf)


def train_listener(folder: Path, clips: Sequence[Clip], validation: Sequence[Clip], voices: int,
                   schedule: PartSchedule, device: str) -> Listener:
    torch.manual_seed(schedule.seed)
    listener = Listener(voices)
    trainer = Trainer(folder, listener, schedule, device)
    if trainer.finished:
        return listener.eval()
    batches = Batches([len(clip.codes) for clip in clips], CODES_PER_BATCH, schedule.seed)

    def mean_nats(batch: Sequence[Clip], codes: Sequence[np.ndarray]) -> Tensor:
        nats = listener.nats_per_letter([clip.text for clip in batch], codes, [clip.voice for clip in batch])
        return nats[nats.isfinite()].mean()

    def loss(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        rng = np.random.default_rng([schedule.seed, index])
        batch = [clips[i] for i in batches[index]]
        return {"loss": mean_nats(batch, [np.where(rng.random(len(clip.codes)) < REPLACED,
                                                   rng.integers(0, ENTRIES, len(clip.codes)), clip.codes)
                                          for clip in batch])}

    def validate() -> dict[str, float]:
        return {"loss, validation": float(mean_nats(validation, [clip.codes for clip in validation]))}

    trainer.run(loss, validate)
    return listener.eval()
