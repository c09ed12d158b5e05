"""Define UnivNet, a vocoder with location-variable convolutions (Jang et al. 2021; upstream models/vocoder.py)."""

from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.bundles.family import Config
from ane.models.vocoders.hifigan import affected_samples, margins

SILENCE = -11.5129  # ln(1e-5), the smallest mel value; upstream appends silent frames to avoid artefacts at the end
SILENT_FRAMES = 10
TAPS = 3  # size of the predicted kernels
BORDER = 3  # how many frames (conv_pre) or samples (conv_post) a convolution of size 7 reads on either side


@dataclass(frozen=True)
class UnivNetConfig(Config):
    noise_dim: int = 64
    channel_size: int = 32
    dilations: tuple[int, ...] = (1, 3, 9, 27)
    strides: tuple[int, ...] = (8, 8, 4)
    lReLU_slope: float = 0.2  # noqa: N815 (upstream's name)
    kpnet_conv_size: int = 3
    kpnet_hidden_channels: int = 64
    hop_length: int = 256
    n_mel_channels: int = 100

    @property
    def level_margins(self) -> list[int]:
        """For each level of upsampling, how many frames of margin its input needs (``vocoders.hifigan.margins``)."""
        convs = sum(self.dilations) + len(self.dilations) * (TAPS // 2)
        reaches = [convs + affected_samples(2 * stride, stride, stride // 2 + stride % 2) for stride in self.strides]
        reaches[-1] += BORDER
        return margins(list(accumulate(self.strides, mul)), reaches)

    @property
    def margin(self) -> int:
        """The number of frames before and after a frame on which the sound of the frame depends."""
        kernels = 2 + 7 * (self.kpnet_conv_size // 2)  # mel frames to either side on which a predicted kernel depends
        return self.level_margins[0] + max(BORDER, kernels)


class KernelPredictor(nn.Module):
    """Predicts the kernels and biases of convolutions for each frame of a mel (B, mels, L).

    The kernels are (B, layers, C, 2C, 3, L), and the biases are (B, layers, 2C, L).
    """

    def __init__(self, config: UnivNetConfig):
        super().__init__()
        self.layers, self.channels = len(config.dilations), config.channel_size
        self.slope = config.lReLU_slope
        hidden, size = config.kpnet_hidden_channels, config.kpnet_conv_size

        def conv(outputs: int) -> nn.Conv1d:
            return nn.Conv1d(hidden, outputs, size, padding=(size - 1) // 2)

        self.input_conv = nn.ModuleList([nn.Conv1d(config.n_mel_channels, hidden, 5, padding=2)])
        # The keys 1 and 3 are upstream's indices. The indices around them are dropout and activations.
        self.residual_convs = nn.ModuleList(nn.ModuleDict({"1": conv(hidden), "3": conv(hidden)}) for _ in range(3))
        self.kernel_conv = conv(self.channels * 2 * self.channels * 3 * self.layers)
        self.bias_conv = conv(2 * self.channels * self.layers)

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        B, _, L = mel.shape
        c = F.leaky_relu(self.input_conv[0](mel), self.slope)
        for block in self.residual_convs:
            c = c + F.leaky_relu(block["3"](F.leaky_relu(block["1"](c), self.slope)), self.slope)
        kernels = self.kernel_conv(c).view(B, self.layers, self.channels, 2 * self.channels, 3, L)
        return kernels, self.bias_conv(c).view(B, self.layers, 2 * self.channels, L)


class LVCBlock(nn.Module):
    """Upsamples by ``stride``, then convolves each frame with a kernel that is predicted from the frame's mel."""

    def __init__(self, config: UnivNetConfig, stride: int, hop: int):
        super().__init__()
        C = config.channel_size
        self.hop, self.slope = hop, config.lReLU_slope
        self.kernel_predictor = KernelPredictor(config)
        self.convt_pre = nn.ModuleDict(
            {
                "1": nn.ConvTranspose1d(
                    C, C, 2 * stride, stride=stride, padding=stride // 2 + stride % 2, output_padding=stride % 2
                )
            }
        )
        self.conv_blocks = nn.ModuleList(
            nn.ModuleDict({"1": nn.Conv1d(C, C, 3, padding=dilation, dilation=dilation)})
            for dilation in config.dilations
        )

    def forward(self, x: Tensor, mel: Tensor) -> Tensor:
        """Upsample x (B, C, n) to (B, C, n · stride), and convolve it with kernels from a mel (B, mels, L).

        n · stride must equal L · hop.
        """
        x = self.convt_pre["1"](F.leaky_relu(x, self.slope))
        kernels, biases = self.kernel_predictor(mel)
        for layer, conv in enumerate(self.conv_blocks):
            y = F.leaky_relu(conv["1"](F.leaky_relu(x, self.slope)), self.slope)
            gate, value = self.convolve(y, kernels[:, layer], biases[:, layer]).chunk(2, dim=1)
            x = x + torch.sigmoid(gate) * torch.tanh(value)
        return x

    def convolve(self, x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        """Convolve the ``hop`` samples of each frame with the frame's kernel, in one batched matrix product.

        x is (B, C, L·hop), kernel is (B, C, O, 3, L), bias is (B, O, L), and the result is (B, O, L·hop).
        """
        B, C, _ = x.shape
        O, L = kernel.shape[2], kernel.shape[4]  # noqa: E741
        padded = F.pad(x, (1, 1))
        taps = torch.stack([padded[:, :, k : k + L * self.hop].view(B, C, L, self.hop) for k in range(3)], dim=2)
        taps = taps.permute(0, 3, 1, 2, 4).reshape(B, L, 3 * C, self.hop)  # rows ordered (channel, tap)
        weight = kernel.permute(0, 4, 2, 1, 3).reshape(B, L, O, 3 * C)
        out = weight @ taps + bias.permute(0, 2, 1)[..., None]  # (B, L, O, hop)
        return out.permute(0, 2, 1, 3).reshape(B, O, L * self.hop)


class UnivNet(nn.Module):
    def __init__(self, config: UnivNetConfig):
        super().__init__()
        self.config = config
        C = config.channel_size
        self.res_stack = nn.ModuleList(
            LVCBlock(config, stride, hop=prod(config.strides[: index + 1]))
            for index, stride in enumerate(config.strides)
        )
        self.conv_pre = nn.Conv1d(config.noise_dim, C, 7, padding=3, padding_mode="reflect")
        self.conv_post = nn.ModuleDict({"1": nn.Conv1d(C, 1, 7, padding=3, padding_mode="reflect")})

    def forward(self, mel: Tensor, noise: Tensor) -> Tensor:
        """Make audio (B, 1, 256·L) within ±1 from a log-mel (B, 100, L) and normal noise (B, 64, L + 10)."""
        sound = self.sound(F.pad(mel, (0, SILENT_FRAMES), value=SILENCE), noise)
        return sound[:, :, : -SILENT_FRAMES * self.config.hop_length]

    def sound(self, mel: Tensor, noise: Tensor) -> Tensor:
        """Make audio (B, 1, 256·L) from a mel (B, 100, L) and noise (B, 64, L), without appending silent frames."""
        x = self.conv_pre(noise)
        for block in self.res_stack:
            x = block(x, mel)
        return torch.tanh(self.conv_post["1"](F.leaky_relu(x, self.config.lReLU_slope)))
