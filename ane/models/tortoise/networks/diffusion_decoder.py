"""Define DiffusionTts, the denoiser that turns latents into a spectrogram (upstream models/diffusion_decoder.py).

Inputs and outputs are (B, C, L). Inside the network, frames are packed and channels are last (``frames.py`` in this
folder). The argument ``code`` is not a mel code, but the conditioning that the network makes from the latents and the
voice (upstream: code_emb).
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.bundles.weights import WithoutValues
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

PREDICTIONS = ("epsilon", "v", "x0")  # ε, v = √ᾱ·ε − √(1−ᾱ)·x0, or x0, for the noisy mel x = √ᾱ·x0 + √(1−ᾱ)·ε


@dataclass(frozen=True)
class DiffusionConfig(Config):
    model_channels: int = 1024
    num_layers: int = 10
    in_channels: int = 100
    out_channels: int = 200  # 100 channels of the prediction, then 100 of the variance
    in_latent_channels: int = 1024
    in_tokens: int = 8193
    num_heads: int = 16
    prediction: str = "epsilon"  # quantity that the network predicts from the noisy mel: "epsilon", "v" or "x0"

    split_widths: ClassVar = (("model_channels", "num_heads"),)

    def check(self, where: str) -> None:
        super().check(where)
        if self.prediction not in PREDICTIONS:
            raise UserError(f"{where}: prediction must be one of {', '.join(PREDICTIONS)}, got {self.prediction!r}")


def timestep_embedding(timesteps: Tensor, width: int) -> Tensor:
    """Embed timesteps t (B,) as [cos(t·f), sin(t·f)], where f_i = 10000^(−i / (width/2)).

    Returns (B, width) float32.
    """
    half = width // 2
    frequency = torch.exp(-math.log(10000) * torch.arange(half, device=timesteps.device).float() / half)
    angle = timesteps.float()[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class TimestepResBlock(nn.Module):
    """A residual block over packed frames. The timestep scales and shifts the result of the second norm."""

    # Names of the layers in order, for backends that compute the whole block in one call.
    residual_parts = "in_layers.0", "in_layers.2", "emb_layers.1", "out_layers.0", "out_layers.3"

    def __init__(self, channels: int):
        super().__init__()
        # The keys are upstream's indices. The missing indices are activations and dropout.
        self.in_layers = nn.ModuleDict({"0": FrameNorm(channels), "2": PointwiseConv(channels, channels, 1)})
        self.emb_layers = nn.ModuleDict({"1": nn.Linear(channels, 2 * channels)})
        self.out_layers = nn.ModuleDict({"0": FrameNorm(channels), "3": FrameConv(channels, channels, 3, padding=1)})

    def forward(self, x: Tensor, time: Tensor, packing: Packing) -> Tensor:
        """Apply the block to packed frames x (N, C). Returns (N, C).

        ``time`` is the SiLU of the timestep embeddings, (1, C) for all rows or (rows, C).
        """
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
    """A 1×1 convolution of x and code, as if both were concatenated.

    The layer convolves x and code separately, and adds the results, so that several rows of code can share a row of x.
    """

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs, 1)
        self.packed: nn.ModuleList | None = None

    def pack(self, make: Callable[[Tensor, Tensor], nn.Module]) -> None:
        """Replace both convolutions by layers that ``make`` builds from a weight (O, C) and a bias (O,)."""
        x_weight, code_weight = self.weight[..., 0].chunk(2, dim=1)
        self.packed = nn.ModuleList((make(x_weight, torch.zeros_like(self.bias)), make(code_weight, self.bias)))
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def forward(self, x: Tensor, code: Tensor, x_packing: Packing, packing: Packing) -> Tensor:
        """Convolve x and code, and add the results, (N, C). All three are packed frames.

        Args:
            x: Frames in the layout ``x_packing``, with one row per utterance or as many rows as ``code`` has.
            code: Frames (N, C) in the layout ``packing``.
            x_packing: Layout of ``x``.
            packing: Layout of ``code`` and the result.
        """
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

    channels_last_kernels = True  # whether to store the kernels of convolutions channels last, like the frames
    packs_layers = True  # whether the CPU backend may pack the weights of linear layers, for bf16 and int8
    # Layers that stay in float32 or bfloat16 if the other layers are int8.
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
        """Compute the conditioning (B, C, frames) from latents (B, N, D) and a voice latent (B, 2C).

        The conditioning is the same for all timesteps.
        """
        scale, shift = voice[:, None].chunk(2, dim=-1)
        packing = Packing(latents.shape[0], latents.shape[1:2])  # ``len`` would fix the batch of an exported graph
        first, *blocks = self.latent_conditioner
        code = first(latents).flatten(0, 1)
        for block in blocks:
            code = block(code, packing)
        code = packing.each(lambda part: self.code_norm(part) * (1 + scale) + shift, code)
        return F.interpolate(code.view(*latents.shape[:2], -1).transpose(1, 2), size=frames, mode="nearest")

    def unconditioned(self, frames: int) -> Tensor:
        """Return the learned conditioning (1, C, frames) that means "no conditioning".

        Classifier-free guidance needs it (Ho & Salimans 2022).
        """
        return self.unconditioned_embedding.expand(-1, -1, frames)

    def forward(self, x: Tensor, timesteps: Tensor, code: Tensor) -> Tensor:
        """Denoise a noisy mel (B, 100, L) at trained timesteps (B,) with conditioning (B, C, L).

        Returns (B, 200, L): 100 channels of the prediction, then 100 channels v that interpolate the variance.
        """
        B, _, L = code.shape
        output = self.denoise(pack(x), timesteps, pack(code), Packing(B, (L,)))
        return output.view(B, L, -1).transpose(1, 2)

    def denoise(self, x: Tensor, timesteps: Tensor, code: Tensor, packing: Packing) -> Tensor:
        """Run ``forward`` for several utterances in one call. Returns packed frames (N, 200).

        Args:
            x: Packed noisy mels. Each utterance has as many rows as in ``packing``, or a single row that all these rows
                share.
            timesteps: One timestep for all rows, (1,), or one per row, (rows,).
            code: Packed conditioning, (N, C).
            packing: Layout of ``code`` and the result.
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
        """Compute the conditioning of several utterances, which share one voice, and return a denoiser for them."""
        return BoundDenoiser(self, latents, voice, frames)

    @staticmethod
    @functools.cache
    def unused(config: DiffusionConfig) -> dict[str, tuple[int, ...]]:
        """Return the keys and shapes of the layers that only training uses. They take codes instead of latents."""
        with WithoutValues():
            layers = {
                "code_embedding": nn.Embedding(config.in_tokens, config.model_channels),
                "code_converter": nn.Sequential(
                    *(FrameAttention(config.model_channels, config.num_heads) for _ in range(3))
                ),
                "mel_head": nn.Conv1d(config.model_channels, config.in_channels, 3, padding=1),
            }
        return {name: tuple(tensor.shape) for name, tensor in nn.ModuleDict(layers).state_dict().items()}


