"""Train the two encoders from clips to voice latents, and the two converters from noise to voice latents.

The decoders have learned a latent for each teacher. The encoders map a teacher's clips to its latent. The converters
map noise to one latent or to a blend.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ane.audio import resample
from ane.audio.mel import CONDITIONING_RATE
from ane.models.tortoise.networks.conditioning import RandomLatentConverter, RandomLatentConverterConfig
from training.pitch import RATE
from training.speech import Shard, voice_of
from training.trainer import TrainedPart, Trainer

RECORDINGS = 200  # recordings of each teacher
SHARPNESS = 6.0  # the larger, the less often noise is mapped to a blend of the voices


def recordings(shards: Sequence[Path], voices: Sequence[str], seed: int) -> list[tuple[int, np.ndarray]]:
    """Return ``RECORDINGS`` per voice, (voice, (S,) float32 at 22050 Hz).

    Each is one to four clips joined and scaled at random.
    """
    rng = np.random.default_rng(seed)
    recordings_of_voices: list[tuple[int, np.ndarray]] = []
    for index in range(len(voices)):
        clips = [clip for path in shards if voice_of(path, voices) == index for clip in Shard.load(path).clips]
        for _ in range(RECORDINGS):
            chosen = rng.integers(0, len(clips), rng.integers(1, 5))
            audio = np.concatenate([clips[clip] for clip in chosen]) * rng.uniform(0.4, 1.6)
            recordings_of_voices.append((index, resample(audio.astype(np.float32), RATE, CONDITIONING_RATE)))
    return recordings_of_voices


def train_encoder(
    part: TrainedPart, encoder: nn.Module, mels: Sequence[tuple[int, np.ndarray]], targets: Tensor
) -> nn.Module:
    """Train an encoder to map mels (voice, (bands, L)) to its voice's latent in ``targets`` (voices, width)."""
    torch.manual_seed(part.schedule.seed)
    for name, parameter in encoder.named_parameters():
        if parameter.ndim > 1 and "relative" not in name:
            nn.init.normal_(parameter, std=(0.2 if "proj_out" in name else 1.0) * parameter[0].numel() ** -0.5)
        else:
            nn.init.constant_(parameter, float("norm" in name and name.endswith("weight")))
    trainer, device = Trainer(encoder, part), part.device
    targets = targets.detach().to(device)

    def loss(_: int, generator: torch.Generator) -> dict[str, Tensor]:
        chosen = torch.randint(len(mels), (part.schedule.batch,), generator=generator).tolist()
        mel = torch.from_numpy(np.stack([mels[index][1] for index in chosen])).to(device)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            prediction = encoder(mel).float()
        error = ((prediction - targets[[mels[index][0] for index in chosen]]) ** 2).mean()
        return {"loss": error, "error / spread": error.detach() / targets.var(dim=0).mean()}

    trainer.run(loss)
    return trainer.result()


def train_converter(part: TrainedPart, config: RandomLatentConverterConfig, targets: Tensor) -> nn.Module:
    """Train a converter to map noise to a latent on the line between the first and the last voice.

    Most latents are near its ends.
    """
    schedule, device = part.schedule, part.device
    torch.manual_seed(schedule.seed)
    converter = RandomLatentConverter(config)
    for name, parameter in converter.named_parameters():
        width = config.channels
        std = 1 / converter.layers[0].rate if ".5." not in name else width**-0.5
        nn.init.normal_(parameter, std=std) if parameter.ndim > 1 else nn.init.zeros_(parameter)
    trainer = Trainer(converter, part)
    targets = targets.detach().to(device)
    direction = torch.randn(config.channels, generator=torch.Generator().manual_seed(schedule.seed)).to(device)
    direction = direction / direction.norm()

    def loss(_: int, generator: torch.Generator) -> dict[str, Tensor]:
        noise = torch.randn(schedule.batch, config.channels, generator=generator).to(device)
        weight = torch.sigmoid(SHARPNESS * (noise @ direction))[:, None]
        error = ((converter(noise) - torch.lerp(targets[0], targets[-1], weight)) ** 2).mean()
        return {"loss": error, "error / spread": error.detach() / targets.var(dim=0).mean()}

    trainer.run(loss)
    return trainer.result()
