"""Define FastSpeech, which predicts a mel spectrogram from symbols (Ren et al. 2019, arXiv 1905.09263).

The network has two halves, ``text`` and ``mel``. Between the two, the host computes the length regulator. The code
follows NVIDIA's example (DeepLearningExamples, CUDA-Optimized/FastSpeech, fastspeech/model/fastspeech.py). Its
parameters have the same names, so NVIDIA's state dict loads unchanged. Tensors are (B, T, C). ``mask`` is (B, T, 1),
with 1 at real positions and 0 at padding. ``NETWORKS`` also declares the HiFi-GAN vocoder.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.backends.base import MASKED
from ane.bundles.family import Config, Network
from ane.models.fastspeech.text import SYMBOLS
from ane.models.vocoders.hifigan import MelHifigan, MelHifiganConfig
from ane.system.errors import UserError

HEAD_WIDTH = 64  # width of a head's queries, keys and values, whatever the width of the model


class WideNorm(nn.LayerNorm):
    """Layer normalisation in float32, whatever the dtype of its input: (…, C) → (…, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


class HeadAttention(nn.Module):
    """Scaled dot-product attention with q, k and v (B, h, T, 64). Returns (B, T, h · 64).

    The layer adds ``bias`` (B, 1, 1, T) to the scores.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return joined_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=bias))


def joined_heads(heads: Tensor) -> Tensor:
    """Join the heads: (B, h, T, C) → (B, T, h · C)."""
    return heads.transpose(1, 2).flatten(2)


class Residual(nn.Module):
    """Adds a layer's output to its input. The sum is a module, so that `ane verify --layers` can name it."""

    def forward(self, output: Tensor, x: Tensor) -> Tensor:
        return output + x


class SelfAttention(nn.Module):
    """Multi-head self-attention with a residual connection and a norm: (B, T, C) → (B, T, C).

    The result is 0 at padding.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(width, heads * 3 * HEAD_WIDTH)  # output: for each head, q, then k, then v
        self.attention = HeadAttention()
        self.fc = nn.Linear(heads * HEAD_WIDTH, width)
        self.residual = Residual()
        self.layer_norm = WideNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.linear(x).view(B, T, self.heads, 3, HEAD_WIDTH).permute(3, 0, 2, 1, 4)  # each (B, h, T, 64)
        bias = (1 - mask).mul(MASKED).transpose(1, 2)[:, None]  # (B, 1, 1, T)
        return self.layer_norm(self.residual(self.fc(self.attention(q, k, v, bias)), x)) * mask


class ConvFeedForward(nn.Module):
    """Two convolutions with a ReLU between them, then a residual connection and a norm: (B, T, C) → (B, T, C).

    The result is 0 at padding. With ``exact``, the mask is also applied between the convolutions, so that padding does
    not change the result at real positions.
    """

    def __init__(self, width: int, inner: int, kernel: int, exact: bool):
        super().__init__()
        self.exact = exact
        self.w_1 = nn.Conv1d(width, inner, kernel, padding=kernel // 2)
        self.w_2 = nn.Conv1d(inner, width, kernel, padding=kernel // 2)
        self.residual = Residual()
        self.layer_norm = WideNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        inner = F.relu(self.w_1(x.transpose(1, 2)))  # (B, inner, T)
        if self.exact:
            inner = inner * mask.transpose(1, 2)
        return self.layer_norm(self.residual(self.w_2(inner).transpose(1, 2), x)) * mask


class FFTBlock(nn.Module):
    """Feed-forward Transformer block (Ren et al. 2019, arXiv 1905.09263, section 3.1)."""

    def __init__(self, width: int, heads: int, inner: int, kernel: int, exact: bool):
        super().__init__()
        self.slf_attn = SelfAttention(width, heads)
        self.pos_ffn = ConvFeedForward(width, inner, kernel, exact)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.pos_ffn(self.slf_attn(x, mask), mask)


class PositionEncoding(nn.Module):
    """Adds position encodings to x (B, T, C), except at padding."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + position_table(x.shape[1], x.shape[2]).to(x) * mask


class FFTStack(nn.Module):
    """Adds position encodings to x (B, T, C), then runs the blocks. Returns (B, T, C), with 0 at padding.

    The mask is (B, T, 1).
    """

    def __init__(self, layers: int, width: int, heads: int, inner: int, kernel: int, exact: bool):
        super().__init__()
        self.positions = PositionEncoding()
        self.layer_stack = nn.ModuleList(FFTBlock(width, heads, inner, kernel, exact) for _ in range(layers))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.positions(x, mask)
        for block in self.layer_stack:
            x = block(x, mask)
        return x


@lru_cache(maxsize=64)
def position_table(length: int, width: int) -> Tensor:
    """Compute the encodings of the positions from 1 to ``length``, (length, width) float32.

    Even channels have the sine, and odd channels the cosine, of the angle position / 10000^(2·⌊channel / 2⌋ / width).
    NVIDIA's checkpoints store this constant table after a row of zeros, which is for padding.
    """
    positions = torch.arange(1, length + 1, dtype=torch.float64)[:, None]
    channels = torch.arange(width) // 2 * 2
    angles = positions / 10000 ** (channels.double() / width)
    return torch.where(torch.arange(width) % 2 == 0, angles.sin(), angles.cos()).float()


PADDINGS = ("exact", "published")
DURATION_KERNEL = 3  # fixed in NVIDIA's class, like its padding of 1


@dataclass(frozen=True)
class FastSpeechConfig(Config):
    """Sizes of FastSpeech. Names and defaults are as in NVIDIA's class (hparams/base.yaml)."""

    max_seq_len: int = 2048  # largest number of symbols, and of mel frames, in one pass
    d_model: int = 384
    phoneme_side_n_layer: int = 6
    phoneme_side_head: int = 2
    phoneme_side_conv1d_filter_size: int = 1536
    mel_side_n_layer: int = 6
    mel_side_head: int = 2
    mel_side_conv1d_filter_size: int = 1536
    fft_conv1d_kernel: int = 3
    duration_predictor_filter_size: int = 256
    n_mels: int = 80
    embeddings: int = 149  # number of symbols that have an embedding
    # With "exact", the mask is applied between convolutions, so that the result does not depend on padding. With
    # "published", no mask is applied, as in NVIDIA's class, so padding changes the result near the end of a text.
    padding: str = "exact"

    def check(self, where: str) -> None:
        super().check(where)
        if self.padding not in PADDINGS:
            raise UserError(f"{where}: padding must be {' or '.join(PADDINGS)}, not {self.padding!r}")
        if self.fft_conv1d_kernel % 2 == 0:
            raise UserError(f"{where}: fft_conv1d_kernel must be odd, not {self.fft_conv1d_kernel}")
        if self.embeddings < len(SYMBOLS):
            raise UserError(
                f"{where}: the model has embeddings for {self.embeddings} symbols, but English text needs "
                f"{len(SYMBOLS)}: use a checkpoint that was trained on NVIDIA's symbols"
            )


class DurationPredictor(nn.Module):
    """Predicts log durations (B, T) from encoder states (B, T, C) and a mask (B, T, 1).

    The log durations are 0 at padding.
    """

    def __init__(self, width: int, filters: int, exact: bool):
        super().__init__()
        self.exact = exact
        self.conv1d_1 = nn.Conv1d(width, filters, DURATION_KERNEL, padding=1)
        self.layer_norm_1 = WideNorm(filters)
        self.conv1d_2 = nn.Conv1d(filters, filters, DURATION_KERNEL, padding=1)
        self.layer_norm_2 = WideNorm(filters)
        self.linear_layer = nn.Linear(filters, 1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        x = self.layer_norm_1(F.relu(self.conv1d_1(states.transpose(1, 2))).transpose(1, 2))
        if self.exact:
            x = x * mask
        x = self.layer_norm_2(F.relu(self.conv1d_2(x.transpose(1, 2))).transpose(1, 2))
        return (self.linear_layer(x) * mask)[..., 0]


class LengthRegulator(nn.Module):
    """Repeats each symbol's state for the symbol's frames, from states (B, T, C) and alignment (B, T, L) to (B, L, C).

    ``ane.models.durations`` makes the alignment. As in NVIDIA's class, this module also holds the duration predictor.
    """

    def __init__(self, width: int, filters: int, exact: bool):
        super().__init__()
        self.duration_predictor = DurationPredictor(width, filters, exact)

    def forward(self, states: Tensor, alignment: Tensor) -> Tensor:
        return alignment.transpose(1, 2) @ states


class FastSpeech(nn.Module):
    """FastSpeech. Call ``text``, compute the alignment on the host (``ane.models.durations``), then call ``mel``."""

    def __init__(self, config: FastSpeechConfig):
        super().__init__()
        self.config = config
        exact = config.padding == "exact"
        self.word_emb = nn.Embedding(config.embeddings, config.d_model)
        self.phoneme_side = FFTStack(
            config.phoneme_side_n_layer,
            config.d_model,
            config.phoneme_side_head,
            config.phoneme_side_conv1d_filter_size,
            config.fft_conv1d_kernel,
            exact,
        )
        self.length_regulator = LengthRegulator(config.d_model, config.duration_predictor_filter_size, exact)
        self.mel_side = FFTStack(
            config.mel_side_n_layer,
            config.d_model,
            config.mel_side_head,
            config.mel_side_conv1d_filter_size,
            config.fft_conv1d_kernel,
            exact,
        )
        self.mel_linear = nn.Linear(config.d_model, config.n_mels)

    def text(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Run the network up to the length regulator, on ids (B, T) int64 and a mask (B, T).

        Returns (B, T, C + 1): the encoder's states, then the log durations.
        """
        mask = mask[..., None]
        states = self.phoneme_side(self.word_emb(ids), mask)
        log_durations = self.length_regulator.duration_predictor(states, mask)
        return torch.cat([states, log_durations[..., None]], dim=-1)

    def mel(self, states: Tensor, alignment: Tensor, mask: Tensor) -> Tensor:
        """Run the network from the length regulator to the end. Returns a mel (B, M, L) of natural logarithms.

        Outside the mask, every frame is the bias of ``mel_linear``.

        Args:
            states: States of the symbols, (B, T, C).
            alignment: Matrix (B, T, L) that is 1 if frame l belongs to symbol t, and otherwise 0.
            mask: Mask of the frames, (B, L).
        """
        regulated = self.length_regulator(states, alignment)
        return self.mel_linear(self.mel_side(regulated, mask[..., None])).transpose(1, 2)


NETWORKS = {
    network.name: network
    for network in (
        Network(
            "fastspeech",
            FastSpeech,
            FastSpeechConfig,
            "the FastSpeech checkpoint",
            half_precision=True,
            for_speech=True,
        ),
        Network("vocoder", MelHifigan, MelHifiganConfig, "the HiFi-GAN checkpoint", for_speech=True),
    )
}
