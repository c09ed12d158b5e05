"""Whisper's encoder: the log-mel spectrogram of a window to one state for each 20 ms (openai/whisper model.py)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.models.whisper.networks.layers import WhisperAttention, attend_to_all, feed_forward


@dataclass(frozen=True)
class WhisperEncoderConfig(Config):
    """Sizes of the encoder under OpenAI's names; the defaults are those of "base"."""

    n_mels: int = 80
    n_audio_ctx: int = 1500         # states of a window; the spectrogram has twice as many frames
    n_audio_state: int = 512
    n_audio_head: int = 8
    n_audio_layer: int = 6

    split_widths: ClassVar = (("n_audio_state", "n_audio_head"),)


class WhisperEncoderBlock(nn.Module):
    """Pre-norm transformer block; the residual stream is float32."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attn = WhisperAttention(width, heads)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = feed_forward(width)
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x), attend_to_all)
        return x + self.mlp(self.mlp_ln(x))


class WhisperEncoder(nn.Module):
    """Mel (B, n_mels, 2 · n_audio_ctx) → states (B, n_audio_ctx, n_audio_state) float32.

    ``positional_embedding`` holds sinusoids; checkpoints store them, so they are loaded and not computed.
    """

    def __init__(self, config: WhisperEncoderConfig):
        super().__init__()
        self.config = config
        D = config.n_audio_state
        self.conv1 = nn.Conv1d(config.n_mels, D, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(D, D, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positional_embedding", torch.empty(config.n_audio_ctx, D))
        self.blocks = nn.ModuleList(WhisperEncoderBlock(D, config.n_audio_head) for _ in range(config.n_audio_layer))
        self.ln_post = nn.LayerNorm(D)

    def forward(self, mel: Tensor) -> Tensor:
        """Raises ValueError when the mel has another number of frames."""
        if mel.shape[-1] != 2 * self.config.n_audio_ctx:
            raise ValueError(f"mel must have {2 * self.config.n_audio_ctx} frames, got {mel.shape[-1]}")
        x = F.gelu(self.conv1(mel.to(self.conv1.weight.dtype)))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        x = x.float() + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)
