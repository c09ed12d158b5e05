"""Train the vocoders that make samples: UnivNet from mels, and HiFi-GAN from the decoder's latents.

The loss compares spectra at several resolutions (Yamamoto et al. 2020, section 2.3) and the largest differences between
successive samples. From step ``JUDGED_FROM`` on, discriminators also judge the sound. Without them, it buzzes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ane.audio.mel import DIFFUSION_RATE, HOP, WINDOW, diffusion_mel, mel_filters
from ane.models.tortoise.networks.hifigan import Hifigan, HifiganConfig
from ane.models.tortoise.networks.univnet import UnivNet, UnivNetConfig
from ane.models.tortoise.vocoding import interpolate_latents
from training.discriminators import Discriminators
from training.speech import Clip, Shard
from training.trainer import TrainedPart, Trainer

WINDOWS = ((512, 120, 480), (1024, 240, 1000), (2048, 480, 2000), (256, 60, 240))  # samples of FFT, hop and window
FRAMES, EDGE = 56, 4  # frames in a crop of UnivNet, and frames at both ends of any crop that the loss ignores
LATENTS = 12  # latents in a crop of HiFi-GAN
SAMPLES_PER_LATENT = 1024 * DIFFUSION_RATE / 22050
MEL_WEIGHT, CLICK_WEIGHT, SPECTRAL_WEIGHT = 1.0, 0.5, 2.5
JUDGED_FROM = 1500  # step from which the discriminators judge the sound
# samples per window in which the largest difference counts, and a number added before the logarithm
CLICK_WINDOW, FLOOR = 60, 1e-3
CLIP_ENDS = 0.25  # share of batches whose crops are at the start of clips, and share of batches with crops at the end


class SpectralLoss(nn.Module):
    """The distance between two sounds, by their spectra and the largest differences between successive samples.

    It is the sum of spectral convergence and log-magnitude distance over ``WINDOWS``, the distance of log-mels, and the
    distance of the largest differences. Without the largest differences, quiet speech may contain clicks.
    """

    def __init__(self) -> None:
        super().__init__()
        for size, _, window in WINDOWS:
            self.register_buffer(f"window_{size}", torch.hann_window(window))
        self.register_buffer("hann", torch.hann_window(WINDOW))
        filters = mel_filters(DIFFUSION_RATE, 100, 12000.0, "slaney")
        self.register_buffer("filters", torch.from_numpy(filters).float())

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Compute the distance between two batches of audio (B, S), as a scalar."""
        total = output.new_zeros(())
        for size, hop, _ in WINDOWS:
            window = getattr(self, f"window_{size}")
            ours, theirs = (magnitude(x, size, hop, window) for x in (output, target))
            total = total + (theirs - ours).norm() / theirs.norm().clamp(min=1e-3)
            total = total + (theirs.log() - ours.log()).abs().mean()
        ours, theirs = (
            torch.log((self.filters @ magnitude(x, WINDOW, HOP, self.hann)).clamp(min=1e-5)) for x in (output, target)
        )
        total = total / len(WINDOWS) + MEL_WEIGHT * (ours - theirs).abs().mean()
        return total + CLICK_WEIGHT * (largest_differences(output) - largest_differences(target)).abs().mean()


def largest_differences(audio: Tensor) -> Tensor:
    """Return the logarithm of the largest difference between successive samples in each window: (B, S) → (B, n).

    A window has ``CLICK_WINDOW`` samples.
    """
    differences = audio.diff(dim=1).abs()
    return torch.log(nn.functional.max_pool1d(differences[:, None], CLICK_WINDOW)[:, 0] + FLOOR)


def magnitude(audio: Tensor, size: int, hop: int, window: Tensor) -> Tensor:
    spectrum = torch.stft(audio, size, hop, len(window), window, return_complex=True)
    return (spectrum.real**2 + spectrum.imag**2 + 1e-7).sqrt()


