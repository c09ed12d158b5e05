"""FastSpeech: symbols to a mel spectrogram, in the two halves that the host's length regulator lies between.

Ren et al. 2019 (arXiv 1905.09263), as in NVIDIA's example (DeepLearningExamples, CUDA-Optimized/FastSpeech,
fastspeech/model/fastspeech.py), with its names of parameters.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.models.fastspeech.networks.layers import FFTStack, WideNorm
from ane.models.fastspeech.text import SYMBOLS
from ane.system.errors import UserError

PADDINGS = ("exact", "published")
DURATION_KERNEL = 3     # fixed in NVIDIA's class, as its padding of 1 is


@dataclass(frozen=True)
class FastSpeechConfig(Config):
    """Sizes, named as the arguments of NVIDIA's class; its defaults (hparams/base.yaml) are the defaults.

    Attributes:
        max_seq_len: number of positions: the most symbols, and the most mel frames, of one pass.
        embeddings: rows of the symbol table.
        padding: "exact": masks between the convolutions, so a result does not depend on its padding; "published": none
            there, as in NVIDIA's class, whose results change near the end of a padded text.
    """

    max_seq_len: int = 2048
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
    embeddings: int = 149
    padding: str = "exact"

    def check(self, where: str) -> None:
        super().check(where)
        if self.padding not in PADDINGS:
            raise UserError(f"{where}: padding must be {' or '.join(PADDINGS)}, not {self.padding!r}")
        if self.fft_conv1d_kernel % 2 == 0:
            raise UserError(f"{where}: fft_conv1d_kernel must be odd, not {self.fft_conv1d_kernel}")
        if self.embeddings < len(SYMBOLS):
            raise UserError(f"{where}: it has embeddings for {self.embeddings} symbols, and English text needs "
                            f"{len(SYMBOLS)}: it was trained on other symbols, which this version does not know")


class DurationPredictor(nn.Module):
    """Encoder states (B, T, C), mask (B, T, 1) → log durations (B, T), 0 at padding."""

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
    """Repeats the states of symbols for their frames: (B, T, C), alignment (B, T, L) → (B, L, C), exactly.

    It has the duration predictor under its official name. ``ane.models.durations`` makes the alignment.
    """

    def __init__(self, width: int, filters: int, exact: bool):
        super().__init__()
        self.duration_predictor = DurationPredictor(width, filters, exact)

    def forward(self, states: Tensor, alignment: Tensor) -> Tensor:
        return alignment.transpose(1, 2) @ states


class FastSpeech(nn.Module):
    def __init__(self, config: FastSpeechConfig):
        super().__init__()
        self.config = config
        exact = config.padding == "exact"
        self.word_emb = nn.Embedding(config.embeddings, config.d_model)
        self.phoneme_side = FFTStack(config.phoneme_side_n_layer, config.d_model, config.phoneme_side_head,
                                     config.phoneme_side_conv1d_filter_size, config.fft_conv1d_kernel, exact)
        self.length_regulator = LengthRegulator(config.d_model, config.duration_predictor_filter_size, exact)
        self.mel_side = FFTStack(config.mel_side_n_layer, config.d_model, config.mel_side_head,
                                 config.mel_side_conv1d_filter_size, config.fft_conv1d_kernel, exact)
        self.mel_linear = nn.Linear(config.d_model, config.n_mels)

    def text(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The text side: ids (B, T) int64, mask (B, T) → (B, T, C + 1): encoder states, then the log durations."""
        mask = mask[..., None]
        states = self.phoneme_side(self.word_emb(ids), mask)
        log_durations = self.length_regulator.duration_predictor(states, mask)
        return torch.cat([states, log_durations[..., None]], dim=-1)

    def mel(self, states: Tensor, alignment: Tensor, mask: Tensor) -> Tensor:
        """The mel side: states (B, T, C), alignment (B, T, L), mask (B, L) → mel (B, M, L), natural logarithms.

        Frame l is symbol t's where ``alignment`` is 1. Frames outside the mask are the bias of ``mel_linear``.
        """
        regulated = self.length_regulator(states, alignment)
        return self.mel_linear(self.mel_side(regulated, mask[..., None])).transpose(1, 2)
