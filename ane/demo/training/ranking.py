"""CLVP: which codes speak a text.

It learns to know a text's own codes among those of other texts (Radford et al. 2021), and a text among others of which
one word or letter is another: a candidate reads no more than that wrong. So that the speech tower hears letters at all,
a head that only the training has spells what it hears (connectionist temporal classification, Graves et al. 2006). And
it learns to put the decoder's readings of a text in the order of how clearly a listener hears them (a listwise loss,
Cao et al. 2007): that is what it is asked for when it ranks candidates.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.demo.training.clips import Clip
from ane.demo.training.loop import Begin, Plan, Training
from ane.demo.training.readings import Read
from ane.demo.training.recipe import LETTERS
from ane.errors import UserError
from ane.networks.autoregressive import UnifiedVoiceConfig
from ane.networks.clvp import CLVP, CLVPConfig

BATCH, READ_AGAIN = 24, 12      # clips of a step, and those whose readings are put in order
FEWEST = 4              # clips of a group that are worth comparing
ALTERED = 2             # texts beside a clip's own, each with a word or a letter changed
SILENCE = 16            # codes of silence after the longest clip of a batch, at most,
WHOLE = 0.25            # but so often as many as the pipeline passes
CLEAR = 10.0            # how much likelier a reading is to be wanted for each nat a letter that it is clearer by
CHECKED, CHECKED_READINGS = 12, 20      # batches of the validation; of so many clips one's readings are kept for it

Item = TypeVar("Item")


class CLVPInTraining(nn.Module):
    """CLVP, and a head that spells: it tells the letters at every position of the speech.

    Tokens and codes come as the pipeline passes them: one stop token after the text, codes padded with silence. In
    float32: at this width bfloat16 takes longer on a CPU.
    """

    def __init__(self, config: CLVPConfig, decoder: UnifiedVoiceConfig):
        super().__init__()
        self.decoder, self.longest = decoder, decoder.max_mel_tokens - 1
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
        stop, device = self.decoder.stop_text_token, self.network.temperature.device
        return self.network.text(torch.tensor([[*text, stop] for text in texts], device=device))

    def speech(self, codes: Sequence[np.ndarray], length: int) -> tuple[Tensor, Tensor]:
        """Codes (n,) each, padded to ``length`` → unit vectors (B, E), and logarithms of the likelihood of each token
        of text at each code (length, B, tokens)."""
        net, rows = self.network, torch.full((len(codes), length), self.decoder.calm_token)
        for row, one in zip(rows, codes, strict=True):
            row[:len(one)] = torch.from_numpy(one)
        heard = net.speech_transformer.transformer(net.speech_emb(rows.to(net.temperature.device)))
        return (F.normalize(net.to_speech_latent(heard.mean(dim=1)), dim=-1),
                F.log_softmax(self.speller(heard), dim=-1).transpose(0, 1))

    def compared(self, clips: Sequence[Clip], others: Sequence[Sequence[int]], length: int) -> dict[str, Tensor]:
        """Losses of clips whose texts are equally long. ``others``: for every clip in turn an altered text, and so on.
        """
        texts = [clip.text for clip in clips]
        speech, spelled = self.speech([clip.codes for clip in clips], length)
        scores = (self.text([*texts, *others]) @ speech.T).view(-1, len(clips), len(clips))
        own, apart = torch.arange(len(clips), device=scores.device), scores[0]
        altered = scores.diagonal(dim1=1, dim2=2).T                                 # (clips, 1 + altered texts)
        lengths = torch.tensor([[len(clip.codes), len(clip.text)] for clip in clips]).T
        spelling = F.ctc_loss(spelled, torch.tensor(texts, device=scores.device), *lengths,
                              blank=self.decoder.stop_text_token, zero_infinity=True)   # too few codes to spell with
        contrast = (F.cross_entropy(apart, own) + F.cross_entropy(apart.T, own)) / 2
        return {"contrast": contrast + F.cross_entropy(altered, torch.zeros_like(own)), "spelling": spelling,
                "own codes found": (apart.argmax(dim=1) == own).float().mean(),
                "altered texts told": (altered.argmax(dim=1) == 0).float().mean()}

    def ranked(self, rows: Sequence[Read], length: int) -> Tensor:
        """Scores of each row's codes, (rows, codes); their texts are equally long."""
        text = self.text([one.clip.text for one in rows])
        speech, _ = self.speech([codes for one in rows for codes in one.codes], length)
        return torch.einsum("be,bke->bk", text, speech.unflatten(0, (len(rows), -1)))


