"""CLVP: which codes speak a text.

It learns to know a text's own codes among those of other texts (Radford et al. 2021), and the text itself among texts
of which one word or letter is another. So that the speech tower hears letters at all, a head that only the training has
spells what it hears (connectionist temporal classification, Graves et al. 2006). And it learns to put readings of a
text by the decoder in the order of how clearly a listener hears them (a listwise loss, Cao et al. 2007): that is what
it is asked for when it ranks candidates.
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
from training.clips import Clip
from training.loop import Begin, Plan, Training
from training.readings import Read
from training.recipe import LETTER_TOKENS

BATCH, RANKED = 16, 12  # clips of a step, and those whose readings are put in order
FEWEST = 4              # clips that are worth comparing
ALTERED = 2             # texts beside a clip's own, each with a word or a letter changed
SILENCE = 16            # codes of silence after the longest clip of a batch, less than that,
WHOLE = 0.25            # but so often as many as the pipeline pads to
CLEAR = 10.0            # a reading is wanted exp(CLEAR) times as much for each nat a letter that it is clearer by
ORDER = 3.0             # weight of the listwise loss
CHECKED_BATCHES = 12    # of the validation
ASIDE = 20              # one clip of so many is kept out of ranking, for the validation

Item = TypeVar("Item")


class CLVPInTraining(nn.Module):
    """CLVP, and a head that spells: it tells the letters at every position of the speech.

    Tokens and codes come as the pipeline passes them: one stop token after the text, codes padded with silence. In
    float32: at this width bfloat16 saves no time on a CPU.
    """

    def __init__(self, config: CLVPConfig, decoder: UnifiedVoiceConfig):
        super().__init__()
        self.stop, self.calm, self.longest = decoder.stop_text_token, decoder.calm_token, decoder.max_mel_tokens - 1
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

    def heard(self, codes: Sequence[np.ndarray], length: int) -> Tensor:
        """Codes (n,) each, padded to ``length`` → what the speech tower makes of each (B, length, width)."""
        rows = torch.full((len(codes), length), self.calm)
        for row, one in zip(rows, codes, strict=True):
            row[:len(one)] = torch.from_numpy(one)
        return self.network.speech_transformer.transformer(self.network.speech_emb(rows.to(self.speller.weight.device)))

    def speech(self, heard: Tensor) -> Tensor:
        """→ unit vectors (B, E), as ``CLVP.speech`` makes them."""
        return F.normalize(self.network.to_speech_latent(heard.mean(dim=1)), dim=-1)

    def scores(self, rows: Sequence[Read], length: int) -> Tensor:
        """Scores of each row's codes, (rows, codes); their texts are equally long."""
        speech = self.speech(self.heard([codes for one in rows for codes in one.codes], length))
        return torch.einsum("be,bke->bk", self.text([one.clip.text for one in rows]),
                            speech.unflatten(0, (len(rows), -1)))

    def compared(self, clips: Sequence[Clip], altered: Sequence[Sequence[int]], length: int) -> dict[str, Tensor]:
        """Losses of clips whose texts are equally long. ``altered``: a text for each clip in turn, ``ALTERED`` times.
        """
        texts = [clip.text for clip in clips]
        heard = self.heard([clip.codes for clip in clips], length)
        scores = (self.text([*texts, *altered]) @ self.speech(heard).T).view(1 + ALTERED, len(clips), len(clips))
        own, apart = torch.arange(len(clips), device=scores.device), scores[0]
        told = scores.diagonal(dim1=1, dim2=2).T                                    # (clips, 1 + ALTERED)
        return {"contrast": (F.cross_entropy(apart, own) + F.cross_entropy(apart.T, own)) / 2,
                "alterations": F.cross_entropy(told, torch.zeros_like(own)), "spelling": self.spelling(heard, clips),
                "own codes found": (apart.argmax(dim=1) == own).float().mean(),
                "altered texts told": (told.argmax(dim=1) == 0).float().mean()}

    def spelling(self, heard: Tensor, clips: Sequence[Clip]) -> Tensor:
        likely = F.log_softmax(self.speller(heard), dim=2).transpose(0, 1)
        codes, letters = torch.tensor([[len(clip.codes), len(clip.text)] for clip in clips]).T
        return F.ctc_loss(likely, torch.tensor([clip.text for clip in clips], device=heard.device), codes, letters,
                          blank=self.stop, zero_infinity=True)      # infinity: too few codes to spell with


def train_clvp(folder: Path, config: CLVPConfig, decoder: UnifiedVoiceConfig, clips: Sequence[Clip],
               check: Sequence[Clip], readings: Callable[[], Sequence[Read]], plan: Plan, device: str,
               begin: Begin | None = None) -> CLVP:
    """``check``: clips that are not learned. How often CLVP knows their codes and their texts goes into the curve, and
    what it gains by choosing among readings of texts whose readings it has not learned to rank."""
    torch.manual_seed(plan.seed)
    model = CLVPInTraining(config, decoder)
    training = Training(folder, model, plan, device, begin)
    if training.finished:
        return model.network.eval()
    groups, unseen = (grouped(some, lambda clip: len(clip.text)) for some in (clips, check))
    if not groups:
        raise UserError("CLVP compares clips whose texts are equally long, and there are too few clips for that: raise "
                        "--hours")
    read = list(readings())
    ranked = grouped([one for index, one in enumerate(read) if index % ASIDE], lambda one: len(one.clip.text), fewest=1)
    if not ranked:
        raise UserError("there are too few readings for CLVP to learn to rank them: raise --hours")
    lessons = Lessons(model, groups, unseen, ranked, read[::ASIDE], words_by_length(clips), plan.seed)
    training.run(lessons.step, lessons.validate)
    return model.network.eval()


