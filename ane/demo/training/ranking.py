"""CLVP: which codes speak a text. Against other clips' codes, and against damaged versions of the right ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.demo.training.clips import Clip
from ane.demo.training.loop import Plan, Training
from ane.errors import UserError
from ane.networks.autoregressive import UnifiedVoiceConfig
from ane.networks.clvp import CLVP, CLVPConfig

BATCH = 32
FEWEST = 4              # clips of a group that are worth comparing
DAMAGED = 2             # damaged versions of each clip in a batch


def damaged(codes: np.ndarray, other: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Codes with what a decoder does wrong: a stretch skipped, repeated or from another clip, an early end."""
    n = len(codes)
    length = int(rng.integers(3, max(4, n // 3)))
    at = int(rng.integers(0, max(1, n - length)))
    before, stretch, after = codes[:at], codes[at:at + length], codes[at + length:]
    kind = rng.integers(4)
    if kind == 0 and n > 12:
        return np.concatenate((before, after))
    if kind == 1:
        return np.concatenate((before, stretch, stretch, after))
    if kind == 2 and n > 12:
        return codes[:max(6, n - length)]
    start = int(rng.integers(0, max(1, len(other) - length)))
    return np.concatenate((before, other[start:start + length], after))


def train_clvp(folder: Path, config: CLVPConfig, decoder: UnifiedVoiceConfig, clips: Sequence[Clip], plan: Plan,
               device: str) -> CLVP:
    """Contrastive, both ways (Radford et al. 2021), among clips whose texts are equally long.

    Tokens and codes come as the pipeline passes them: one stop token after the text, codes padded with silence.
    """
    torch.manual_seed(plan.seed)
    network = CLVP(config)
    for name, parameter in network.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        elif name == "temperature":
            nn.init.constant_(parameter, 2.0)
        else:
            nn.init.constant_(parameter, float(("norm" in name and name.endswith("weight")) or name.endswith(".g")))
    training = Training(folder, network, plan, device)
    groups: dict[int, list[Clip]] = {}
    for clip in clips:
        groups.setdefault(len(clip.text), []).append(clip)
    groups = {length: group for length, group in groups.items() if len(group) >= FEWEST}
    if not groups:
        raise UserError("CLVP compares clips whose texts are equally long, and there are too few clips for that: raise "
                        "--hours")
    lengths, sizes = list(groups), np.array([len(group) for group in groups.values()], dtype=float)

    def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        rng = np.random.default_rng([plan.seed, index])
        group = groups[lengths[rng.choice(len(lengths), p=sizes / sizes.sum())]]
        count = min(BATCH, len(group))
        chosen = [group[i] for i in rng.choice(len(group), count, replace=False)]
        tokens = torch.tensor([[*clip.text, decoder.stop_text_token] for clip in chosen])
        codes = [clip.codes for clip in chosen]
        wrong = [damaged(codes[i], codes[(i + rng.integers(1, count)) % count], rng)
                 for _ in range(DAMAGED) for i in range(count)]
        length = rng.integers(max(map(len, codes)), decoder.max_mel_tokens)     # with any silence after the end
        speech = torch.full(((1 + DAMAGED) * count, int(length)), decoder.calm_token)
        for row, heard in zip(speech, [*codes, *wrong], strict=True):
            row[:len(heard)] = torch.from_numpy(heard)[:len(row)]
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            text, heard = network.text(tokens.to(device)), network.speech(speech.to(device))
        scores = text @ heard.T                                             # (count, (1 + DAMAGED)·count)
        own = torch.arange(count, device=device)
        loss = (F.cross_entropy(scores, own) + F.cross_entropy(scores[:, :count].T, own)) / 2
        right = scores[own, own]
        beaten = torch.stack([right > scores[own, own + count * (1 + k)] for k in range(DAMAGED)]).float().mean()
        return {"loss": loss, "damaged ones found": beaten,
                "own codes found": (scores[:, :count].argmax(dim=1) == own).float().mean()}

    training.run(step)
    return network.eval()
