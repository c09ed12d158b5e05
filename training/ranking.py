"""Training of CLVP, which scores how well codes speak a text.

It is trained on four losses. Contrast: match texts with their codes within a batch (Radford et al. 2021). Alterations:
prefer the text to texts with a word or letter replaced. Spelling: a head used in training only predicts the letters
from the speech tower (connectionist temporal classification, Graves et al. 2006). Order: rank the decoder's candidates
for a text by the listener's score (a listwise loss, Cao et al. 2007), which is what CLVP does in the pipeline.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.networks.clvp import CLVP, CLVPConfig
from ane.system.errors import UserError
from training.candidates import ScoredCandidates
from training.clips import Clip
from training.recipe import LETTER_TOKENS
from training.trainer import Initialise, PartSchedule, Trainer

BATCH, RANKED = 16, 12  # clips of a step, and clips whose candidates are ranked
MIN_GROUP = 4           # clips of equal text length that are worth comparing
ALTERED = 2             # altered texts for each clip
MAX_SILENCE = 16        # limit of the random number of silence codes after the longest clip of a batch
FULL_LENGTH = 0.25      # share of batches that are instead padded to the pipeline's length
SHARPNESS = 10.0        # target probabilities of candidates are softmax(−SHARPNESS · nats a letter)
ORDER_WEIGHT = 3.0
VALIDATION_BATCHES = 12
VALIDATION_STRIDE = 20  # every 20th clip's candidates are for validation

Item = TypeVar("Item")


class CLVPInTraining(nn.Module):
    """CLVP, and a head that predicts letters at every position of the speech.

    Tokens and codes have the pipeline's form: one stop token after the text, codes padded with silence. In float32,
    since bfloat16 saves no time on a CPU at this width.
    """

    def __init__(self, config: CLVPConfig, decoder: UnifiedVoiceConfig):
        super().__init__()
        self.stop, self.calm, self.max_codes = decoder.stop_text_token, decoder.calm_token, decoder.max_mel_tokens - 1
        self.network = CLVP(config)
        self.speller = nn.Linear(config.dim_speech, config.num_text_tokens)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
            elif name == "network.temperature":
                nn.init.constant_(parameter, 2.0)
            else:
                nn.init.constant_(parameter, float(("norm" in name and name.endswith("weight")) or name.endswith(".g")))

    def text(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Token ids, all equally many → vectors (B, E)."""
        tokens = torch.tensor([[*text, self.stop] for text in texts])
        return self.network.text(tokens.to(self.network.temperature.device))

    def encode_speech(self, codes: Sequence[np.ndarray], length: int) -> Tensor:
        """Codes (n,) each, padded to ``length`` → output of the speech tower (B, length, width)."""
        rows = torch.full((len(codes), length), self.calm)
        for row, one in zip(rows, codes, strict=True):
            row[:len(one)] = torch.from_numpy(one)
        return self.network.speech_transformer.transformer(self.network.speech_emb(rows.to(self.speller.weight.device)))

    def speech(self, encoded: Tensor) -> Tensor:
        """Output of ``encode_speech`` → unit vectors (B, E), as ``CLVP.speech`` returns them."""
        return F.normalize(self.network.to_speech_latent(encoded.mean(dim=1)), dim=-1)

    def scores(self, rows: Sequence[ScoredCandidates], length: int) -> Tensor:
        """Scores of each row's codes, (rows, codes); their texts are equally long."""
        speech = self.speech(self.encode_speech([codes for row in rows for codes in row.codes], length))
        return torch.einsum("be,bke->bk", self.text([row.clip.text for row in rows]),
                            speech.unflatten(0, (len(rows), -1)))

    def losses(self, clips: Sequence[Clip], altered: Sequence[Sequence[int]], length: int) -> dict[str, Tensor]:
        """Losses of clips whose texts are equally long; ``altered``: one text for each clip, ``ALTERED`` times over."""
        encoded = self.encode_speech([clip.codes for clip in clips], length)
        texts = self.text([*(clip.text for clip in clips), *altered])
        scores = (texts @ self.speech(encoded).T).view(1 + ALTERED, len(clips), len(clips))
        own, matches = torch.arange(len(clips), device=scores.device), scores[0]
        versions = scores.diagonal(dim1=1, dim2=2).T                                # (clips, 1 + ALTERED)
        return {"contrast": (F.cross_entropy(matches, own) + F.cross_entropy(matches.T, own)) / 2,
                "alterations": F.cross_entropy(versions, torch.zeros_like(own)),
                "spelling": self.spelling(encoded, clips),
                "accuracy, own codes": (matches.argmax(dim=1) == own).float().mean(),
                "accuracy, own text": (versions.argmax(dim=1) == 0).float().mean()}

    def spelling(self, encoded: Tensor, clips: Sequence[Clip]) -> Tensor:
        """CTC loss of the texts given the output of ``encode_speech``."""
        likely = F.log_softmax(self.speller(encoded), dim=2).transpose(0, 1)
        codes, letters = torch.tensor([[len(clip.codes), len(clip.text)] for clip in clips]).T
        return F.ctc_loss(likely, torch.tensor([clip.text for clip in clips], device=encoded.device), codes, letters,
                          blank=self.stop, zero_infinity=True)      # otherwise infinite for fewer codes than letters


