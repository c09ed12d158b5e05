"""WaveGlow: mel spectrogram and noise to sound (Prenger et al. 2018, arXiv 1811.00002).

As in NVIDIA's examples (DeepLearningExamples, CUDA-Optimized/FastSpeech, waveglow/model.py), with its names of
parameters; only the direction from noise to sound. Tensors are images one pixel high, (B, C, 1, T) (``ImageConv``).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.models.vocoders.hifigan import AUDIO
from ane.models.vocoders.layers import ImageConv, ImageConvTranspose, margins
from ane.system.errors import UserError

HOP = 256       # samples of a mel frame
SIGMA = 0.6     # standard deviation of the noise in NVIDIA's example


@dataclass(frozen=True)
class WaveglowConfig(Config):
    """Sizes, named as the arguments of NVIDIA's class (those of its WN_config too); the official ones are the defaults.

    Attributes:
        n_group: samples that are computed side by side, as channels.
        n_early_every, n_early_size: after every so many flows, counted from the sound, so many channels leave.
        n_layers, n_channels, kernel_size: of the WaveNet in each flow.
        upsample_kernel: of the transposed convolution from frames to samples.
    """

    n_mel_channels: int = 80
    n_flows: int = 12
    n_group: int = 8
    n_early_every: int = 4
    n_early_size: int = 2
    n_layers: int = 8
    n_channels: int = 256
    kernel_size: int = 3
    upsample_kernel: int = 1024

    def check(self, where: str) -> None:
        """Raise UserError for sizes that describe no WaveGlow, or one of other mels than FastSpeech's."""
        if self.n_mel_channels != AUDIO["num_mels"]:
            raise UserError(f"{where}: it takes {self.n_mel_channels} bands, and mels of FastSpeech have "
                            f"{AUDIO['num_mels']}: use a vocoder trained for those")
        if HOP % self.n_group or self.n_group % 2 or self.n_early_size % 2 or min(self.flow_channels) < 2:
            raise UserError(f"{where}: n_group, n_flows, n_early_every and n_early_size do not fit together")
        if self.kernel_size % 2 == 0 or self.upsample_kernel < HOP:
            raise UserError(f"{where}: kernel_size must be odd and upsample_kernel at least {HOP}, not "
                            f"{self.kernel_size} and {self.upsample_kernel}")

    @property
    def flow_channels(self) -> list[int]:
        """Channels that each flow computes with, counted from the sound."""
        return [self.n_group - flow // self.n_early_every * self.n_early_size for flow in range(self.n_flows)]

    @property
    def level_margins(self) -> list[int]:
        """Margin in frames that the input of each flow needs, in the order of computation: from the noise."""
        reach = sum((self.kernel_size - 1) * 2 ** layer // 2 for layer in range(self.n_layers))
        return margins([HOP // self.n_group] * self.n_flows, [reach] * self.n_flows)

    @property
    def margin(self) -> int:
        """Frames on either side that the sound of a frame depends on."""
        return self.level_margins[0] + (self.upsample_kernel - 1) // HOP


class WaveNet(nn.Module):
    """Dilated gated convolutions: half of the channels (B, c, 1, T), mel (B, M·G, 1, T) → (B, 2·c, 1, T).

    The output's first half is the shift of the other channels, the second half the logarithm of their scale.
    """

    def __init__(self, channels: int, config: WaveglowConfig):
        super().__init__()
        width, size = config.n_channels, config.kernel_size
        last = config.n_layers - 1
        self.start = ImageConv(channels, width, 1)
        self.in_layers = nn.ModuleList(ImageConv(width, 2 * width, size, dilation=2 ** layer,
                                                 padding=(size - 1) * 2 ** layer // 2) for layer in range(last + 1))
        self.cond_layers = nn.ModuleList(ImageConv(config.n_mel_channels * config.n_group, 2 * width, 1)
                                         for _ in range(last + 1))
        self.res_skip_layers = nn.ModuleList(ImageConv(width, width if layer == last else 2 * width, 1)
                                             for layer in range(last + 1))
        self.end = ImageConv(width, 2 * channels, 1)

    def forward(self, x: Tensor, mel: Tensor) -> Tensor:
        x = self.start(x)
        total = torch.zeros_like(x)
        for conv, condition, output in zip(self.in_layers, self.cond_layers, self.res_skip_layers, strict=True):
            signal, gate = (conv(x) + condition(mel)).chunk(2, dim=1)
            out = output(signal.tanh() * gate.sigmoid())
            if out.shape[1] > x.shape[1]:       # all but the last layer
                residual, out = out.chunk(2, dim=1)
                x = x + residual
            total = total + out
        return self.end(total)


class InverseConv(nn.Module):
    """Holds the 1×1 convolution of a flow under its official name; its weight is the inverse of the trained one."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = ImageConv(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Waveglow(nn.Module):
    def __init__(self, config: WaveglowConfig):
        super().__init__()
        self.config = config
        self.upsample = ImageConvTranspose(config.n_mel_channels, config.n_mel_channels, config.upsample_kernel, HOP)
        self.WN = nn.ModuleList(WaveNet(channels // 2, config) for channels in config.flow_channels)
        self.convinv = nn.ModuleList(InverseConv(channels) for channels in config.flow_channels)

    def forward(self, mel: Tensor, noise: Tensor) -> Tensor:
        """Mel (B, M, L), natural logarithms, noise (B, 256, L) of deviation ``SIGMA`` → audio (B, 1, 256 · L).

        The 256 numbers of a frame are G for each G samples in turn. Of these, the flows take the first ones first: the
        last flow, counted from the sound, begins with all that the earlier exits leave, each exit adds its own.
        """
        config, (B, _, L) = self.config, mel.shape
        spectrum = self._grouped(self.upsample(mel[:, :, None])[..., :HOP * L])
        noise = noise.transpose(1, 2).reshape(B, -1, config.n_group).transpose(1, 2)[:, :, None]
        used = config.flow_channels[-1]
        x = noise[:, :used].contiguous(memory_format=torch.channels_last)
        for flow in reversed(range(config.n_flows)):
            first, second = x.chunk(2, dim=1)
            shift, scale = self.WN[flow](first, spectrum).chunk(2, dim=1)
            x = self.convinv[flow](torch.cat([first, (second - shift) / scale.exp()], dim=1))
            if flow and flow % config.n_early_every == 0:
                x = torch.cat([noise[:, used:used + config.n_early_size], x], dim=1)
                used += config.n_early_size
        return x[:, :, 0].transpose(1, 2).reshape(B, 1, -1)

    def _grouped(self, x: Tensor) -> Tensor:
        """(B, M, 1, T) → (B, M · G, 1, T / G): ``n_group`` samples side by side, as channels."""
        B, M, _, _ = x.shape
        grouped = x.reshape(B, M, -1, self.config.n_group).transpose(2, 3).flatten(1, 2)
        return grouped[:, :, None].contiguous(memory_format=torch.channels_last)