@dataclass
class Lessons:
    """What CLVP is given to learn from.

    Attributes:
        groups, unseen, ranked: clips, clips that are not learned, and readings, grouped by the length of their texts.
        aside: readings that are not learned. words: see ``words_by_length``.
    """

    model: CLVPInTraining
    groups: list[list[Clip]]
    unseen: list[list[Clip]]
    ranked: list[list[Read]]
    aside: list[Read]
    words: dict[int, list[list[int]]]
    seed: int

    def step(self, index: int, generator: torch.Generator) -> dict[str, Tensor]:
        rng = np.random.default_rng([self.seed, index])
        chosen, rows, whole = drawn(self.groups, BATCH, rng), drawn(self.ranked, RANKED, rng), rng.random() < WHOLE
        losses = self.compared(chosen, self.length([clip.codes for clip in chosen], whole, rng), rng)
        scores = self.model.scores(rows, self.length([codes for one in rows for codes in one.codes], whole, rng))
        order = listwise(scores, torch.stack([one.misheard for one in rows]))
        loss = losses["contrast"] + losses["alterations"] + losses["spelling"] + ORDER * order
        return {"loss": loss, **losses, "order": order}

    def length(self, codes: Sequence[np.ndarray], whole: bool, rng: np.random.Generator) -> int:
        """What a batch of codes is padded to."""
        return self.model.longest if whole else min(max(map(len, codes)) + int(rng.integers(SILENCE)),
                                                    self.model.longest)

    def compared(self, clips: Sequence[Clip], length: int, rng: np.random.Generator) -> dict[str, Tensor]:
        return self.model.compared(
            clips, [altered(clip.text, self.words, rng) for _ in range(ALTERED) for clip in clips], length)

    def validate(self) -> dict[str, float]:
        rng, longest = np.random.default_rng(self.seed), self.model.longest
        found = [self.compared(drawn(self.unseen, BATCH, rng), longest, rng) for _ in range(CHECKED_BATCHES)
                 if self.unseen]
        known = {f"{name}, unseen clips": float(torch.stack([one[name] for one in found]).mean())
                 for name in ("own codes found", "altered texts told") if found}
        scores = torch.cat([self.model.scores([one], longest) for one in self.aside]).cpu()
        misheard = torch.stack([one.misheard for one in self.aside])
        return {**known, "gained by ranking, other texts": gained(scores[:, 1:], misheard[:, 1:])}


def listwise(scores: Tensor, misheard: Tensor) -> Tensor:
    """How far scores (n, codes) are from ranking what is ``misheard`` least, highest."""
    return F.cross_entropy(scores, torch.softmax(-CLEAR * misheard, dim=1).to(scores.device))


def gained(scores: Tensor, misheard: Tensor) -> float:
    """Which share of what choosing can gain is gained by choosing the highest of scores (n, readings)."""
    possible = misheard.isfinite().all(dim=1)
    scores, misheard = scores[possible], misheard[possible]
    if not len(misheard):
        return 0.0
    mean = misheard.mean()
    chosen, best = misheard.gather(1, scores.argmax(dim=1, keepdim=True)).mean(), misheard.amin(dim=1).mean()
    return float((mean - chosen) / (mean - best).clamp(min=1e-6))


def words_of(text: Sequence[int]) -> list[slice]:
    """Where the words of a text lie: the longest runs of letters."""
    marks = [-1, *(at for at, token in enumerate(text) if token not in LETTER_TOKENS), len(text)]
    return [slice(before + 1, after) for before, after in pairwise(marks) if after > before + 1]


def words_by_length(clips: Sequence[Clip]) -> dict[int, list[list[int]]]:
    """Every word of the clips once, those of a length together."""
    words = sorted({tuple(clip.text[at]) for clip in clips for at in words_of(clip.text)})
    found: dict[int, list[list[int]]] = {}
    for word in words:
        found.setdefault(len(word), []).append(list(word))
    return found


def altered(text: Sequence[int], words: dict[int, list[list[int]]], rng: np.random.Generator) -> list[int]:
    """Token ids as long as ``text`` with another word, or another letter, in one place; the same if it has no word."""
    changed, places = list(text), words_of(text)
    if not places:
        return changed
    place = places[rng.integers(len(places))]
    others = words.get(place.stop - place.start, [])
    if others and rng.random() < 0.5:
        changed[place] = others[rng.integers(len(others))]
    if changed == list(text):
        at = int(rng.integers(place.start, place.stop))
        letter = LETTER_TOKENS.index(changed[at]) + int(rng.integers(1, len(LETTER_TOKENS)))
        changed[at] = LETTER_TOKENS[letter % len(LETTER_TOKENS)]
    return changed


def grouped(items: Sequence[Item], length_of: Callable[[Item], int], fewest: int = FEWEST) -> list[list[Item]]:
    """Items by length, where there are ``fewest`` of one."""
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(length_of(item), []).append(item)
    return [group for group in groups.values() if len(group) >= fewest]


def drawn(groups: Sequence[list[Item]], count: int, rng: np.random.Generator) -> list[Item]:
    """``count`` items at most of a group, which is drawn by its size."""
    sizes = np.array([len(group) for group in groups], dtype=float)
    group = groups[rng.choice(len(groups), p=sizes / sizes.sum())]
    return [group[i] for i in rng.choice(len(group), min(count, len(group)), replace=False)]