@dataclass
class CLVPObjective:
    """Draws the batches of CLVP and computes their losses.

    Attributes:
        groups, validation_groups: clips grouped by the length of their texts; training and validation.
        ranked, validation_ranked: candidates, grouped by the length of their texts; candidates for validation.
        words: see ``words_by_length``.
    """

    model: CLVPInTraining
    groups: list[list[Clip]]
    validation_groups: list[list[Clip]]
    ranked: list[list[ScoredCandidates]]
    validation_ranked: list[ScoredCandidates]
    words: dict[int, list[list[int]]]
    seed: int

    def step(self, index: int, generator: torch.Generator) -> dict[str, Tensor]:
        rng = np.random.default_rng([self.seed, index])
        clips, rows = draw_from_group(self.groups, BATCH, rng), draw_from_group(self.ranked, RANKED, rng)
        full = rng.random() < FULL_LENGTH
        losses = self.losses(clips, self.padded_length([clip.codes for clip in clips], full, rng), rng)
        length = self.padded_length([codes for row in rows for codes in row.codes], full, rng)
        order = listwise_loss(self.model.scores(rows, length), torch.stack([row.nats for row in rows]))
        loss = losses["contrast"] + losses["alterations"] + losses["spelling"] + ORDER_WEIGHT * order
        return {"loss": loss, **losses, "order": order}

    def padded_length(self, codes: Sequence[np.ndarray], full: bool, rng: np.random.Generator) -> int:
        """The length that a batch's codes are padded to with silence."""
        if full:
            return self.model.max_codes
        return min(max(map(len, codes)) + int(rng.integers(MAX_SILENCE)), self.model.max_codes)

    def losses(self, clips: Sequence[Clip], length: int, rng: np.random.Generator) -> dict[str, Tensor]:
        altered = [alter_text(clip.text, self.words, rng) for _ in range(ALTERED) for clip in clips]
        return self.model.losses(clips, altered, length)

    def validate(self) -> dict[str, float]:
        rng, length = np.random.default_rng(self.seed), self.model.max_codes
        batches = [self.losses(draw_from_group(self.validation_groups, BATCH, rng), length, rng)
                   for _ in range(VALIDATION_BATCHES) if self.validation_groups]
        accuracy = {f"{name}, validation": float(torch.stack([losses[name] for losses in batches]).mean())
                    for name in ("accuracy, own codes", "accuracy, own text") if batches}
        scores = torch.cat([self.model.scores([row], length) for row in self.validation_ranked]).cpu()
        nats = torch.stack([row.nats for row in self.validation_ranked])
        return {**accuracy, "ranking gain, validation": ranking_gain(scores[:, 1:], nats[:, 1:])}


