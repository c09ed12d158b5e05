"""Train the autoregressive decoder, which predicts the next code of the sequence voice, text, codes.

Three choices make the decoder learn within an hour on a CPU:

1. The position tables start as sinusoids in which code j has the position of the text that it probably speaks. In some
   layers, one head starts with weights that attend to equal positions.
2. Some input codes are masked, at a rate that is drawn for each batch. So the decoder cannot predict from codes alone.
3. Small networks predict the mel and the pitch of each code from the latents (the hidden states), which are the input
   of the vocoders and of the denoiser. Latents depend on the text, so they can hold more of the sound than codes.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ane.models.tortoise.networks.autoregressive import UnifiedVoice, UnifiedVoiceConfig
from training.pitch import MIDDLE
from training.quantiser import ENVELOPE_WEIGHT, Quantiser
from training.speech import Batches, Clip, Shard, load_mels
from training.trainer import TrainedPart, Trainer, fast_autocast

TEXT_WEIGHT, MEL_WEIGHT = 0.01, 1.0
OCTAVE_WEIGHT, VOICING_WEIGHT = 4.0, 1.0
MAX_MASKED = 0.30  # at most this share of the input codes of a batch is masked
DROPOUT = 0.05
SILENT_CODES = 4  # number of silence codes after the stop code, as in the pipeline's input
ALIGNED_LAYERS = (1, 2, 3)  # layers whose first head starts with weights that attend to equal positions
MEL_WIDTH = 256  # hidden width of the network that predicts mels
FRAMES, BANDS = 4, 80  # frames and bands of the mel of one code


class DecoderInTraining(nn.Module):
    """The decoder, a latent for each voice, and small networks that predict text, mel and pitch during training."""

    def __init__(self, config: UnifiedVoiceConfig, voices: int, characters_per_code: float):
        super().__init__()
        self.config = config
        self.network = UnifiedVoice(config)
        self.voices = nn.Parameter(torch.zeros(voices, config.model_dim))
        self.text_head = nn.Linear(config.model_dim, config.number_text_tokens + 1)
        self.initialise(characters_per_code)
        self.mel_predictor = nn.Sequential(
            nn.Conv1d(config.model_dim, MEL_WIDTH, 3, padding=1), nn.GELU(), nn.Conv1d(MEL_WIDTH, FRAMES * BANDS, 1)
        )
        self.pitch_predictor = nn.Linear(config.model_dim, 2 * FRAMES)  # octaves above MIDDLE, and whether voiced

    @torch.no_grad()
    def initialise(self, characters_per_code: float) -> None:
        """Set the initial weights, which assume that a code speaks ``characters_per_code`` characters of the text."""
        D, layers, heads = self.config.model_dim, self.config.layers, self.config.heads
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if "c_proj" in name else D**-0.5)
            elif "ln_" in name or "norm" in name:
                nn.init.constant_(parameter, float(name.endswith("weight")))
            else:
                nn.init.zeros_(parameter)
        width = D // heads  # width of a head
        for table in (self.network.text_embedding, self.network.mel_embedding):
            nn.init.normal_(table.weight, std=0.3)
            table.weight[:, :width] *= 0.1  # keeps these channels for the positions
        nn.init.normal_(self.voices, std=0.3)
        positions = self.network.text_pos_embedding.emb.weight
        positions[:, :width] = sinusoids(torch.arange(len(positions)).float(), width)
        positions = self.network.mel_pos_embedding.emb.weight
        positions[:, :width] = sinusoids(torch.arange(len(positions)) * characters_per_code, width)
        for layer in ALIGNED_LAYERS:
            if layer < layers:
                weight = self.network.gpt.h[layer].attn.c_attn.weight  # (in, q k v)
                weight[:, :width] = weight[:, D : D + width] = 0
                weight[:width, :width] = weight[:width, D : D + width] = torch.eye(width)

    def forward(self, tokens: Tensor, positions: Tensor, dropout: float = 0.0) -> Tensor:
        """Compute the hidden states (B, T, D) of sequences from ``training_sequence``.

        Args:
            tokens: Rows of the joined token table, (B, T).
            positions: Rows of the joined position table, (B, T).
            dropout: Dropout of the input.
        """
        net = self.network
        zero = self.voices.new_zeros(1, self.config.model_dim)
        token_table = torch.cat((net.text_embedding.weight, net.mel_embedding.weight, self.voices, zero))
        position_table = torch.cat((net.text_pos_embedding.emb.weight, net.mel_pos_embedding.emb.weight, zero))
        x = F.embedding(tokens, token_table) + F.embedding(positions, position_table)
        return net(F.dropout(x, dropout, self.training), [unfused_attention] * self.config.layers)

    def predict_mel(self, hidden: Tensor) -> Tensor:
        """Predict the mels of codes: hidden (B, T, D) → (B, T, FRAMES, BANDS), in standard deviations from the mean."""
        return self.mel_predictor(hidden.transpose(1, 2)).transpose(1, 2).unflatten(2, (FRAMES, BANDS))


def unfused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention of (B, heads, T, width). torch's fused kernel would be slower for gradients on a CPU."""
    future = torch.full((q.shape[2], k.shape[2]), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + future
    return torch.softmax(scores, dim=-1).to(v.dtype) @ v


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Compute cosines and sines of positions, with periods from 6 to 600 positions: (P,) → (P, width)."""
    periods = 6 * 100 ** torch.linspace(0, 1, width // 2)
    angle = positions[:, None] * (2 * torch.pi / periods)
    return torch.cat((angle.cos(), angle.sin()), dim=1)


def training_sequence(clip: Clip, config: UnifiedVoiceConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return the decoder's input and targets for a clip.

    An input is a row of the joined token table plus a row of the joined position table. The joined token table has rows
    for text tokens, codes and voices, then a row of zeros. The joined position table has rows for positions of the
    text and positions of the codes, then a row of zeros.

    Returns:
        Rows of the token table (T,), rows of the position table (T,), targets (T,), and the index in the sequence at
        which the start code is. A target is a text token, or a code plus the number of text tokens, or -1 for none.
    """
    tokens = config.number_text_tokens + 1
    no_position = config.text_positions + config.code_positions
    text = [config.start_text_token, *clip.text, config.stop_text_token, config.stop_text_token]
    codes = np.concatenate((clip.codes, np.full(SILENT_CODES, config.calm_token)))
    rows = np.concatenate(
        ([tokens + config.number_mel_codes + clip.voice], text, [tokens + config.start_mel_token], tokens + codes)
    )
    positions = np.concatenate(([no_position], np.arange(len(text)), config.text_positions + np.arange(len(codes) + 1)))
    targets = np.concatenate(
        (
            [-1],
            text[1:],
            [-1],
            tokens + clip.codes,
            [tokens + config.stop_mel_token],
            np.full(SILENT_CODES, tokens + config.calm_token),
        )
    )
    return rows, positions, targets, 1 + len(text)


@dataclass
class DecoderObjective:
    """Computes the losses of the decoder, for training steps and for validation.

    Attributes:
        model: The decoder.
        quantiser: The quantiser, on the same device as the model.
        targets: For each shard, the mel (L, 80) and the pitch (L,) of each clip.
        clips: Clips to train on.
        validation: Other clips, for validation.
        batches: Batches of ``clips``.
        seed: Seed of the random choices.
        device: Torch device.
    """

    model: DecoderInTraining
    quantiser: Quantiser
    targets: Mapping[Path, Sequence[tuple[np.ndarray, np.ndarray]]]
    clips: Sequence[Clip]
    validation: Sequence[Clip]
    batches: Batches
    seed: int
    device: str

    def losses(
        self, clips: Sequence[Clip], masked: float = 0.0, dropout: float = 0.0, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Compute the losses of some clips, by name. ``masked`` is the share of the input codes to mask."""
        model, config = self.model, self.model.config
        tokens = config.number_text_tokens + 1
        zero_row = tokens + config.number_mel_codes + len(model.voices)
        no_position = config.text_positions + config.code_positions
        sequences = [training_sequence(clip, config) for clip in clips]
        rows, positions, targets = (
            pad_sequence(
                [torch.from_numpy(sequence[part]) for sequence in sequences], batch_first=True, padding_value=fill
            )
            for part, fill in ((0, zero_row), (1, no_position), (2, -1))
        )
        if masked:
            is_code = (rows >= tokens) & (rows < tokens + config.start_mel_token)
            rows[is_code & (torch.rand(rows.shape, generator=generator) < masked)] = zero_row
        rows, positions, targets = (part.to(self.device) for part in (rows, positions, targets))
        with fast_autocast(self.device):
            hidden = model(rows, positions, dropout)
            is_code, is_text = targets >= tokens, (targets >= 0) & (targets < tokens)
            code_loss = F.cross_entropy(model.network.mel_head(hidden[is_code]).float(), targets[is_code] - tokens)
            text_loss = F.cross_entropy(model.text_head(hidden[is_text]).float(), targets[is_text])
            has_mel = is_code & (targets < tokens + config.calm_token)
            mel, pitch = (
                torch.from_numpy(np.concatenate(parts)).to(self.device)
                for parts in zip(*(self.targets[clip.shard][clip.index] for clip in clips), strict=True)
            )
            error, envelope = self.quantiser.errors(model.predict_mel(hidden)[has_mel].float().flatten(0, 1).T, mel.T)
            octaves, voicing = self.pitch_losses(model.pitch_predictor(hidden[has_mel]).float(), pitch)
        return {
            "loss": code_loss
            + TEXT_WEIGHT * text_loss
            + MEL_WEIGHT * (error + ENVELOPE_WEIGHT * envelope)
            + OCTAVE_WEIGHT * octaves
            + VOICING_WEIGHT * voicing,
            "codes": code_loss,
            "envelope error": envelope,
            "pitch error, octaves": octaves,
        }

    @staticmethod
    def pitch_losses(prediction: Tensor, pitch: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean pitch error of voiced frames in octaves, and the cross-entropy of the voicing.

        Args:
            prediction: Predictions for n codes, (n, 2·FRAMES): first octaves above MIDDLE, then logits of voicing.
            pitch: True pitch in Hz, 0 in unvoiced frames, (n·FRAMES,).
        """
        octaves, voicing = (half.flatten() for half in prediction.unflatten(1, (2, FRAMES)).unbind(1))
        voiced = pitch > 0
        errors = (octaves - torch.log2(pitch.clamp(min=1) / MIDDLE)).abs()
        return (
            (errors * voiced).sum() / voiced.sum().clamp(min=1),
            F.binary_cross_entropy_with_logits(voicing, voiced.float()),
        )

    def step(self, index: int, generator: torch.Generator) -> dict[str, Tensor]:
        torch.manual_seed(self.seed * 1_000_003 + index)  # dropout uses torch's global generator
        masked = MAX_MASKED * float(torch.rand((), generator=generator))
        return self.losses([self.clips[i] for i in self.batches[index]], masked, DROPOUT, generator)

    def validate(self) -> dict[str, float]:
        batches = [self.losses(self.validation[start : start + 32]) for start in range(0, len(self.validation), 32)]
        return {
            f"{name}, validation": float(torch.stack([losses[name] for losses in batches]).mean())
            for name in ("codes", "envelope error", "pitch error, octaves")
        }


def train_decoder(
    part: TrainedPart,
    config: UnifiedVoiceConfig,
    clips: Sequence[Clip],
    validation: Sequence[Clip],
    voices: int,
    quantiser: Quantiser,
) -> DecoderInTraining:
    schedule = part.schedule
    torch.manual_seed(schedule.seed)
    characters_per_code = sum(len(clip.text) for clip in clips) / sum(len(clip.codes) for clip in clips)
    model = DecoderInTraining(config, voices, characters_per_code)
    trainer = Trainer(model, part)
    if trainer.finished:
        return trainer.result()
    paths = {clip.shard for clip in (*clips, *validation)}
    targets = {path: list(zip(load_mels(path), Shard.load(path).pitches, strict=True)) for path in paths}
    lengths = [len(clip.text) + len(clip.codes) + 5 + SILENT_CODES for clip in clips]
    objective = DecoderObjective(
        model,
        copy.deepcopy(quantiser).to(part.device),
        targets,
        clips,
        validation,
        Batches(lengths, schedule.batch, schedule.seed),
        schedule.seed,
        part.device,
    )
    trainer.run(objective.step, objective.validate)
    return trainer.result()
