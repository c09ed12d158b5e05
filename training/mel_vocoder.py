"""Training of the fast voice's vocoder, HiFi-GAN from mels: first by spectra alone, then against a discriminator.

The discriminator is HiFi-GAN's of several periods (Kong et al. 2020, section 2.3) with far fewer channels, and the
losses of that stage are HiFi-GAN's: least squares, the distance of the discriminator's features, and the spectra.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ane.models.fastspeech.result import HIGHEST, HOP, SAMPLE_RATE
from ane.models.vocoders.hifigan import MelHifigan, MelHifiganConfig
from training.timed_speech import TimedClip, load_timed_shard
from training.trained_mel import BANDS
from training.trainer import PartSchedule, Trainer
from training.vocoders import SpectralLoss, batch_of, initialise_convolutions, without_edges

FRAMES = 40                         # of a crop
PERIODS = (2, 3, 5, 7, 11)          # samples
CHANNELS = (16, 32, 64, 64)
# HiFi-GAN weighs its spectra with 45; that distance is a number about seven times smaller than ``SpectralLoss``
FEATURE_WEIGHT, SPECTRAL_WEIGHT = 2.0, 6.0
SLOPE = 0.1

# clip → its mel (L, 80), as the vocoder is given it
Mel = Callable[[TimedClip], np.ndarray]


class PeriodDiscriminator(nn.Module):
    """Sees every n-th sample: audio (B, S) → features of each layer, the last the scores."""

    def __init__(self, period: int):
        super().__init__()
        self.period = period
        self.layers = nn.ModuleList(nn.Conv2d(before, after, (5, 1), (3, 1), (2, 0))
                                    for before, after in zip((1, *CHANNELS), CHANNELS, strict=False))
        self.scores = nn.Conv2d(CHANNELS[-1], 1, (3, 1), padding=(1, 0))

    def forward(self, audio: Tensor) -> list[Tensor]:
        audio = F.pad(audio, (0, -audio.shape[1] % self.period))
        x, features = audio.reshape(len(audio), 1, -1, self.period), []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), SLOPE)
            features.append(x)
        return [*features, self.scores(x)]


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.periods = nn.ModuleList(PeriodDiscriminator(period) for period in PERIODS)

    def forward(self, audio: Tensor) -> list[list[Tensor]]:
        return [period(audio) for period in self.periods]


class AdversarialVocoder(nn.Module):
    """The generator, which is published, and its discriminator."""

    def __init__(self, network: MelHifigan):
        super().__init__()
        self.network, self.discriminator = network, Discriminator()

    def losses(self, output: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Losses of the generator ("adversarial", "features") and of the discriminator; audio (B, S) each."""
        frozen = {name: parameter.detach() for name, parameter in self.discriminator.named_parameters()}
        ours, theirs = (functional_call(self.discriminator, frozen, (audio,)) for audio in (output, target))
        features = [(a - b).abs().mean() for one, other in zip(ours, theirs, strict=True)
                    for a, b in zip(one[:-1], other[:-1], strict=True)]
        judged = [one[-1].chunk(2) for one in self.discriminator(torch.cat([target, output.detach()]))]
        return {"adversarial": sum(((1 - one[-1]) ** 2).mean() for one in ours), "features": sum(features),
                "discriminator": sum(((1 - real) ** 2).mean() + (false ** 2).mean() for real, false in judged)}


@dataclass
class VocoderCrops:
    """Crops of clips at random positions: mels, and their sound."""

    clips: Sequence[TimedClip]
    batch: int
    device: str

    @classmethod
    def of(cls, shards: Sequence[Path], batch: int, device: str) -> "VocoderCrops":
        return cls([clip for shard in shards for clip in load_timed_shard(shard) if len(clip.mel) > FRAMES], batch,
                   device)

    def draw(self, mel: Mel, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Mels (B, 80, FRAMES) and sound (B, S)."""
        def crop(index: int, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
            clip = self.clips[index]
            first = int(torch.randint(len(clip.mel) - FRAMES + 1, (), generator=generator))
            wave = clip.audio[first * HOP:(first + FRAMES) * HOP].astype(np.float32) / 32767
            return mel(clip)[first:first + FRAMES].T.astype(np.float32), wave

        _, mels, waves = batch_of(crop, len(self.clips), self.batch, generator, self.device)
        return mels, waves


def train_mel_vocoder(folder: Path, config: MelHifiganConfig, shards: Sequence[Path], schedule: PartSchedule,
                      batch: int, device: str) -> MelHifigan:
    """Train a vocoder on the teacher's mels by spectra alone."""
    torch.manual_seed(schedule.seed)
    network, spectra = MelHifigan(config), fast_voice_loss(device)
    initialise_convolutions(network)
    trainer = Trainer(folder, network, schedule, device)
    if trainer.finished:
        return network.eval()
    crops = VocoderCrops.of(shards, batch, device)

    def step(_: int, generator: torch.Generator) -> dict[str, Tensor]:
        mel, wave = crops.draw(lambda clip: clip.mel, generator)
        return {"loss": spectra(*compared(network, mel, wave, device))}

    trainer.run(step)
    return network.eval()


def train_adversarially(folder: Path, network: MelHifigan, shards: Sequence[Path], schedule: PartSchedule,
                        predicted_from: int, predict: Mel, batch: int, device: str) -> MelHifigan:
    """Train a vocoder further, against a discriminator.

    Args:
        predicted_from: the step from which the mels are those that ``predict`` gives, which the vocoder will be given
            in use; until then they are the teacher's.
    """
    torch.manual_seed(schedule.seed)
    module, spectra = AdversarialVocoder(network), fast_voice_loss(device)
    trainer = Trainer(folder, module, schedule, device)
    if trainer.finished:
        return module.network.eval()
    crops, predicted = VocoderCrops.of(shards, batch, device), cache(predict)
    module.train()

    def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        mel, wave = crops.draw(predicted if index >= predicted_from else lambda clip: clip.mel, generator)
        output, wave = compared(module.network, mel, wave, device)
        losses = {"spectra": spectra(output, wave), **module.losses(output, wave)}
        total = (SPECTRAL_WEIGHT * losses["spectra"] + losses["adversarial"] + FEATURE_WEIGHT * losses["features"]
                 + losses["discriminator"])
        return {"loss": total, **losses}

    trainer.run(step)
    return module.network.eval()


def fast_voice_loss(device: str) -> SpectralLoss:
    return SpectralLoss(SAMPLE_RATE, BANDS, HIGHEST).to(device)


def compared(network: MelHifigan, mel: Tensor, wave: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """The vocoder's sound of mels (B, 80, L) and its target (B, S), without the edges of the crops."""
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        output = network(mel)[:, 0]
    return without_edges(output.float()), without_edges(wave)