def train_clvp(folder: Path, config: CLVPConfig, decoder: UnifiedVoiceConfig, clips: Sequence[Clip],
               validation: Sequence[Clip], candidates: Callable[[], Sequence[ScoredCandidates]],
               schedule: PartSchedule, device: str, initialise: Initialise | None = None) -> CLVP:
    """``candidates`` is called only if training is not finished."""
    torch.manual_seed(schedule.seed)
    model = CLVPInTraining(config, decoder)
    trainer = Trainer(folder, model, schedule, device, initialise)
    if trainer.finished:
        return model.network.eval()
    groups, validation_groups = (group_by_length(some, lambda clip: len(clip.text)) for some in (clips, validation))
    if not groups:
        raise UserError("too few clips with texts of equal length to train CLVP: raise `hours` in the recipe")
    rows = list(candidates())
    ranked = group_by_length([row for index, row in enumerate(rows) if index % VALIDATION_STRIDE],
                             lambda row: len(row.clip.text), fewest=1)
    if not ranked:
        raise UserError("too few candidates to train CLVP's ranking: raise `hours` in the recipe")
    objective = CLVPObjective(model, groups, validation_groups, ranked, rows[::VALIDATION_STRIDE],
                              words_by_length(clips), schedule.seed)
    trainer.run(objective.step, objective.validate)
    return model.network.eval()


def listwise_loss(scores: Tensor, nats: Tensor) -> Tensor:
    """Cross-entropy of scores (n, codes) against probabilities that are high where ``nats`` a letter are low."""
    return F.cross_entropy(scores, torch.softmax(-SHARPNESS * nats, dim=1).to(scores.device))


def ranking_gain(scores: Tensor, nats: Tensor) -> float:
    """How far choosing by score reduces nats a letter: 0 as by chance, 1 as by the best choice.

    Scores and nats are (n, candidates).
    """
    finite = nats.isfinite().all(dim=1)
    scores, nats = scores[finite], nats[finite]
    if not len(nats):
        return 0.0
    mean = nats.mean()
    chosen, best = nats.gather(1, scores.argmax(dim=1, keepdim=True)).mean(), nats.amin(dim=1).mean()
    return float((mean - chosen) / (mean - best).clamp(min=1e-6))


def words_of(text: Sequence[int]) -> list[slice]:
    marks = [-1, *(index for index, token in enumerate(text) if token not in LETTER_TOKENS), len(text)]
    return [slice(before + 1, after) for before, after in pairwise(marks) if after > before + 1]


def words_by_length(clips: Sequence[Clip]) -> dict[int, list[list[int]]]:
    words = sorted({tuple(clip.text[word]) for clip in clips for word in words_of(clip.text)})
    by_length: dict[int, list[list[int]]] = {}
    for word in words:
        by_length.setdefault(len(word), []).append(list(word))
    return by_length


def alter_text(text: Sequence[int], words: dict[int, list[list[int]]], rng: np.random.Generator) -> list[int]:
    """Token ids of the same length with one word or one letter replaced; unchanged if the text has no word."""
    changed, slices = list(text), words_of(text)
    if not slices:
        return changed
    word = slices[rng.integers(len(slices))]
    others = words.get(word.stop - word.start, [])
    if others and rng.random() < 0.5:
        changed[word] = others[rng.integers(len(others))]
    if changed == list(text):
        index = int(rng.integers(word.start, word.stop))
        letter = LETTER_TOKENS.index(changed[index]) + int(rng.integers(1, len(LETTER_TOKENS)))
        changed[index] = LETTER_TOKENS[letter % len(LETTER_TOKENS)]
    return changed


def group_by_length(items: Sequence[Item], length_of: Callable[[Item], int],
                    fewest: int = MIN_GROUP) -> list[list[Item]]:
    """Items of equal length, in groups of at least ``fewest``; the others are left out."""
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(length_of(item), []).append(item)
    return [group for group in groups.values() if len(group) >= fewest]


def draw_from_group(groups: Sequence[list[Item]], count: int, rng: np.random.Generator) -> list[Item]:
    """At most ``count`` items of a random group, drawn with probability proportional to its size."""
    sizes = np.array([len(group) for group in groups], dtype=float)
    group = groups[rng.choice(len(groups), p=sizes / sizes.sum())]
    return [group[i] for i in rng.choice(len(group), min(count, len(group)), replace=False)]
