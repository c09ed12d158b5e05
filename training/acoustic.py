"""Training of the fast voice's FastSpeech: mel, durations, and what each letter sounds like.

The teacher states every duration, so none is learned from an alignment of the network's own. The mel side is trained on
the teacher's durations at speeds from half to twice, the duration predictor on those at normal speed. A layer used in
training only predicts the phonemes of each letter, in the clips and in strings of words from a lexicon that is larger
than the clips' vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.models.fastspeech.networks.acoustic import FastSpeech, FastSpeechConfig
from ane.models.fastspeech.networks.layers import joined_heads
from ane.models.fastspeech.regulator import alignment_matrix, length_mask
from ane.models.fastspeech.text import IDS
from training.clips import Batches, pad_rows
from training.symbols import NO_SOUND, Symbol, TeacherLexicon, timed_symbols, with_phonemes
from training.timed_speech import TimedClip, load_timed_shard
from training.trained_mel import BANDS
from training.trainer import PartSchedule, Trainer

FRAMES_PER_BATCH = 1000
LETTERS_PER_BATCH = 400         # of the strings of words
STRING_WORDS = 6
JOINED = (1, 1, 1, 2, 3, 4)     # clips of a text; joined ones are as long as the chunks of long texts
SLOW, SLOW_REPEATS = 1.5, 4     # clips slower than this come so often in an epoch: few are, and they are the hardest
DURATION_WEIGHT, SOUND_WEIGHT = 0.5, 0.2


class UnfusedAttention(nn.Module):
    """``HeadAttention`` without the fused kernel, whose gradient is slower on a CPU."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + bias.to(q.dtype)
        return joined_heads(torch.softmax(scores, dim=-1, dtype=scores.dtype) @ v)


class FastSpeechInTraining(nn.Module):
    """FastSpeech, which is published, and the layer that predicts the sounds of letters."""

    def __init__(self, config: FastSpeechConfig, sounds: int):
        super().__init__()
        self.network, self.sounds = FastSpeech(config), nn.Linear(config.d_model, sounds)
        for block in (*self.network.phoneme_side.layer_stack, *self.network.mel_side.layer_stack):
            block.slf_attn.attention = UnfusedAttention()
        nn.init.normal_(self.network.word_emb.weight, std=0.3)
        with torch.no_grad():
            self.network.mel_linear.bias.fill_(-5.0)        # about the mean of the mels

    def sound_loss(self, states: Tensor, sounds: Tensor) -> Tensor:
        return F.cross_entropy(self.sounds(states).flatten(0, 1).float(), sounds.flatten(), ignore_index=NO_SOUND)


@dataclass
class AcousticBatch:
    """Padded texts.

    Attributes:
        ids, frames, sounds: (B, T) int64. mask: (B, T). mel: (B, L, M), padded. mel_mask: (B, L).
        normal: (B, T): 1 where the durations are those of normal speed.
    """

    ids: Tensor
    frames: Tensor
    sounds: Tensor
    mask: Tensor
    mel: Tensor
    mel_mask: Tensor
    normal: Tensor


