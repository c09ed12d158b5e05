"""Define the discriminators that judge the sound of vocoders during training.

There are two kinds. One kind judges the waveform, folded at several periods (HiFi-GAN, Kong et al. 2020, section 2.3).
The other kind judges spectra at several resolutions (UnivNet, Jang et al. 2021, section 2.3).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

PERIODS, PERIOD_WIDTHS = (2, 3, 5, 7, 11), (16, 32, 64, 64)
RESOLUTIONS, SPECTRUM_WIDTH = ((512, 128), (1024, 256), (2048, 512)), 12  # resolutions as (FFT size, hop) in samples
SLOPE = 0.1  # slope of the leaky ReLUs
FEATURE_WEIGHT = 2.0  # weight of the distance of features in the vocoder's loss


class PeriodDiscriminator(nn.Module):
    """A discriminator of audio (B, S) that is folded at a period. It returns the outputs of all its layers.

    The last output is its judgement. The layers have the same weights for all phases of the period.
    """

    def __init__(self, period: int):
        super().__init__()
        self.period = period
        self.layers = nn.ModuleList(
            nn.Conv1d(before, after, 5, 3, padding=2)
            for before, after in zip((1, *PERIOD_WIDTHS), PERIOD_WIDTHS, strict=False)
        )
        self.layers.append(nn.Conv1d(PERIOD_WIDTHS[-1], 1, 3, padding=1))

    def forward(self, audio: Tensor) -> list[Tensor]:
        x = F.pad(audio, (0, -audio.shape[1] % self.period), "reflect")
        x = x.view(len(x), -1, self.period).transpose(1, 2).reshape(len(x) * self.period, 1, -1)
        return features(self.layers, x)


class SpectrumDiscriminator(nn.Module):
    """A discriminator of log spectra (B, 1, frames, bins) of audio (B, S). It returns the outputs of all its layers.

    The last output is its judgement.
    """

    def __init__(self, size: int, hop: int):
        super().__init__()
        self.size, self.hop, width = size, hop, SPECTRUM_WIDTH
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.layers = nn.ModuleList(
            [
                nn.Conv2d(1, width, (3, 7), (1, 2), padding=(1, 3)),
                nn.Conv2d(width, width, (3, 5), (1, 2), padding=(1, 2)),
                nn.Conv2d(width, width, (3, 5), (1, 2), padding=(1, 2)),
                nn.Conv2d(width, 2 * width, (3, 5), (1, 2), padding=(1, 2)),
                nn.Conv2d(2 * width, 1, 3, padding=1),
            ]
        )

    def forward(self, audio: Tensor) -> list[Tensor]:
        spectrum = torch.stft(audio, self.size, self.hop, window=self.window, return_complex=True)
        power = spectrum.real**2 + spectrum.imag**2
        return features(self.layers, torch.log(power + 1e-4).transpose(1, 2)[:, None] / 4)


def features(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    outputs = []
    for layer in layers[:-1]:
        x = F.leaky_relu(layer(x), SLOPE)
        outputs.append(x)
    return [*outputs, layers[-1](x)]


class Discriminators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            [*map(PeriodDiscriminator, PERIODS), *(SpectrumDiscriminator(*resolution) for resolution in RESOLUTIONS)]
        )

    def forward(self, audio: Tensor) -> list[list[Tensor]]:
        return [member(audio) for member in self.members]

    def losses(self, output: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Compute least-squares losses (Mao et al. 2017) for a vocoder's audio and for the true audio, (B, S) each.

        Returns:
            Losses by name. The gradient of "discriminator" reaches only the discriminators. The gradients of
            "adversarial" and "features" reach only ``output``.
        """
        real, fake = self(target), self(output.detach())
        discriminator = sum(((r[-1] - 1) ** 2).mean() + (f[-1] ** 2).mean() for r, f in zip(real, fake, strict=True))
        frozen = {name: parameter.detach() for name, parameter in self.named_parameters()}
        judged = functional_call(self, frozen, (output,))
        adversarial = sum(((layers[-1] - 1) ** 2).mean() for layers in judged)
        distance = sum(
            (a - b.detach()).abs().mean() / b.detach().abs().mean().clamp(min=1e-3)
            for ours, theirs in zip(judged, real, strict=True)
            for a, b in zip(ours[:-1], theirs[:-1], strict=True)
        )
        count = len(self.members)
        return {
            "discriminator": discriminator / count,
            "adversarial": adversarial / count,
            "features": FEATURE_WEIGHT * distance / count,
        }