def train_clvp(folder: Path, config: CLVPConfig, decoder: UnifiedVoiceConfig, clips: Sequence[Clip],
               check: Sequence[Clip], readings: Callable[[], Sequence[Read]], plan: Plan, device: str,
               begin: Begin | None = None) -> CLVP:
    """``check``: clips that are not learned. How often CLVP knows their codes and their texts goes into the curve, and
    what it gains by choosing among readings that it has not learned to rank."""
    torch.manual_seed(plan.seed)
    model = CLVPInTraining(config, decoder)
    training = Training(folder, model, plan, device, begin)
    if training.finished:
        return model.network.eval()
    read = readings()
    aside, learned = read[::CHECKED_READINGS], [one for index, one in enumerate(read) if index % CHECKED_READINGS]
    groups, unseen = (grouped(some, lambda clip: len(clip.text)) for some in (clips, check))
    ranked = grouped(learned, lambda one: len(one.clip.text))
    if not groups or not ranked:
        raise UserError("CLVP compares clips whose texts are equally long, and there are too few clips for that: raise "
                        "--hours")
    words = words_by_length(clips)

    def compared(chosen: Sequence[Clip], length: int, rng: np.random.Generator) -> dict[str, Tensor]:
        return model.compared(chosen, [altered(clip.text, words, rng) for _ in range(ALTERED) for clip in chosen],
                              length)

    def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        rng = np.random.default_rng([plan.seed, index])
        chosen, rows, whole = drawn(groups, BATCH, rng), drawn(ranked, READ_AGAIN, rng), rng.random() < WHOLE

        def length(codes: Sequence[np.ndarray]) -> int:
            return model.longest if whole else min(max(map(len, codes)) + int(rng.integers(SILENCE)), model.longest)

        losses = compared(chosen, length([clip.codes for clip in chosen]), rng)
        scores = model.ranked(rows, length([codes for one in rows for codes in one.codes]))
        wanted = torch.softmax(-CLEAR * torch.stack([one.misheard for one in rows]), dim=1).to(device)
        order = F.cross_entropy(scores, wanted)
        return {"loss": losses["contrast"] + losses["spelling"] + order, **losses, "order": order}

    def validate() -> dict[str, float]:
        rng = np.random.default_rng(plan.seed)
        found = [compared(drawn(unseen, BATCH, rng), model.longest, rng) for _ in range(CHECKED)] if unseen else []
        known = {f"{name}, unseen clips": float(torch.stack([one[name] for one in found]).mean())
                 for name in ("own codes found", "altered texts told") if found}
        scores = torch.cat([model.ranked([one], model.longest) for one in aside]).cpu()
        misheard = torch.stack([one.misheard for one in aside])
        return {**known, "gained by ranking, unseen readings": gained(scores[:, 1:], misheard[:, 1:])}

    training.run(step, validate)
    return model.network.eval()


def gained(scores: Tensor, misheard: Tensor) -> float:
    """Which share of what choosing can gain is gained by choosing the highest of scores (n, readings)."""
    misheard = misheard.where(misheard.isfinite(), misheard[misheard.isfinite()].max())
    mean = misheard.mean()
    chosen, best = misheard.gather(1, scores.argmax(dim=1, keepdim=True)).mean(), misheard.amin(dim=1).mean()
    return float((mean - chosen) / (mean - best).clamp(min=1e-6))


def words_of(text: Sequence[int]) -> list[slice]:
    """Where the words of a text lie: the longest runs of letters."""
    marks = [-1, *(at for at, token in enumerate(text) if token not in LETTERS), len(text)]
    return [slice(before + 1, after) for before, after in pairwise(marks) if after > before + 1]


def words_by_length(clips: Sequence[Clip]) -> dict[int, list[list[int]]]:
    """Every word of the clips once, those of a length together."""
    words = sorted({tuple(clip.text[at]) for clip in clips for at in words_of(clip.text)})
    found: dict[int, list[list[int]]] = {}
    for word in words:
        found.setdefault(len(word), []).append(list(word))
    return found


def altered(text: Sequence[int], words: dict[int, list[list[int]]], rng: np.random.Generator) -> list[int]:
    """Token ids as long as ``text`` with another word, or another letter, in one place."""
    changed, places = list(text), words_of(text)
    if not places:
        return changed
    place = places[rng.integers(len(places))]
    others = words[place.stop - place.start]
    if rng.random() < 0.5:
        changed[place] = others[rng.integers(len(others))]
    if changed == list(text):
        at = int(rng.integers(place.start, place.stop))
        changed[at] = LETTERS[(LETTERS.index(changed[at]) + int(rng.integers(1, len(LETTERS)))) % len(LETTERS)]
    return changed


def grouped(items: Sequence[Item], length_of: Callable[[Item], int]) -> list[list[Item]]:
    """Items by length, where there are enough of one."""
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(length_of(item), []).append(item)
    return [group for group in groups.values() if len(group) >= FEWEST]


def drawn(groups: Sequence[list[Item]], count: int, rng: np.random.Generator) -> list[Item]:
    """``count`` items at most of a group, which is drawn by its size."""
    sizes = np.array([len(group) for group in groups], dtype=float)
    group = groups[rng.choice(len(groups), p=sizes / sizes.sum())]
    return [group[i] for i in rng.choice(len(group), min(count, len(group)), replace=False)]