class BoundDenoiser:
    """A ``DiffusionTts`` that is bound to several utterances, and denoises all utterances in one call, without padding.

    With guidance, each utterance has two rows: first the conditional row, then the unconditional row.
    """

    def __init__(self, network: DiffusionTts, latents: Sequence[Tensor], voice: Tensor, frames: Sequence[int]):
        self.network, self.lengths = network, tuple(frames)
        self.codes = [
            torch.cat((network.condition(rows, voice, length), network.unconditioned(length).to(voice)))
            for rows, length in zip(latents, frames, strict=True)
        ]  # (2, C, L) each
        self._packed: dict[int, Tensor] = {}

    def __call__(self, x: Sequence[Tensor], timestep: Tensor, guided: bool) -> list[Tensor]:
        """Denoise the noisy mel (1, 100, L) of every utterance at a timestep (1,).

        Returns (1, 200, L) for each utterance, or (2, 200, L) if ``guided``.
        """
        packing = Packing(1 + guided, self.lengths)
        code = self._code(packing.rows)
        noisy = torch.cat([pack(mel) for mel in x]).to(code)
        output = self.network.denoise(noisy, timestep.to(code.device), code, packing)
        return [part.transpose(1, 2) for part in packing.split(output)]

    def _code(self, rows: int) -> Tensor:
        """Return the packed conditioning, from a cache if possible.

        There are ``rows`` rows per utterance: 2 with guidance, 1 without it.
        """
        if rows not in self._packed:
            self._packed[rows] = torch.cat([pack(code[:rows]) for code in self.codes])
        return self._packed[rows]
