"""Make the sound of hibari's spectra in torch, and measure how far it is from speech.

The distance is a generalised energy distance between spectrograms (Gritsenko et al. 2020, arXiv 2008.01160). For two
sounds y and z that differ in their noise and in the phase of their pulses, and speech x, it is d(x, y) + d(x, z) −
d(y, z). Without the last term, a model would learn to replace noise and pulses by their mean.
"""

import numpy as np
import torch
from torch import Tensor, nn

from ane.models.vocoders.harmonic_noise import BINS, HOP, SAMPLE_RATE, SPECTRA, WINDOW, pulses

LOUDEST = 7.0  # limit of a log magnitude, as in ``harmonic_noise``
SIZES = 256, 768, 2048  # samples in a window of the spectrograms, four of which overlap
QUIETEST = 1e-4  # magnitude that is added, where noise with a deviation of 1 has the magnitude 1
BREAK = 700.0  # Hz, above which frequencies count less, as on the mel scale


def pulses_of(f0: np.ndarray, generator: torch.Generator) -> Tensor:
    """Return pulses with the pitch f0 (L,) in Hz that begin at two random phases, (2, 300 · L)."""
    turns = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    return torch.from_numpy(np.stack([pulses(f0, 0, len(f0), SAMPLE_RATE * turn)[0] for turn in turns]))


def two_sounds(spectra: Tensor, sources: Tensor, generator: torch.Generator) -> Tensor:
    """Make two sounds (2, B, 300 · L) that differ in their noise and in their pulses.

    Args:
        spectra: Output of the stage ``spectra``, (B, L, 5 · 601).
        sources: Pulses of each sound, (2, B, 300 · L).
        generator: Generator of the noise.
    """
    harmonic, phase, noise, free, angle = spectra.unflatten(2, (SPECTRA, BINS)).unbind(2)
    filters = torch.polar(harmonic.clamp(max=LOUDEST).exp(), torch.pi * phase.tanh())
    steady = torch.polar(free.clamp(max=LOUDEST).exp(), angle)
    size, window = noise.clamp(max=LOUDEST).exp(), torch.hann_window(WINDOW)
    sounds = []
    for source in sources:
        stft = torch.stft(source, WINDOW, HOP, window=window / (WINDOW // 4), return_complex=True)[..., :-1]
        random = torch.view_as_complex(torch.randn(*size.shape, 2, generator=generator))
        bins = filters * stft.transpose(1, 2) + size * random + steady
        sounds.append(torch.istft(bins.transpose(1, 2), WINDOW, HOP, window=window, length=source.shape[1]))
    return torch.stack(sounds)


class SpectralDistance(nn.Module):
    """Distances between sounds (B, S), as means over bins of the differences of magnitudes and of their logarithms."""

    def __init__(self) -> None:
        super().__init__()
        for size in SIZES:
            window = torch.hann_window(size)
            self.register_buffer(f"window{size}", window / window.square().sum().sqrt(), persistent=False)
            weight = 1 / (BREAK + torch.arange(size // 2 + 1) * SAMPLE_RATE / size)
            self.register_buffer(f"weight{size}", (weight / weight.mean())[:, None], persistent=False)

    def spectrograms(self, sound: Tensor) -> list[Tensor]:
        """Return the magnitudes of a sound (B, S) in each size of window, (B, bins, frames)."""
        return [
            torch.stft(sound, size, size // 4, window=getattr(self, f"window{size}"), return_complex=True).abs()
            for size in SIZES
        ]

    def between(self, some: list[Tensor], others: list[Tensor], unit: list[Tensor]) -> Tensor:
        """Return the distance of two results of ``spectrograms``. ``unit`` has the magnitude of a difference of 1."""
        total = torch.zeros(())
        for size, one, other, scale in zip(SIZES, some, others, unit, strict=True):
            weight = getattr(self, f"weight{size}")
            logs = ((one + QUIETEST).log() - (other + QUIETEST).log()).abs()
            total = total + (weight * (logs + (one - other).abs() / scale)).mean()
        return total / len(SIZES)

    def forward(self, one: Tensor, other: Tensor, speech: Tensor) -> Tensor:
        """Return the energy distance of speech (B, S) and a model that makes the sounds ``one`` and ``other``."""
        target = self.spectrograms(speech)
        unit = [magnitudes.mean().clamp(min=QUIETEST) for magnitudes in target]
        first, second = self.spectrograms(one), self.spectrograms(other)
        return (
            self.between(first, target, unit) + self.between(second, target, unit) - self.between(first, second, unit)
        )


@torch.no_grad()
def stretch_spectra(head: nn.Linear, ratio: float) -> None:
    """Make a layer predict spectra whose frequencies are all multiplied by ``ratio``, as those of a longer throat."""
    positions = (np.arange(BINS) / ratio).clip(max=BINS - 1)
    below = torch.from_numpy(positions.astype(np.int64).clip(max=BINS - 2))
    share = torch.from_numpy((positions - below.numpy()).astype(np.float32))
    for parameter in (head.weight, head.bias):
        rows = parameter.unflatten(0, (SPECTRA, BINS))
        part = share.reshape(-1, *[1] * (rows.ndim - 2))
        parameter.copy_((rows[:, below] * (1 - part) + rows[:, below + 1] * part).flatten(0, 1))
