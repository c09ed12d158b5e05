"""Define CLVP, which scores how well codes match a text (upstream models/clvp.py).

The score is the dot product of two vectors. The vector of the codes has length 1, and the vector of the text has length
exp(temperature).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.models.tortoise.networks.layers import RotaryEncoder


@dataclass(frozen=True)
class CLVPConfig(Config):
    dim_text: int = 768
    dim_speech: int = 768
    dim_latent: int = 768
    num_text_tokens: int = 256
    text_enc_depth: int = 20
    text_heads: int = 12
    num_speech_tokens: int = 8192
    speech_enc_depth: int = 20
    speech_heads: int = 12


class Encoder(nn.Module):
    """A transformer, followed by a mean over time: (B, T, width) → (B, width)."""

    def __init__(self, width: int, depth: int, heads: int):
        super().__init__()
        self.transformer = RotaryEncoder(width, depth, heads)

    def forward(self, x: Tensor) -> Tensor:
        return self.transformer(x).mean(dim=1)


class CLVP(nn.Module):
    packs_layers = True  # whether the CPU backend may pack the weights of linear layers, for bf16 and int8

    def __init__(self, config: CLVPConfig):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.text_emb = nn.Embedding(config.num_text_tokens, config.dim_text)
        self.text_transformer = Encoder(config.dim_text, config.text_enc_depth, config.text_heads)
        self.to_text_latent = nn.Linear(config.dim_text, config.dim_latent, bias=False)
        self.speech_emb = nn.Embedding(config.num_speech_tokens, config.dim_speech)
        self.speech_transformer = Encoder(config.dim_speech, config.speech_enc_depth, config.speech_heads)
        self.to_speech_latent = nn.Linear(config.dim_speech, config.dim_latent, bias=False)

    def text_latent(self, tokens: Tensor) -> Tensor:
        """Encode token ids (B, T) to vectors (B, E) that are not normalised."""
        return self.to_text_latent(self.text_transformer(self.text_emb(tokens)))

    def speech_latent(self, codes: Tensor) -> Tensor:
        """Encode codes (B, S) to vectors (B, E) that are not normalised."""
        return self.to_speech_latent(self.speech_transformer(self.speech_emb(codes)))

    def text(self, tokens: Tensor) -> Tensor:
        """Encode token ids (B, T) to vectors (B, E) float32 of length exp(temperature)."""
        return F.normalize(self.text_latent(tokens).float(), dim=-1) * self.temperature.float().exp()

    def speech(self, codes: Tensor) -> Tensor:
        """Encode codes (B, S) to unit vectors (B, E) float32."""
        return F.normalize(self.speech_latent(codes).float(), dim=-1)