@dataclass
class AcousticData:
    """Clips with their symbols, and batches of them."""

    clips: Sequence[TimedClip]
    lexicon: TeacherLexicon
    positions: int

    @cached_property
    def symbols(self) -> list[list[Symbol]]:
        return [timed_symbols(clip, self.lexicon) for clip in self.clips]

    def batch(self, indices: Sequence[int], rng: np.random.Generator, varied: bool = True) -> AcousticBatch:
        """A batch of clips. ``varied``: some words are given as phonemes, and several clips may be one text."""
        longest = max(len(self.clips[index].mel) for index in indices)
        most = max(1, min(self.positions // longest, len(indices)))
        joined = min(int(rng.choice(JOINED)), most) if varied else 1
        groups = [indices[start:start + joined] for start in range(0, len(indices) - joined + 1, joined)]
        rows, mels, normal = [], [], []
        for group in groups:
            row: list[Symbol] = []
            natural: list[int] = []
            for index in group:
                clip = self.clips[index]
                part = with_phonemes(self.symbols[index], clip, rng) if varied else self.symbols[index]
                if row:
                    row.append(Symbol(IDS[" "], -1, 0, NO_SOUND))
                row += part
                natural += [int(clip.stretch == 1.0)] * (len(row) - len(natural))
            rows.append(row)
            normal.append(np.array(natural))
            mels.append(np.concatenate([self.clips[index].mel for index in group]))
        lengths, frames = np.array([len(row) for row in rows]), np.array([len(mel) for mel in mels])
        mel = np.zeros((len(mels), frames.max(), BANDS), np.float32)
        for place, part in zip(mel, mels, strict=True):
            place[:len(part)] = part
        ids, counts, sounds = (pad_rows([np.array([getattr(symbol, name) for symbol in row]) for row in rows], fill)
                               for name, fill in (("id", 0), ("frames", 0), ("sound", NO_SOUND)))
        return AcousticBatch(ids, counts, sounds, torch.from_numpy(length_mask(lengths, int(lengths.max()))),
                             torch.from_numpy(mel), torch.from_numpy(length_mask(frames, int(frames.max()))),
                             pad_rows(normal, 0).float())

    def strings(self, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Strings of words: ids and sounds (B, T), mask (B, T)."""
        examples, draws = self.lexicon.examples, rng.random((LETTERS_PER_BATCH // 40, STRING_WORDS))
        chosen = np.searchsorted(self.lexicon.weights, draws * self.lexicon.weights[-1])
        rows = [[], []]
        for words in chosen:
            ids: list[int] = []
            sounds: list[int] = []
            for word in words:
                letters, spoken = examples[word]
                ids += [*([IDS[" "]] if ids else []), *letters]
                sounds += [*([NO_SOUND] if sounds else []), *spoken]
            rows[0].append(np.array(ids))
            rows[1].append(np.array(sounds))
        lengths = np.array([len(row) for row in rows[0]])
        return (pad_rows(rows[0], 0), pad_rows(rows[1], NO_SOUND),
                torch.from_numpy(length_mask(lengths, int(lengths.max()))))


def losses_of(module: FastSpeechInTraining, batch: AcousticBatch) -> dict[str, Tensor]:
    """Mean distance of the mel's natural logarithms, squared distance of log durations, entropy of the sounds."""
    states = module.network.encode(batch.ids, batch.mask)
    log_durations, states = states[..., -1].float(), states[..., :-1]
    alignment = torch.from_numpy(alignment_matrix(batch.frames.cpu().numpy(), batch.mel.shape[1])).to(states)
    mel = module.network.decode(states, alignment, batch.mel_mask).transpose(1, 2).float()
    distance = (mel - batch.mel).abs().mean(dim=2)
    durations = (log_durations - torch.log(batch.frames.float() + 1)) ** 2
    return {"mel": (distance * batch.mel_mask).sum() / batch.mel_mask.sum(),
            "durations": (durations * batch.normal).sum() / batch.normal.sum().clamp(min=1),
            "sounds": module.sound_loss(states, batch.sounds)}


@torch.no_grad()
def predicted_mel(network: FastSpeech, symbols: Sequence[Symbol]) -> np.ndarray:
    """The mel (L, M) float32 of a text with the teacher's durations."""
    device = network.mel_linear.weight.device
    ids, frames = (torch.tensor([[getattr(symbol, name) for symbol in symbols]], device=device)
                   for name in ("id", "frames"))
    states = network.encode(ids, torch.ones(ids.shape, device=device))[..., :-1]
    alignment = torch.from_numpy(alignment_matrix(frames.cpu().numpy(), int(frames.sum()))).to(states)
    mel = network.decode(states, alignment, torch.ones(1, alignment.shape[2], device=device))
    return mel[0].T.cpu().numpy()


def train_fastspeech(folder: Path, config: FastSpeechConfig, shards: Sequence[Path], validation: Sequence[Path],
                     lexicon: TeacherLexicon, schedule: PartSchedule, device: str) -> FastSpeech:
    torch.manual_seed(schedule.seed)
    module = FastSpeechInTraining(config, len(lexicon.sounds))
    trainer = Trainer(folder, module, schedule, device)
    if trainer.finished:
        return module.network.eval()
    data, held_back = (AcousticData([clip for shard in part for clip in load_timed_shard(shard, sound=False)], lexicon,
                                    config.max_seq_len) for part in (shards, validation))
    drawn = [index for index, clip in enumerate(data.clips) for _ in range(SLOW_REPEATS if clip.stretch > SLOW else 1)]
    batches = Batches([len(data.clips[index].mel) for index in drawn], FRAMES_PER_BATCH, schedule.seed)

    def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        rng = np.random.default_rng([schedule.seed, index])
        batch = on(device, data.batch([drawn[place] for place in batches[index]], rng))
        ids, sounds, mask = (part.to(device) for part in data.strings(rng))
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            losses = losses_of(module, batch)
            words = module.sound_loss(module.network.encode(ids, mask)[..., :-1], sounds)
        total = (losses["mel"] + DURATION_WEIGHT * losses["durations"]
                 + SOUND_WEIGHT * (losses["sounds"] + words))
        return {"loss": total, **losses, "words": words}

    def validate() -> dict[str, float]:
        rng = np.random.default_rng(schedule.seed)
        normal = [index for index, clip in enumerate(held_back.clips) if clip.stretch == 1.0][:64]
        losses = losses_of(module, on(device, held_back.batch(normal, rng, varied=False)))
        return {f"{name}, validation": float(value) for name, value in losses.items()}

    trainer.run(step, validate)
    return module.network.eval()


def on(device: str, batch: AcousticBatch) -> AcousticBatch:
    return AcousticBatch(**{name: value.to(device) for name, value in vars(batch).items()})
