"""What gives a voice: the two encoders that listen to clips, and the two converters that dream one up.

The decoders have learned a latent for each teacher; here clips of a teacher are led to its latent, and noise to one
of them or to a blend.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ane.audio import resample
from ane.audio.mel import CONDITIONING_RATE, conditioning_mel, diffusion_mel
from ane.models.tortoise.networks.conditioning import (
    ConditioningEncoder,
    ConditioningEncoderConfig,
    ContextualEmbedder,
    ContextualEmbedderConfig,
    RandomLatentConverter,
    RandomLatentConverterConfig,
)
from ane.models.tortoise.voice_encoding import conditioning_window, diffusion_window
from training.loop import Begin, Plan, Training
from training.speech import RATE, Shard

BATCH = 6
LISTENED = 200          # recordings of each teacher
SHARPNESS = 6.0         # how much rather noise becomes one of the voices than a blend of them


def recordings(shards: Sequence[Path], voices: Sequence[str], seed: int) -> list[tuple[int, np.ndarray]]:
    """``LISTENED`` of each voice, (voice, (S,) float32 at 22050 Hz): one to four clips in a row, of some loudness."""
    rng = np.random.default_rng(seed)
    made: list[tuple[int, np.ndarray]] = []
    for index, voice in enumerate(voices):
        own = [path for path in shards if path.stem.endswith(f"-{voice}")][:2]
        for path in own:
            shard = Shard.load(path)
            for _ in range(LISTENED // len(own)):
                chosen = rng.integers(0, len(shard.texts), rng.integers(1, 5))
                audio = np.concatenate([shard.clip(int(clip)) for clip in chosen]) * rng.uniform(0.4, 1.6)
                made.append((index, resample(audio.astype(np.float32), RATE, CONDITIONING_RATE)))
    return made


def train_encoder(folder: Path, encoder: nn.Module, mels: Sequence[tuple[int, np.ndarray]], wanted: Tensor, plan: Plan,
                  device: str, begin: Begin | None) -> nn.Module:
    """Lead mels (voice, (bands, L)) to the latents of their voices (voices, width)."""
    torch.manual_seed(plan.seed)
    start(encoder)
    training = Training(folder, encoder, plan, device, begin)
    wanted = wanted.detach().to(device)

    def step(_: int, generator: torch.Generator) -> dict[str, Tensor]:
        chosen = torch.randint(len(mels), (BATCH,), generator=generator).tolist()
        mel = torch.from_numpy(np.stack([mels[index][1] for index in chosen])).to(device)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            said = encoder(mel).float()
        error = ((said - wanted[[mels[index][0] for index in chosen]]) ** 2).mean()
        return {"loss": error, "error / spread": error.detach() / wanted.var(dim=0).mean()}

    training.run(step)
    return encoder.eval()


def train_conditioning_encoder(folder: Path, config: ConditioningEncoderConfig, heard: Sequence[tuple[int, np.ndarray]],
                               wanted: Tensor, mel_norms: np.ndarray, plan: Plan, device: str,
                               begin: Begin | None = None) -> nn.Module:
    rng = np.random.default_rng(plan.seed)
    mels = [(voice, conditioning_mel(conditioning_window(audio, rng), mel_norms)) for voice, audio in heard]
    return train_encoder(folder, ConditioningEncoder(config), mels, wanted, plan, device, begin)


def train_contextual_embedder(folder: Path, config: ContextualEmbedderConfig, heard: Sequence[tuple[int, np.ndarray]],
                              wanted: Tensor, plan: Plan, device: str, begin: Begin | None = None) -> nn.Module:
    mels = [(voice, diffusion_mel(diffusion_window(audio))) for voice, audio in heard]
    return train_encoder(folder, ContextualEmbedder(config), mels, wanted, plan, device, begin)


def train_converter(folder: Path, config: RandomLatentConverterConfig, wanted: Tensor, plan: Plan,
                    device: str) -> nn.Module:
    """Noise → a latent on the line between the first voice and the last, mostly near its ends."""
    torch.manual_seed(plan.seed)
    converter = RandomLatentConverter(config)
    for name, parameter in converter.named_parameters():
        width = config.channels
        std = 1 / converter.layers[0].rate if ".5." not in name else width ** -0.5
        nn.init.normal_(parameter, std=std) if parameter.ndim > 1 else nn.init.zeros_(parameter)
    training = Training(folder, converter, plan, device)
    wanted = wanted.detach().to(device)
    direction = torch.randn(config.channels, generator=torch.Generator().manual_seed(plan.seed)).to(device)
    direction = direction / direction.norm()

    def step(_: int, generator: torch.Generator) -> dict[str, Tensor]:
        noise = torch.randn(256, config.channels, generator=generator).to(device)
        share = torch.sigmoid(SHARPNESS * (noise @ direction))[:, None]
        error = ((converter(noise) - torch.lerp(wanted[0], wanted[-1], share)) ** 2).mean()
        return {"loss": error, "error / spread": error.detach() / wanted.var(dim=0).mean()}

    training.run(step)
    return converter.eval()


def start(encoder: nn.Module) -> None:
    for name, parameter in encoder.named_parameters():
        if parameter.ndim > 1 and "relative" not in name:
            nn.init.normal_(parameter, std=(0.2 if "proj_out" in name else 1.0) * parameter[0].numel() ** -0.5)
        else:
            nn.init.constant_(parameter, float("norm" in name and name.endswith("weight")))
