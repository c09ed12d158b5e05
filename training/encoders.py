"""Train the networks that make a voice's latents: two encoders from clips, and two converters from noise.

The autoregressive decoder and the denoiser have each learned one latent per voice. An encoder learns to map clips of a
voice to the voice's latent. A converter learns to map noise to one of the latents, or to a blend of them.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ane.audio import resample
from ane.audio.mel import CONDITIONING_RATE
from ane.models.tortoise.networks.conditioning import RandomLatentConverter, RandomLatentConverterConfig
from training.pitch import RATE
from training.speech import Shard, voice_of
from training.trainer import TrainedPart, Trainer, fast_autocast

RECORDINGS = 200  # number of recordings per voice
SHARPNESS = 6.0  # a larger number makes the converters map noise to blends of voices less often


def recordings(shards: Sequence[Path], voices: Sequence[str], seed: int) -> list[tuple[int, np.ndarray]]:
    """Make ``RECORDINGS`` recordings per voice, as (index of the voice, audio (S,) float32 at 24 kHz).

    A recording consists of one to four random clips of the voice, joined and multiplied by a random factor.
    """
    rng = np.random.default_rng(seed)
    recordings_of_voices: list[tuple[int, np.ndarray]] = []
    for index in range(len(voices)):
        clips = [clip for path in shards if voice_of(path, voices) == index for clip in Shard.load(path).clips]
        for _ in range(RECORDINGS):
            chosen = rng.integers(0, len(clips), rng.integers(1, 5))
            audio = np.concatenate([clips[clip] for clip in chosen]) * rng.uniform(0.4, 1.6)
            recordings_of_voices.append((index, audio.astype(np.float32)))
    return recordings_of_voices


def train_encoder(
    part: TrainedPart,
    encoder: nn.Module,
    recordings: Callable[[], Sequence[tuple[int, np.ndarray]]],
    mel: Callable[[np.ndarray, np.random.Generator], np.ndarray],
    targets: Tensor,
) -> nn.Module:
    """Train an encoder to map mels to voice latents.

    Args:
        part: Part to train.
        encoder: The encoder.
        recordings: Function that returns pairs of a voice's index and audio (S,) at 24 kHz. It is called only if the
            part is not finished.
        mel: Function that takes audio at 22050 Hz and a generator, and returns a mel (bands, L) of a window of it.
        targets: Latents of all voices, (voices, width).
    """
    torch.manual_seed(part.schedule.seed)
    for name, parameter in encoder.named_parameters():
        if parameter.ndim > 1 and "relative" not in name:
            nn.init.normal_(parameter, std=(0.2 if "proj_out" in name else 1.0) * parameter[0].numel() ** -0.5)
        else:
            nn.init.constant_(parameter, float("norm" in name and name.endswith("weight")))
    trainer, device = Trainer(encoder, part), part.device
    if trainer.finished:
        return trainer.result()
    targets, heard = targets.detach().to(device), recordings()

    @cache
    def example(index: int) -> tuple[int, np.ndarray]:
        voice, audio = heard[index]
        rng = np.random.default_rng([part.schedule.seed, index])
        return voice, mel(resample(audio, RATE, CONDITIONING_RATE), rng)

    def loss(_: int, generator: torch.Generator) -> dict[str, Tensor]:
        chosen = torch.randint(len(heard), (part.schedule.batch,), generator=generator).tolist()
        voices, mels = zip(*map(example, chosen), strict=True)
        with fast_autocast(device):
            prediction = encoder(torch.from_numpy(np.stack(mels)).to(device)).float()
        error = ((prediction - targets[list(voices)]) ** 2).mean()
        return {"loss": error, "error / spread": error.detach() / targets.var(dim=0).mean()}

    trainer.run(loss)
    return trainer.result()


def train_converter(part: TrainedPart, config: RandomLatentConverterConfig, targets: Tensor) -> nn.Module:
    """Train a converter to map noise to a latent on the line between the latents of the first and the last voice.

    Most of the latents are near one of the two voices.
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
