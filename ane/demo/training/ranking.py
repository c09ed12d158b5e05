"""CLVP: which codes speak a text.

It learns to know a text's own codes among those of other texts (Radford et al. 2021), and to put the decoder's readings
of a text in the order of how near they come to the teacher's (a listwise loss, Cao et al. 2007): that is what it is
asked for when it ranks candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.autoregressive import text_tokens
from ane.backends.pytorch import TorchBackend
from ane.demo.training.clips import Clip
from ane.demo.training.loop import Begin, Plan, Training
from ane.demo.training.quantiser import Quantiser
from ane.errors import UserError
from ane.lanes import Chunk, decode
from ane.model import Model
from ane.networks.autoregressive import UnifiedVoiceConfig
from ane.networks.clvp import CLVP, CLVPConfig
from ane.sampling import by_inverse_cdf
from ane.settings import Settings

BATCH = 16
FEWEST = 4              # clips of a group that are worth comparing
READ, READINGS = 4000, 4    # clips that the decoder reads too, and how often
LANES = 48
WARMER = 0.3            # by so much the readings' temperature is above the model's own, so that they differ
SHARP = 20.0            # how much likelier the nearest reading is to be wanted, per unit of distance

Item = TypeVar("Item")


@dataclass(frozen=True)
class Read:
    """A clip, what the decoder made of its text, and how far each reading sounds from the teacher's.

    Attributes:
        codes: of ``READINGS`` readings, (n,) int64 each. distances: (READINGS,) float32.
    """

    clip: Clip
    codes: list[Tensor]
    distances: Tensor


def read(model: Model, clips: Sequence[Clip], voices: np.ndarray, quantiser: Quantiser) -> list[tuple]:
    """Let the decoder read the texts of clips: the codes and distances of ``Read``. ``voices``: (voices, D) float32."""
    config, own = model.config("autoregressive"), Settings.of(model=model.settings).sampling
    warm = replace(own, temperature=own.temperature + WARMER)
    chunks = [Chunk(voices[clip.voice:clip.voice + 1], text_tokens(clip.text, config),
                    [by_inverse_cdf(np.random.default_rng([number, index])) for index in range(READINGS)])
              for number, clip in enumerate(clips)]
    made = []
    for clip, found in zip(clips, decode(TorchBackend(model, "cpu"), chunks, config, warm, LANES, rewritten=False),
                           strict=True):
        codes = [np.asarray(reading.codes, dtype=np.int64) for reading in found]
        theirs = shape_of(clip.codes, clip.voice, quantiser)
        made.append(([torch.from_numpy(row) for row in codes],
                     torch.tensor([distance(shape_of(row, clip.voice, quantiser), theirs) for row in codes])))
    return made


@torch.no_grad()
def shape_of(codes: np.ndarray, voice: int, quantiser: Quantiser) -> np.ndarray:
    """Codes (n,) → the smooth shapes of their mel, (2n, 80): every other frame, in mean deviations. Silence is left
    out, which the quantiser has no code for."""
    codes = codes[codes < len(quantiser.entries)]
    if not len(codes):
        return np.zeros((1, 80), np.float32)
    mel = quantiser.mel(torch.from_numpy(codes)[None], torch.tensor([voice]))[0]
    return ((quantiser.smooth @ mel) / quantiser.deviation.mean())[:, ::2].T.numpy()


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Distance of two sequences of rows along their best alignment (dynamic time warping), for each of theirs: what is
    dragged out at the end is not diluted."""
    cost = np.abs(ours[:, None] - theirs[None]).mean(axis=2)
    row = cost[0].cumsum()
    for at in cost[1:]:
        before, row = np.minimum(row, np.concatenate(([np.inf], row[:-1]))), np.empty_like(row)
        least = np.inf
        for j, (here, above) in enumerate(zip(at.tolist(), before.tolist(), strict=True)):
            least = here + min(above, least)
            row[j] = least
    return float(row[-1] / len(theirs))


def train_clvp(folder: Path, config: CLVPConfig, decoder: UnifiedVoiceConfig, clips: Sequence[Clip],
               readings: Callable[[], Sequence[Read]], plan: Plan, device: str,
               begin: Begin | None = None) -> CLVP:
    """Texts' own codes are found among those of equally long texts; of each of ``readings`` the nearest is.

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
    training = Training(folder, network, plan, device, begin)
    if training.finished:
        return network.eval()
    groups = grouped(clips, lambda clip: len(clip.text))
    compared = grouped(readings(), lambda one: len(one.clip.text))
    if not groups or not compared:
        raise UserError("CLVP compares clips whose texts are equally long, and there are too few clips for that: raise "
                        "--hours")

    def heard(texts: Sequence[Clip], codes: Sequence[Tensor], rng: np.random.Generator) -> Tensor:
        """The network's score of every text (rows) with every sequence of codes (columns)."""
        tokens = torch.tensor([[*clip.text, decoder.stop_text_token] for clip in texts])
        length = rng.integers(max(map(len, codes)), decoder.max_mel_tokens)     # with any silence after the end
        speech = torch.full((len(codes), int(length)), decoder.calm_token)
        for row, one in zip(speech, codes, strict=True):
            row[:len(one)] = one
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            text, sound = network.text(tokens.to(device)), network.speech(speech.to(device))
        return text @ sound.T

    def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        rng = np.random.default_rng([plan.seed, index])
        chosen = drawn(groups, rng)
        scores = heard(chosen, [torch.from_numpy(clip.codes) for clip in chosen], rng)
        own = torch.arange(len(chosen), device=device)
        contrast = (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2
        found = (scores.argmax(dim=1) == own).float().mean()
        rows = drawn(compared, rng)
        scores = heard([one.clip for one in rows],
                       [codes for one in rows for codes in (torch.from_numpy(one.clip.codes), *one.codes)], rng)
        each = scores.view(len(rows), len(rows), 1 + READINGS).diagonal().T      # (rows, 1 + READINGS)
        far = F.pad(torch.stack([one.distances for one in rows]), (1, 0)).to(device)      # the clip itself is at none
        order = F.cross_entropy(each, torch.softmax(-SHARP * far, dim=1))
        return {"loss": contrast + order, "own codes found": found, **figures(each[:, 1:], far[:, 1:])}

    training.run(step)
    return network.eval()


def figures(scores: Tensor, far: Tensor) -> dict[str, Tensor]:
    """Scores and distances (n, READINGS): how often the nearest reading scores best, and which share of the distance
    that choosing can gain is gained."""
    taken = scores.argmax(dim=1, keepdim=True)
    gain, most = far.mean() - far.gather(1, taken).mean(), far.mean() - far.amin(dim=1).mean()
    return {"nearest readings found": (taken[:, 0] == far.argmin(dim=1)).float().mean(),
            "distance gained, share": gain / most.clamp(min=1e-6)}


def grouped(items: Sequence[Item], length_of: Callable[[Item], int]) -> list[list[Item]]:
    """Items by length, where there are enough of one."""
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(length_of(item), []).append(item)
    return [group for group in groups.values() if len(group) >= FEWEST]


def drawn(groups: Sequence[list[Item]], rng: np.random.Generator) -> list[Item]:
    """``BATCH`` items at most of a group, which is drawn by its size."""
    sizes = np.array([len(group) for group in groups], dtype=float)
    group = groups[rng.choice(len(groups), p=sizes / sizes.sum())]
    return [group[i] for i in rng.choice(len(group), min(BATCH, len(group)), replace=False)]
