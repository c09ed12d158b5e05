"""A listener: it writes down what codes say, letter by letter, and so tells how clearly a reading can be understood.

Convolutions over codes, two letters at most for each (connectionist temporal classification, Graves et al. 2006). It
learns from the teachers' own codes, and is the judge of the decoder's readings that CLVP learns to rank.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.clips import Batches, Clip, padded
from training.loop import Plan, Training
from training.recipe import ENTRIES, TOKENS

WIDTH = 128
DILATIONS = (1, 1, 1, 2, 2, 2)
PER_CODE = 2            # letters at most
NOTHING = 0             # the class of no letter: the stop token, which no text holds
COLUMNS = 3000          # codes of a batch
WRONG = 0.1             # share of codes that are any other in training, so that none is relied upon


class Listener(nn.Module):
    def __init__(self, voices: int):
        super().__init__()
        self.codes, self.voices = nn.Embedding(ENTRIES, WIDTH), nn.Embedding(voices, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in DILATIONS)
        self.layers = nn.ModuleList(nn.Conv1d(WIDTH, 2 * WIDTH, 5, padding=2 * dilation, dilation=dilation)
                                    for dilation in DILATIONS)
        self.apart = nn.Linear(WIDTH, PER_CODE * WIDTH)
        self.letters = nn.Linear(WIDTH, TOKENS)

    def forward(self, codes: Tensor, lengths: Tensor, voices: Tensor) -> Tensor:
        """Codes (B, S) of ``lengths`` (B,), by ``voices`` (B,) → logarithms of likelihoods (B, PER_CODE · S,
        TOKENS)."""
        there = (torch.arange(codes.shape[1], device=codes.device) < lengths[:, None])[..., None]
        x = (self.codes(codes) + self.voices(voices)[:, None]) * there
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + F.glu(layer((norm(x) * there).transpose(1, 2)).transpose(1, 2), dim=2)
        return F.log_softmax(self.letters(F.gelu(self.apart(x).unflatten(2, (PER_CODE, WIDTH)).flatten(1, 2))), dim=2)

    def misheard(self, texts: Sequence[Sequence[int]], codes: Sequence[np.ndarray], voices: Sequence[int]) -> Tensor:
        """Texts as token ids, codes (n,) without silence after the end → (B,) nats a letter by which it is not sure
        of the text; infinity where there are too few codes to write it."""
        device = self.letters.weight.device
        lengths = torch.tensor([len(row) for row in codes], device=device)
        heard = self(padded(codes, 0).to(device), lengths, torch.tensor(voices, device=device))
        letters = torch.tensor([len(text) for text in texts], device=device)
        wanted = torch.tensor([token for text in texts for token in text], device=device)
        missed = F.ctc_loss(heard.transpose(0, 1), wanted, PER_CODE * lengths, letters, blank=NOTHING, reduction="none",
                            zero_infinity=True)
        # a letter that comes twice in a row has nothing between
        twice = torch.tensor([sum(a == b for a, b in pairwise(text)) for text in texts], device=device)
        return torch.where(PER_CODE * lengths >= letters + twice, missed / letters, torch.inf)


def train_listener(folder: Path, clips: Sequence[Clip], check: Sequence[Clip], voices: int, plan: Plan,
                   device: str) -> Listener:
    """``check``: clips that are not learned, for the curve."""
    torch.manual_seed(plan.seed)
    listener = Listener(voices)
    training = Training(folder, listener, plan, device)
    if training.finished:
        return listener.eval()
    batches = Batches([len(clip.codes) for clip in clips], COLUMNS, plan.seed)

    def missed(chosen: Sequence[Clip], codes: Sequence[np.ndarray]) -> Tensor:
        found = listener.misheard([clip.text for clip in chosen], codes, [clip.voice for clip in chosen])
        return found[found.isfinite()].mean()

    def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        rng = np.random.default_rng([plan.seed, index])
        chosen = [clips[i] for i in batches[index]]
        return {"loss": missed(chosen, [np.where(rng.random(len(clip.codes)) < WRONG,
                                                 rng.integers(0, ENTRIES, len(clip.codes)), clip.codes)
                                        for clip in chosen])}

    def validate() -> dict[str, float]:
        return {"loss, unseen clips": float(missed(check, [clip.codes for clip in check]))}

    training.run(step, validate)
    return listener.eval()
