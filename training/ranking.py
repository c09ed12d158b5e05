"""Train CLVP, which scores how well codes speak a text.

It learns to match texts with their codes within a batch (Radford et al. 2021).
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.networks.clvp import CLVP, CLVPConfig
from ane.system.errors import UserError
from training.speech import Clip
from training.trainer import TrainedPart, Trainer

MIN_GROUP = 2  # clips of equal text length that are worth comparing
MAX_SILENCE = 16  # limit of the random number of silence codes after the longest clip of a batch
FULL_LENGTH = 0.25  # share of batches that are instead padded to the pipeline's length
VALIDATION_BATCHES = 12


class CLVPInTraining(nn.Module):
    """CLVP on tokens and codes in the pipeline's form.

    A text has one stop token at its end, and codes are padded with silence. The network is in float32, since bfloat16
    saves no time on a CPU at this width.
    """

    def __init__(self, config: CLVPConfig, decoder: UnifiedVoiceConfig):
        super().__init__()
        self.stop, self.calm, self.max_codes = decoder.stop_text_token, decoder.calm_token, decoder.max_mel_tokens - 1
        self.network = CLVP(config)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
            elif name == "network.temperature":
                nn.init.constant_(parameter, 2.0)
            else:
                nn.init.constant_(parameter, float(("norm" in name and name.endswith("weight")) or name.endswith(".g")))

    def text(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return vectors (B, E) of texts, all with the same number of token ids."""
        tokens = torch.tensor([[*text, self.stop] for text in texts])
        return self.network.text(tokens.to(self.network.temperature.device))

    def speech(self, codes: Sequence[np.ndarray], length: int) -> Tensor:
        """Return vectors (B, E) of codes (n,), padded to ``length``."""
        rows = np.stack([np.pad(row, (0, length - len(row)), constant_values=self.calm) for row in codes])
        return self.network.speech(torch.from_numpy(rows).to(self.network.temperature.device))

    def losses(self, clips: Sequence[Clip], length: int) -> dict[str, Tensor]:
        """Return the losses of clips whose texts are equally long."""
        scores = self.text([clip.text for clip in clips]) @ self.speech([clip.codes for clip in clips], length).T
        targets = torch.arange(len(clips), device=scores.device)
        return {
            "loss": (F.cross_entropy(scores, targets) + F.cross_entropy(scores.T, targets)) / 2,
            "accuracy": (scores.argmax(dim=1) == targets).float().mean(),
        }


def train_clvp(
    part: TrainedPart,
    config: CLVPConfig,
    decoder: UnifiedVoiceConfig,
    clips: Sequence[Clip],
    validation: Sequence[Clip],
) -> CLVP:
    schedule = part.schedule
    torch.manual_seed(schedule.seed)
    model = CLVPInTraining(config, decoder)
    trainer = Trainer(model, part)
    groups, validation_groups = group_by_length(clips), group_by_length(validation)
    if not groups:
        raise UserError("too few clips with texts of equal length to train CLVP: raise `hours` in the recipe")

    def losses(groups: Sequence[list[Clip]], rng: np.random.Generator, full: bool) -> dict[str, Tensor]:
        chosen = draw_from_group(groups, schedule.batch, rng)
        longest = max(len(clip.codes) for clip in chosen) + int(rng.integers(MAX_SILENCE))
        return model.losses(chosen, model.max_codes if full else min(longest, model.max_codes))

    def step(index: int, _: torch.Generator) -> dict[str, Tensor]:
        rng = np.random.default_rng([schedule.seed, index])
        return losses(groups, rng, rng.random() < FULL_LENGTH)

    def validate() -> dict[str, float]:
        rng = np.random.default_rng(schedule.seed)
        if not validation_groups:
            return {}
        found = [losses(validation_groups, rng, True)["accuracy"] for _ in range(VALIDATION_BATCHES)]
        return {"accuracy, validation": float(torch.stack(found).mean())}

    trainer.run(step, validate)
    return trainer.result().network


def group_by_length(clips: Sequence[Clip]) -> list[list[Clip]]:
    """Group clips whose texts are equally long. Groups with fewer than ``MIN_GROUP`` clips are left out."""
    groups: dict[int, list[Clip]] = {}
    for clip in clips:
        groups.setdefault(len(clip.text), []).append(clip)
    return [group for group in groups.values() if len(group) >= MIN_GROUP]


def draw_from_group(groups: Sequence[list[Clip]], count: int, rng: np.random.Generator) -> list[Clip]:
    """Draw at most ``count`` clips of a random group, with probability proportional to its size."""
    sizes = np.array([len(group) for group in groups], dtype=float)
    group = groups[rng.choice(len(groups), p=sizes / sizes.sum())]
    return [group[i] for i in rng.choice(len(group), min(count, len(group)), replace=False)]
