"""Training of the fast voice's vocoder: HiFi-GAN from mels, first by spectra alone, then against a discriminator.

The discriminator is HiFi-GAN's of several periods (Kong et al. 2020, section 2.3) with far fewer channels, and the
losses of that stage are HiFi-GAN's: least squares, the distance of the discriminator's features, and the spectra.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ane.models.fastspeech.result import HIGHEST, HOP, SAMPLE_RATE
from ane.models.vocoders.hifigan import MelHifigan, MelHifiganConfig
from training.timed_speech import load_timed_shard
from training.trained_mel import BANDS
from training.trainer import PartSchedule, Trainer
from training.vocoders import SpectralLoss, batch_of, initialise_convolutions, without_edges

FRAMES = 40                         # of a crop
PERIODS = (2, 3, 5, 7, 11)          # samples
CHANNELS = (16, 32, 64, 64)
FEATURE_WEIGHT, SPECTRAL_WEIGHT = 1.0, 10.0     # of HiFi-GAN's 2 and 45, whose mel distance is a smaller number
SLOPE = 0.1


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


class VocoderInTraining(nn.Module):
    """The generator, which is published, and its discriminator."""

    def __init__(self, config: MelHifiganConfig):
        super().__init__()
        self.network, self.discriminator = MelHifigan(config), Discriminator()

    def adversarial_losses(self, output: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Losses of the generator ("adversarial", "features") and of the discriminator; audio (B, S) each."""
        frozen = {name: parameter.detach() for name, parameter in self.discriminator.named_parameters()}
        ours, theirs = (functional_call(self.discriminator, frozen, (audio,)) for audio in (output, target))
        pairs = list(zip(ours, theirs, strict=True))
        features = [(a - b.detach()).abs().mean() for one, other in pairs
                    for a, b in zip(one[:-1], other[:-1], strict=True)]
        judged = self.discriminator(torch.cat([target, output.detach()]))
        half = len(target)
        return {"adversarial": sum(((1 - one[-1]) ** 2).mean() for one in ours) / len(PERIODS),
                "features": sum(features) / len(PERIODS),
                "discriminator": sum(((1 - one[-1][:half]) ** 2).mean() + (one[-1][half:] ** 2).mean()
                                     for one in judged) / len(PERIODS)}


def train_mel_vocoder(folder: Path, config: MelHifiganConfig, shards: Sequence[Path], schedule: PartSchedule,
                      adversarial_from: int, batch: int, device: str) -> MelHifigan:
    """``adversarial_from``: the step from which there is a discriminator."""
    torch.manual_seed(schedule.seed)
    module, spectra = VocoderInTraining(config), SpectralLoss(SAMPLE_RATE, BANDS, HIGHEST).to(device)
    initialise_convolutions(module.network)
    trainer = Trainer(folder, module, schedule, device)
    if trainer.finished:
        return module.network.eval()
    clips = [clip for shard in shards for clip in load_timed_shard(shard) if len(clip.mel) > FRAMES]

    def crop(index: int, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        clip = clips[index]
        first = int(torch.randint(len(clip.mel) - FRAMES + 1, (), generator=generator))
        wave = clip.audio[first * HOP:(first + FRAMES) * HOP].astype(np.float32) / 32767
        return clip.mel[first:first + FRAMES].T.astype(np.float32), wave

    def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        _, mel, wave = batch_of(crop, len(clips), batch, generator, device)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            output = module.network(mel)[:, 0]
        output, wave = without_edges(output.float()), without_edges(wave)
        spectral = spectra(output, wave)
        if index < adversarial_from:
            return {"loss": spectral}
        losses = module.adversarial_losses(output, wave)
        total = (SPECTRAL_WEIGHT * spectral + losses["adversarial"] + FEATURE_WEIGHT * losses["features"]
                 + losses["discriminator"])
        return {"loss": total, "spectra": spectral, **losses}

    trainer.run(step)
    return module.network.eval()
