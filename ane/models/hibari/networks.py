"""Define hibari's network, which predicts the spectra of a harmonic-plus-noise vocoder from phonemes.

The network has three parts, ``text``, ``prosody`` and ``spectra``, which the host connects. It is a FastSpeech (Ren et
al. 2019, arXiv 1905.09263) with pitch and energy (FastSpeech 2, arXiv 2006.04558) and ConvNeXt blocks (Liu et al. 2022,
arXiv 2201.03545, used for speech in Vocos, arXiv 2306.00814). Its structure and the names of its parameters are from
the package hibari-tts (Maureese Williams, Apache-2.0).

    phonemes ─ text ─> durations, states ─ prosody ─> f0, energy ─ spectra ─> spectra ─> harmonic_noise
                            at 40 Hz: states repeated        at 80 Hz: states repeated, f0, energy

Axes: B batch, T phonemes, S slow frames (40 Hz), L frames (80 Hz), C channels. ``mask`` is 1 at real positions and 0 at
padding. Padding does not change the result at a real position.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.backends.base import MASKED
from ane.models.hibari.config import PITCH_SCALE, PROSODY_DILATIONS, TEXT_CONVS, TEXT_KERNEL, HibariConfig
from ane.models.vocoders.convnext import FRAME_KERNEL, ConvNextBlock, FrameDecoder
from ane.models.vocoders.harmonic_noise import BINS, SPECTRA


class PackedAttention(nn.Module):
    """Self-attention with one projection for queries, keys and values.

    Its parameters have the names of ``nn.MultiheadAttention``.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Compute self-attention over x (B, T, C), with ``bias`` (B, 1, 1, T) added to the scores.

        Returns (B, T, C).
        """
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)  # each (B, h, T, C / h)
            for part in F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        )
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3) + bias  # (B, h, T, T)
        return self.out_proj((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class AttentionLayer(nn.Module):
    """A Transformer layer with pre-layer normalisation: (B, T, C) → (B, T, C)."""

    def __init__(self, width: int, inner: int, heads: int):
        super().__init__()
        self.self_attn = PackedAttention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, inner)
        self.linear2 = nn.Linear(inner, width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.self_attn(self.norm1(x), bias)
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class PhonemeEncoder(nn.Module):
    """Encodes phonemes (B, T) int64 to states (B, T, C). At padding, the mask (B, T, 1) and the states are 0.

    The encoder has one attention layer, which it applies ``repeats`` times.
    """

    def __init__(self, symbols: int, width: int, inner: int, heads: int, repeats: int):
        super().__init__()
        self.repeats = repeats
        self.emb = nn.Embedding(symbols, width)
        self.convs = nn.ModuleList(ConvNextBlock(width, inner, TEXT_KERNEL) for _ in range(TEXT_CONVS))
        self.attn = AttentionLayer(width, inner, heads)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.emb(ids) * mask  # (B, T, C)
        for block in self.convs:
            x = block(x, mask)
        bias = (1 - mask).mul(MASKED).transpose(1, 2)[:, None]  # (B, 1, 1, T)
        for _ in range(self.repeats):
            x = self.attn(x, bias)
        return self.norm(x) * mask


class ProsodyNet(nn.Module):
    """Predicts durations from phonemes, and f0 and energy from the phonemes' states.

    The caller of the network repeats each state for the predicted duration of its phoneme. From the repeated states,
    the network predicts f0 and energy.
    """

    def __init__(self, config: HibariConfig):
        super().__init__()
        width, inner = config.prosody_width, config.prosody_inner
        self.text = PhonemeEncoder(config.symbols, width, inner, config.heads, config.prosody_repeats)
        self.dur = nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, 1, 1))
        self.pro_in = nn.Conv1d(width, width, 1)
        self.pro = nn.ModuleList(ConvNextBlock(width, inner, FRAME_KERNEL, dilation) for dilation in PROSODY_DILATIONS)
        self.pro_out = nn.Conv1d(width, 4, 1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Predict f0 in Hz and energy (B, 2S, 2) from states (B, S, C) and their mask (B, S, 1)."""
        x = self.pro_in(states.transpose(1, 2)).transpose(1, 2) * mask
        for block in self.pro:
            x = block(x, mask)
        pairs = self.pro_out(x.transpose(1, 2)).transpose(1, 2)  # (B, S, 4): f0, f0, energy, energy
        prosody = pairs.unflatten(2, (2, 2)).transpose(2, 3).flatten(1, 2)  # (B, 2S, 2)
        return torch.cat([prosody[..., :1] * PITCH_SCALE, prosody[..., 1:]], dim=2)


class SpectrumDecoder(FrameDecoder):
    """The part of Hibari for the sound: a phoneme encoder, and a decoder that predicts spectra.

    The decoder takes the encoder's states, repeated for the frames of their phonemes, with log f0 and energy.
    """

    def __init__(self, config: HibariConfig):
        super().__init__(
            config.width + 2, config.decoder_width, config.decoder_inner, config.decoder_layers, SPECTRA * BINS
        )
        self.text = PhonemeEncoder(config.symbols, config.width, config.inner, config.heads, config.repeats)


class Hibari(nn.Module):
    def __init__(self, config: HibariConfig):
        super().__init__()
        self.config = config
        self.pn = ProsodyNet(config)
        self.m = SpectrumDecoder(config)

    def text(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Encode phonemes (B, T) int64 with a mask (B, T).

        Returns (B, T, C' + C + 1): the states for the prosody, the states for the sound, and the log durations.
        """
        mask = mask[..., None]
        states = self.pn.text(ids, mask)
        log_durations = self.pn.dur(states.transpose(1, 2)).transpose(1, 2)  # (B, T, 1)
        return torch.cat([states, self.m.text(ids, mask), log_durations * mask], dim=-1)

    def prosody(self, states: Tensor, mask: Tensor) -> Tensor:
        """Predict f0 in Hz and energy (B, 2S, 2) from repeated prosody states (B, S, C') and their mask (B, S)."""
        return self.pn(states, mask[..., None])

    def spectra(self, frames: Tensor, mask: Tensor) -> Tensor:
        """Decode frames (B, L, C + 2) with a mask (B, L) to spectra (B, L, 5 · 601).

        A frame consists of a state for the sound, log f0 and energy.
        """
        return self.m(frames, mask[..., None])