class VocoderInTraining(nn.Module):
    """A vocoder and the discriminators that judge it."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network, self.discriminators, self.spectral = network, Discriminators(), SpectralLoss()
        for layer in network.modules():  # torch's default weights, because larger weights saturate UnivNet's gates
            if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):
                layer.reset_parameters()

    def losses(self, output: Tensor, target: Tensor, judged: bool) -> dict[str, Tensor]:
        """Compute the losses of audio (B, S), by name. Without ``judged``, only spectra are compared."""
        spectral = self.spectral(output, target)
        if not judged:
            return {"loss": SPECTRAL_WEIGHT * spectral, "spectral": spectral}
        judgement = self.discriminators.losses(output, target)
        return {"loss": SPECTRAL_WEIGHT * spectral + sum(judgement.values()), "spectral": spectral, **judgement}


def without_edges(audio: Tensor, at_start: bool = False, at_end: bool = False) -> Tensor:
    """Remove the edges of crops (B, S), which padding affects, except where the clips themselves start or end."""
    return audio[:, 0 if at_start else EDGE * HOP : None if at_end else -EDGE * HOP]


@dataclass
class Crops:
    """A source of random crops of clips.

    Attributes:
        waves: Audio of each clip, (S,) float32 at 24 kHz.
        units: Length of each clip in units. A unit is a mel frame or a latent.
        unit: Samples per unit. A crop begins at a multiple of this.
        count: Length of a crop in units.
        batch: Number of crops in a batch.
    """

    waves: Sequence[np.ndarray]
    units: Sequence[int]
    unit: float
    count: int
    batch: int

    def draw(self, generator: torch.Generator) -> tuple[list[tuple[int, int]], bool, bool, Tensor]:
        """Draw a batch of crops.

        Returns:
            The index of the clip and the first unit of each crop, whether all crops are at the start of their clips,
            whether all crops are at the end of their clips, and the crops' audio (batch, S).
        """
        draw = float(torch.rand((), generator=generator))
        at_start, at_end = draw < CLIP_ENDS, draw > 1 - CLIP_ENDS
        crops, length = [], int(self.count * self.unit) // HOP * HOP
        for clip in torch.randint(len(self.waves), (self.batch,), generator=generator).tolist():
            last = self.units[clip] - self.count
            random = int(torch.randint(last + 1, (), generator=generator))
            crops.append((clip, 0 if at_start else last if at_end else random))
        starts = [(clip, round(first * self.unit)) for clip, first in crops]
        rows = [self.waves[clip][start : start + length] for clip, start in starts]
        padded = np.stack([np.pad(row, (0, length - len(row))) for row in rows])
        return crops, at_start, at_end, torch.from_numpy(padded)


def train_vocoder(
    part: TrainedPart,
    network: nn.Module,
    crops: Callable[[], Crops],
    sound: Callable[[list[tuple[int, int]], torch.Generator], Tensor],
) -> nn.Module:
    """Train a vocoder.

    Args:
        part: Part to train.
        network: The vocoder.
        crops: Function that makes the source of crops. It is called only if the part is not finished.
        sound: Function that takes crops and a generator, and returns the vocoder's audio for the crops, (batch, S).
    """
    model = VocoderInTraining(network)
    trainer = Trainer(model, part)
    if not trainer.finished:
        source = crops()

        def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
            chosen, at_start, at_end, wave = source.draw(generator)
            return model.losses(
                without_edges(sound(chosen, generator), at_start, at_end),
                without_edges(wave.to(part.device), at_start, at_end),
                index >= JUDGED_FROM,
            )

        trainer.run(step)
    return trainer.result().network


def train_univnet(part: TrainedPart, config: UnivNetConfig, shards: Sequence[Path]) -> nn.Module:
    torch.manual_seed(part.schedule.seed)
    network, mels = UnivNet(config), []

    def crops() -> Crops:
        waves = [wave for path in shards for wave in Shard.load(path).clips if len(wave) > (FRAMES + 1) * HOP]
        mels.extend(diffusion_mel(wave) for wave in waves)
        return Crops(waves, [mel.shape[1] for mel in mels], HOP, FRAMES, part.schedule.batch)

    def sound(chosen: list[tuple[int, int]], generator: torch.Generator) -> Tensor:
        mel = np.stack([mels[clip][:, first : first + FRAMES] for clip, first in chosen])
        noise = torch.randn(len(mel), config.noise_dim, FRAMES, generator=generator)
        return network.sound(torch.from_numpy(mel).to(part.device), noise.to(part.device))[:, 0]

    return train_vocoder(part, network, crops, sound)


def train_hifigan(
    part: TrainedPart,
    config: HifiganConfig,
    clips: Sequence[Clip],
    latents: Callable[[Clip], np.ndarray],
    conditioning: np.ndarray,
) -> nn.Module:
    """Train HiFi-GAN. ``latents`` returns a clip's latents (n, D). ``conditioning`` has the latents (voices, D)."""
    torch.manual_seed(part.schedule.seed)
    network, hidden, voices = Hifigan(config), [], torch.from_numpy(conditioning).to(part.device)
    clips = [clip for clip in clips if len(clip.codes) > LATENTS]

    def crops() -> Crops:
        audio = {path: Shard.load(path).clips for path in {clip.shard for clip in clips}}
        hidden.extend(latents(clip).astype(np.float32) for clip in clips)
        return Crops(
            [audio[clip.shard][clip.index] for clip in clips],
            list(map(len, hidden)),
            SAMPLES_PER_LATENT,
            LATENTS,
            part.schedule.batch,
        )

    def sound(chosen: list[tuple[int, int]], _: torch.Generator) -> Tensor:
        rows = np.stack([interpolate_latents(hidden[clip][first : first + LATENTS]) for clip, first in chosen])
        return network(torch.from_numpy(rows).to(part.device), voices[[clips[clip].voice for clip, _ in chosen]])[:, 0]

    return train_vocoder(part, network, crops, sound)
