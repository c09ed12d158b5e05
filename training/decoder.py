"""The autoregressive decoder: [voice][text][codes], trained to predict the next code, and the text a little.

What makes it learn to read in an hour on a CPU: position tables that begin as sinusoids in which code j stands where
the text that it speaks is expected, and heads that begin by comparing exactly those; codes are masked at a rate drawn
for each batch, so that it cannot lean on the codes alone. Its latents, from which sound is made, must also tell the mel
that the codes stand for: they know the text, so they can tell more of it than the codes do.
"""

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.models.tortoise.networks.autoregressive import UnifiedVoice, UnifiedVoiceConfig
from training.clips import Batches, Clip, padded
from training.loop import Begin, Plan, Training
from training.quantiser import SHAPE, Quantiser
from training.speech import load_mels

COLUMNS = 1500              # of a batch
TEXT_WEIGHT, SOUND_WEIGHT = 0.01, 1.0
MASKED = 0.30               # highest share of codes that a batch hides
DROPOUT = 0.05
CALM = 4                    # silent codes after the stop, which the pipeline puts there too
DIAGONAL_LAYERS = (1, 2, 3)
TOLD = 256                  # width of the head that tells the mel
FRAMES, BANDS = 4, 80       # of a code


class DecoderInTraining(nn.Module):
    """The decoder, a conditioning latent for each teacher, and the heads that predict text and tell the mel."""

    def __init__(self, config: UnifiedVoiceConfig, voices: int, characters_per_code: float):
        super().__init__()
        self.config = config
        self.network = UnifiedVoice(config)
        self.voices = nn.Parameter(torch.zeros(voices, config.model_dim))
        self.text_head = nn.Linear(config.model_dim, config.number_text_tokens + 1)
        self.start(characters_per_code)
        self.mel_teller = nn.Sequential(nn.Conv1d(config.model_dim, TOLD, 3, padding=1), nn.GELU(),
                                        nn.Conv1d(TOLD, FRAMES * BANDS, 1))

    @torch.no_grad()
    def start(self, characters_per_code: float) -> None:
        D, layers, heads = self.config.model_dim, self.config.layers, self.config.heads
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if "c_proj" in name else D ** -0.5)
            elif "ln_" in name or "norm" in name:
                nn.init.constant_(parameter, float(name.endswith("weight")))
            else:
                nn.init.zeros_(parameter)
        width = D // heads                          # of a head
        for table in (self.network.text_embedding, self.network.mel_embedding):
            nn.init.normal_(table.weight, std=0.3)
            table.weight[:, :width] *= 0.1          # room for the positions
        nn.init.normal_(self.voices, std=0.3)
        positions = self.network.text_pos_embedding.emb.weight
        positions[:, :width] = sinusoids(torch.arange(len(positions)).float(), width)
        positions = self.network.mel_pos_embedding.emb.weight
        positions[:, :width] = sinusoids(torch.arange(len(positions)) * characters_per_code, width)
        for layer in DIAGONAL_LAYERS:
            if layer < layers:
                weight = self.network.gpt.h[layer].attn.c_attn.weight       # (in, q k v)
                weight[:, :width] = weight[:, D:D + width] = 0
                weight[:width, :width] = weight[:width, D:D + width] = torch.eye(width)

    def forward(self, columns: Tensor, positions: Tensor, dropout: float = 0.0) -> Tensor:
        """Rows of the joined tables (B, T) and their positions' → hidden (B, T, D). See ``columns_of``."""
        net = self.network
        nothing = self.voices.new_zeros(1, self.config.model_dim)
        table = torch.cat((net.text_embedding.weight, net.mel_embedding.weight, self.voices, nothing))
        places = torch.cat((net.text_pos_embedding.emb.weight, net.mel_pos_embedding.emb.weight, nothing))
        x = F.embedding(columns, table) + F.embedding(positions, places)
        return net(F.dropout(x, dropout, self.training), [written_out] * self.config.layers)

    def told(self, hidden: Tensor) -> Tensor:
        """Hidden (B, T, D) → the mel that the codes predicted there stand for: (B, T, FRAMES, BANDS), in deviations
        from the mean."""
        return self.mel_teller(hidden.transpose(1, 2)).transpose(1, 2).unflatten(2, (FRAMES, BANDS))


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention (B, heads, T, width) with its scores written out: on a CPU its gradient is a quarter faster
    than that of the fused kernel, at these lengths."""
    ahead = torch.full((q.shape[2], k.shape[2]), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + ahead
    return torch.softmax(scores, dim=-1).to(v.dtype) @ v


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """(P,) → (P, width): cosines and sines of periods from 6 to 600 positions."""
    periods = 6 * 100 ** torch.linspace(0, 1, width // 2)
    angle = positions[:, None] * (2 * torch.pi / periods)
    return torch.cat((angle.cos(), angle.sin()), dim=1)


def columns_of(clip: Clip, config: UnifiedVoiceConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The sequence of a clip: rows of the joined tables, rows of the joined positions, what each column is to predict
    (codes shifted by the number of text tokens; -1: nothing), and the index of the first code's column.

    The joined table holds text tokens, codes, voices and a last row of zeros; the positions text, codes and a zero.
    """
    tokens = config.number_text_tokens + 1
    nowhere = config.text_positions + config.code_positions
    text = [config.start_text_token, *clip.text, config.stop_text_token, config.stop_text_token]
    codes = np.concatenate((clip.codes, np.full(CALM, config.calm_token)))
    columns = np.concatenate(([tokens + config.number_mel_codes + clip.voice], text, [tokens + config.start_mel_token],
                              tokens + codes))
    positions = np.concatenate(([nowhere], np.arange(len(text)), config.text_positions + np.arange(len(codes) + 1)))
    predicted = np.concatenate(([-1], text[1:], [-1], tokens + clip.codes, [tokens + config.stop_mel_token],
                                np.full(CALM, tokens + config.calm_token)))
    return columns, positions, predicted, 1 + len(text)


