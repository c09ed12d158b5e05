"""DiffusionTts: the denoiser that turns latents into a spectrogram (upstream models/diffusion_decoder.py)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.networks.layers import AttentionBlock, Config, GroupNorm


@dataclass(frozen=True)
class DiffusionConfig(Config):
    model_channels: int = 1024
    num_layers: int = 10
    in_channels: int = 100
    out_channels: int = 200            # what is predicted, then the variance interpolation
    in_latent_channels: int = 1024
    in_tokens: int = 8193
    num_heads: int = 16
    prediction: str = "epsilon"        # what the network says of the noisy mel: "epsilon", "v" or "x0"


def timestep_embedding(timesteps: Tensor, width: int) -> Tensor:
    """[cos(t·f), sin(t·f)] with f_i = 10000^(−i / (width/2)): (B,) → (B, width) float32."""
    half = width // 2
    frequency = torch.exp(-math.log(10000) * torch.arange(half, device=timesteps.device).float() / half)
    angle = timesteps.float()[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class ResBlock(nn.Module):
    """Residual block whose second norm is scaled and shifted by the timestep."""

    def __init__(self, channels: int):
        super().__init__()
        # upstream's indices: activations and dropout lie between
        self.in_layers = nn.ModuleDict({"0": GroupNorm(channels), "2": nn.Conv1d(channels, channels, 1)})
        self.emb_layers = nn.ModuleDict({"1": nn.Linear(channels, 2 * channels)})
        self.out_layers = nn.ModuleDict({"0": GroupNorm(channels), "3": nn.Conv1d(channels, channels, 3, padding=1)})

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.in_layers["2"](F.silu(self.in_layers["0"](x)))
        scale, shift = self.emb_layers["1"](F.silu(time))[..., None].chunk(2, dim=1)
        h = self.out_layers["0"](h) * (1 + scale) + shift
        return x + self.out_layers["3"](F.silu(h))


class DiffusionLayer(nn.Module):
    def __init__(self, channels: int, heads: int):
        super().__init__()
        self.resblk = ResBlock(channels)
        self.attn = AttentionBlock(channels, heads, relative=True)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.attn(self.resblk(x, time))


class DiffusionTts(nn.Module):
    """``condition`` once for an utterance, ``forward`` once for a timestep."""

    def __init__(self, config: DiffusionConfig):
        super().__init__()
        self.config = config
        C, heads = config.model_channels, config.num_heads
        self.inp_block = nn.Conv1d(config.in_channels, C, 3, padding=1)
        self.time_embed = nn.Sequential(nn.Linear(C, C), nn.SiLU(), nn.Linear(C, C))
        self.code_norm = GroupNorm(C)
        self.latent_conditioner = nn.Sequential(
            nn.Conv1d(config.in_latent_channels, C, 3, padding=1),
            *(AttentionBlock(C, heads, relative=True) for _ in range(4)))
        self.unconditioned_embedding = nn.Parameter(torch.empty(1, C, 1))
        self.conditioning_timestep_integrator = nn.ModuleList(DiffusionLayer(C, heads) for _ in range(3))
        self.integrating_conv = nn.Conv1d(2 * C, C, 1)
        self.layers = nn.ModuleList(
            [DiffusionLayer(C, heads) for _ in range(config.num_layers)] + [ResBlock(C) for _ in range(3)])
        self.out = nn.Sequential(GroupNorm(C), nn.SiLU(), nn.Conv1d(C, config.out_channels, 3, padding=1))

    def condition(self, latents: Tensor, voice: Tensor, frames: int) -> Tensor:
        """What no timestep changes: latents (B, N, D), voice latent (B, 2C) → aligned conditioning (B, C, frames)."""
        scale, shift = voice[..., None].chunk(2, dim=1)
        code = self.latent_conditioner(latents.transpose(1, 2))
        return F.interpolate(self.code_norm(code) * (1 + scale) + shift, size=frames, mode="nearest")

    def unconditioned(self, frames: int) -> Tensor:
        """The learned stand-in for conditioning in classifier-free guidance (Ho & Salimans 2022): (1, C, frames)."""
        return self.unconditioned_embedding.expand(-1, -1, frames)

    def forward(self, x: Tensor, timesteps: Tensor, code: Tensor) -> Tensor:
        """Noisy mel (B, 100, L), original timesteps (B,), conditioning (B, C, L) → (B, 200, L): noise, variance."""
        time = timestep_embedding(timesteps, self.config.model_channels).to(x.dtype)
        time = self.time_embed(time)
        for layer in self.conditioning_timestep_integrator:
            code = layer(code, time)
        x = self.integrating_conv(torch.cat((self.inp_block(x), code), dim=1))
        for layer in self.layers:
            x = layer(x, time)
        return self.out(x)

    @staticmethod
    def unused(config: DiffusionConfig) -> dict[str, tuple[int, ...]]:
        """What the official file holds for training on codes instead of latents."""
        C = config.model_channels
        with torch.device("meta"):
            modules = nn.ModuleDict({
                "code_embedding": nn.Embedding(config.in_tokens, C),
                "code_converter": nn.Sequential(
                    *(AttentionBlock(C, config.num_heads, relative=True) for _ in range(3))),
                "mel_head": nn.Conv1d(C, config.in_channels, 3, padding=1)})
        return {name: tuple(tensor.shape) for name, tensor in modules.state_dict().items()}
