"""Define DiffusionTts, the denoiser that turns latents into a spectrogram (upstream models/diffusion_decoder.py).

Inputs and outputs are (B, C, L). Inside, frames are packed and channels are last (``frames.py`` in this folder).
``code`` is the conditioning made from latents and voice (upstream: code_emb), not a mel code.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.models.tortoise.networks.frames import (
    FrameAttention,
    FrameConv,
    FrameNorm,
    Packing,
    PointwiseConv,
    pack,
    product,
)
from ane.system.errors import UserError

PREDICTIONS = ("epsilon", "v", "x0")  # of x = √ᾱ·x0 + √(1−ᾱ)·ε, with v = √ᾱ·ε − √(1−ᾱ)·x0


@dataclass(frozen=True)
class DiffusionConfig(Config):
    model_channels: int = 1024
    num_layers: int = 10
    in_channels: int = 100
    out_channels: int = 200  # channels of the prediction, then of the variance's interpolation
    in_latent_channels: int = 1024
    in_tokens: int = 8193
    num_heads: int = 16
    prediction: str = "epsilon"  # quantity that the network predicts from the noisy mel: "epsilon", "v" or "x0"

    split_widths: ClassVar = (("model_channels", "num_heads"),)

    def check(self, where: str) -> None:
        super().check(where)
        if self.prediction not in PREDICTIONS:
            raise UserError(f"{where}: prediction {self.prediction!r} is none of {', '.join(PREDICTIONS)}")


def timestep_embedding(timesteps: Tensor, width: int) -> Tensor:
    """Return [cos(t·f), sin(t·f)] of timesteps (B,), (B, width) float32, with f_i = 10000^(−i / (width/2))."""
    half = width // 2
    frequency = torch.exp(-math.log(10000) * torch.arange(half, device=timesteps.device).float() / half)
    angle = timesteps.float()[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class TimestepResBlock(nn.Module):
    """A residual block over packed frames. The timestep scales and shifts its second norm."""

    # in order; a backend may replace the block by one call
    residual_parts = "in_layers.0", "in_layers.2", "emb_layers.1", "out_layers.0", "out_layers.3"

    def __init__(self, channels: int):
        super().__init__()
        # indices as in upstream, where activations and dropout are between
        self.in_layers = nn.ModuleDict({"0": FrameNorm(channels), "2": PointwiseConv(channels, channels, 1)})
        self.emb_layers = nn.ModuleDict({"1": nn.Linear(channels, 2 * channels)})
        self.out_layers = nn.ModuleDict({"0": FrameNorm(channels), "3": FrameConv(channels, channels, 3, padding=1)})

    def forward(self, x: Tensor, time: Tensor, packing: Packing) -> Tensor:
        """Compute packed frames (N, C) from packed frames (N, C) and the SiLU of timestep embeddings (1 or rows, C)."""
        scale, shift = self.emb_layers["1"](time)[:, None].chunk(2, dim=-1)
        gain = 1 + scale

        def second_half(part: Tensor) -> Tensor:
            part = torch.addcmul(shift, self.out_layers["0"](part), gain)
            return self.out_layers["3"](F.silu(part))

        h = packing.each(lambda part: F.silu(self.in_layers["0"](part)), x)
        return x + packing.each(second_half, self.in_layers["2"](h))


class DiffusionLayer(nn.Module):
    def __init__(self, channels: int, heads: int):
        super().__init__()
        self.resblk = TimestepResBlock(channels)
        self.attn = FrameAttention(channels, heads)

    def forward(self, x: Tensor, time: Tensor, packing: Packing) -> Tensor:
        return self.attn(self.resblk(x, time, packing), packing)


class IntegratingConv(nn.Conv1d):
    """A 1×1 convolution of x and code, concatenated: the sum of two, because rows of code may share one x."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs, 1)
        self.packed: nn.ModuleList | None = None

    def pack(self, make: Callable[[Tensor, Tensor], nn.Module]) -> None:
        """Replace the two layers by layers that ``make`` packs from weight (O, C) and bias (O,)."""
        x_weight, code_weight = self.weight[..., 0].chunk(2, dim=1)
        self.packed = nn.ModuleList((make(x_weight, torch.zeros_like(self.bias)), make(code_weight, self.bias)))
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def forward(self, x: Tensor, code: Tensor, x_packing: Packing, packing: Packing) -> Tensor:
        """Combine x, packed as ``x_packing`` with one row or as many as code has, with code (N, C). Returns (N, C)."""
        if self.packed is not None:
            x, code = (layer(part) for layer, part in zip(self.packed, (x, code), strict=True))
        else:
            x_weight, code_weight = self.weight[..., 0].chunk(2, dim=1)
            x, code = product(x, x_weight), product(code, code_weight, self.bias)
        parts = [
            (part + shared).flatten(0, 1) for part, shared in zip(packing.split(code), x_packing.split(x), strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class DiffusionTts(nn.Module):
    """The denoiser. Call ``condition`` once per utterance, and ``forward`` or ``denoise`` once per timestep."""

    channels_last_kernels = True  # convolution kernels stored channels last, as the frames are
    packs_layers = True  # on the CPU, for bf16 and int8
    # layers that stay in float32 or bfloat16 where other layers are int8
    ends = "inp_block", "latent_conditioner", "time_embed", "integrating_conv", "out"

    def __init__(self, config: DiffusionConfig):
        super().__init__()
        self.config = config
        C, heads = config.model_channels, config.num_heads
        self.inp_block = FrameConv(config.in_channels, C, 3, padding=1)
        self.time_embed = nn.Sequential(nn.Linear(C, C), nn.SiLU(), nn.Linear(C, C))
        self.code_norm = FrameNorm(C)
        self.latent_conditioner = nn.ModuleList(
            [FrameConv(config.in_latent_channels, C, 3, padding=1)] + [FrameAttention(C, heads) for _ in range(4)]
        )
        self.unconditioned_embedding = nn.Parameter(torch.empty(1, C, 1))
        self.conditioning_timestep_integrator = nn.ModuleList(DiffusionLayer(C, heads) for _ in range(3))
        self.integrating_conv = IntegratingConv(2 * C, C)
        self.layers = nn.ModuleList(
            [DiffusionLayer(C, heads) for _ in range(config.num_layers)] + [TimestepResBlock(C) for _ in range(3)]
        )
        self.out = nn.Sequential(FrameNorm(C), nn.SiLU(), FrameConv(C, config.out_channels, 3, padding=1))

    def condition(self, latents: Tensor, voice: Tensor, frames: int) -> Tensor:
        """Compute the conditioning (B, C, frames) of all timesteps from latents (B, N, D), voice latent (B, 2C)."""
        scale, shift = voice[:, None].chunk(2, dim=-1)
        packing = Packing(len(latents), latents.shape[1:2])
        first, *blocks = self.latent_conditioner
        code = first(latents).flatten(0, 1)
        for block in blocks:
            code = block(code, packing)
        code = packing.each(lambda part: self.code_norm(part) * (1 + scale) + shift, code)
        return F.interpolate(code.view(*latents.shape[:2], -1).transpose(1, 2), size=frames, mode="nearest")

    def unconditioned(self, frames: int) -> Tensor:
        """Return the learned "no conditioning" of classifier-free guidance (Ho & Salimans 2022), (1, C, frames)."""
        return self.unconditioned_embedding.expand(-1, -1, frames)

    def forward(self, x: Tensor, timesteps: Tensor, code: Tensor) -> Tensor:
        """Denoise a noisy mel (B, 100, L) at trained timesteps (B,) with conditioning (B, C, L).

        Returns the prediction and the variance's interpolation, (B, 200, L).
        """
        B, _, L = code.shape
        output = self.denoise(pack(x), timesteps, pack(code), Packing(B, (L,)))
        return output.view(B, L, -1).transpose(1, 2)

    def denoise(self, x: Tensor, timesteps: Tensor, code: Tensor, packing: Packing) -> Tensor:
        """Run ``forward`` for several utterances in one call: packed noisy mels and conditioning (N, C) → (N, 200).

        ``x`` has as many rows per utterance as ``packing``, or one row that all rows of the utterance share.
        ``timesteps`` has one timestep for all rows, (1,), or one per row, (rows,).
        """
        x_packing = Packing(packing.rows * len(x) // len(code), packing.lengths)
        time = timestep_embedding(timesteps, self.config.model_channels).to(x.dtype)
        time = F.silu(self.time_embed(time))
        for layer in self.conditioning_timestep_integrator:
            code = layer(code, time, packing)
        x = self.integrating_conv(x_packing.each(self.inp_block, x), code, x_packing, packing)
        for layer in self.layers:
            x = layer(x, time, packing)
        return packing.each(self.out, x)

    def bind(self, latents: Sequence[Tensor], voice: Tensor, frames: Sequence[int]) -> "BoundDenoiser":
        """Compute the conditioning of several utterances of one voice. Returns a ``BoundDenoiser``."""
        return BoundDenoiser(self, latents, voice, frames)

    @staticmethod
    def unused(config: DiffusionConfig) -> dict[str, tuple[int, ...]]:
        """Return keys and shapes in the official file that only training uses, on codes instead of latents."""
        C = config.model_channels
        with torch.device("meta"):
            modules = nn.ModuleDict(
                {
                    "code_embedding": nn.Embedding(config.in_tokens, C),
                    "code_converter": nn.Sequential(*(FrameAttention(C, config.num_heads) for _ in range(3))),
                    "mel_head": nn.Conv1d(C, config.in_channels, 3, padding=1),
                }
            )
        return {name: tuple(tensor.shape) for name, tensor in modules.state_dict().items()}


class BoundDenoiser:
    """``DiffusionTts`` bound to several utterances. One call has all their frames, packed without padding.

    A guided call has two rows per utterance, the conditional row first.
    """

    def __init__(self, network: DiffusionTts, latents: Sequence[Tensor], voice: Tensor, frames: Sequence[int]):
        self.network, self.lengths = network, tuple(frames)
        self.codes = [
            torch.cat((network.condition(rows, voice, length), network.unconditioned(length).to(voice)))
            for rows, length in zip(latents, frames, strict=True)
        ]  # (2, C, L) each
        self._packed: dict[int, Tensor] = {}

    def __call__(self, x: Sequence[Tensor], timestep: Tensor, guided: bool) -> list[Tensor]:
        """Denoise noisy mels (1, 100, L) at a timestep (1,). Returns (1 or 2, 200, L) for each utterance."""
        packing = Packing(1 + guided, self.lengths)
        code = self._code(packing.rows)
        noisy = torch.cat([pack(mel) for mel in x]).to(code)
        output = self.network.denoise(noisy, timestep.to(code.device), code, packing)
        return [part.transpose(1, 2) for part in packing.split(output)]

    def _code(self, rows: int) -> Tensor:
        """Return the packed conditioning with 2 rows (guided) or 1 row per utterance. It is cached."""
        if rows not in self._packed:
            self._packed[rows] = torch.cat([pack(code[:rows]) for code in self.codes])
        return self._packed[rows]