def train_decoder(folder: Path, config: UnifiedVoiceConfig, clips: Sequence[Clip], check: Sequence[Clip], voices: int,
                  quantiser: Quantiser, plan: Plan, device: str, begin: Begin | None = None) -> DecoderInTraining:
    """``check``: clips that are not learned, whose errors go into the curve."""
    torch.manual_seed(plan.seed)
    rate = sum(len(clip.text) for clip in clips) / sum(len(clip.codes) for clip in clips)
    model = DecoderInTraining(config, voices, rate)
    training = Training(folder, model, plan, device, begin)
    if training.finished:
        return model.eval()
    mels = {path: load_mels(path) for path in {clip.shard for clip in (*clips, *check)}}
    ear = copy.deepcopy(quantiser).to(device)       # the caller's stays on the CPU
    batches = Batches([len(clip.text) + len(clip.codes) + 5 + CALM for clip in clips], COLUMNS, plan.seed)
    tokens = config.number_text_tokens + 1
    nothing = tokens + config.number_mel_codes + voices
    nowhere = config.text_positions + config.code_positions

    def mel_of(chosen: Sequence[Clip]) -> Tensor:
        """The mel of clips, one after the other: (80, frames)."""
        return torch.from_numpy(np.concatenate([mels[clip.shard][clip.index] for clip in chosen])).T

    def losses(chosen: Sequence[Clip], hide: float, dropout: float,
               generator: torch.Generator | None = None) -> dict[str, Tensor]:
        rows = [columns_of(clip, config) for clip in chosen]
        columns, positions, predicted = (padded([row[part] for row in rows], fill)
                                         for part, fill in ((0, nothing), (1, nowhere), (2, -1)))
        if hide:
            code = (columns >= tokens) & (columns < tokens + config.start_mel_token)
            columns[code & (torch.rand(columns.shape, generator=generator) < hide)] = nothing
        columns, positions, predicted = (part.to(device) for part in (columns, positions, predicted))
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            hidden = model(columns, positions, dropout)
            is_code, is_text = predicted >= tokens, (predicted >= 0) & (predicted < tokens)
            code_loss = F.cross_entropy(model.network.mel_head(hidden[is_code]).float(), predicted[is_code] - tokens)
            text_loss = F.cross_entropy(model.text_head(hidden[is_text]).float(), predicted[is_text])
            sounding = is_code & (predicted < tokens + config.calm_token)
            told = model.told(hidden)[sounding].float().flatten(0, 1)
            error, shape = ear.errors(told.T, mel_of(chosen).to(device))
        return {"loss": code_loss + TEXT_WEIGHT * text_loss + SOUND_WEIGHT * (error + SHAPE * shape),
                "codes": code_loss, "error of the shape": shape}

    def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        torch.manual_seed(plan.seed * 1_000_003 + index)        # of dropout
        hide = MASKED * float(torch.rand((), generator=generator))
        return losses([clips[i] for i in batches[index]], hide, DROPOUT, generator)

    def validate() -> dict[str, float]:
        few = [losses(check[start:start + 32], 0.0, 0.0) for start in range(0, len(check), 32)]
        return {f"{name}, unseen clips": float(torch.stack([one[name] for one in few]).mean())
                for name in ("codes", "error of the shape")}

    training.run(step, validate)
    return model.eval()
