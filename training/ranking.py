"""Train CLVP, which scores how well the codes of a candidate match a text.

CLVP learns to find, within a batch, the codes that belong to each text (Radford et al. 2021).
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

MIN_GROUP = 2  # fewest clips with texts of equal length that make a group
MAX_SILENCE = 16  # the longest clip of a batch gets fewer silence codes than this at its end, at random
FULL_LENGTH = 0.25  # this share of the batches is padded to the largest number of codes, as in the pipeline
VALIDATION_BATCHES = 12


class CLVPInTraining(nn.Module):
    """CLVP with the same inputs as in the pipeline: a stop token ends a text, and silence codes pad the codes.

    The network computes in float32, because bfloat16 saves no time on a CPU at this width.
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
        """Encode texts as vectors (B, E). All texts must have the same number of token ids."""
        tokens = torch.tensor([[*text, self.stop] for text in texts])
        return self.network.text(tokens.to(self.network.temperature.device))

    def speech(self, codes: Sequence[np.ndarray], length: int) -> Tensor:
        """Encode sequences of codes, (n,) each, as vectors (B, E). The codes are padded to ``length``."""
        rows = np.stack([np.pad(row, (0, length - len(row)), constant_values=self.calm) for row in codes])
        return self.network.speech(torch.from_numpy(rows).to(self.network.temperature.device))

    def losses(self, clips: Sequence[Clip], length: int) -> dict[str, Tensor]:
        """Compute the loss and the accuracy for clips whose texts are equally long."""
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
    """Draw at most ``count`` clips from a random group. The probability of a group is proportional to its size."""
    sizes = np.array([len(group) for group in groups], dtype=float)
    group = groups[rng.choice(len(groups), p=sizes / sizes.sum())]
    return [group[i] for i in rng.choice(len(group), min(count, len(group)), replace=False)]
