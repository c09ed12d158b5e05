"""Train the diffusion decoder (the denoiser) on clips that the autoregressive decoder was not trained on.

Its inputs are the latents that the autoregressive decoder computes for these clips.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ane.audio.mel import HOP, diffusion_mel, normalise_mel
from ane.models.tortoise.diffusion import frame_count
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig, DiffusionTts
from ane.models.tortoise.schedule import TRAINED_STEPS, Schedule
from training.speech import Batches, Clip, Shard
from training.trainer import TrainedPart, Trainer, fast_autocast

UNCONDITIONED = 0.12  # this share of the clips has no conditioning, for classifier-free guidance
BLENDED = 0.10  # this share of the clips has a blend of voices, so that a voice also fits latents of another speaker


class DenoiserInTraining(nn.Module):
    """The denoiser, and a latent for each voice."""

    def __init__(self, config: DiffusionConfig, voices: int):
        super().__init__()
        self.network = DiffusionTts(config)
        self.voices = nn.Parameter(torch.zeros(voices, 2 * config.model_channels))
        for name, parameter in self.named_parameters():
            if name.endswith("unconditioned_embedding"):
                nn.init.normal_(parameter)
            elif parameter.ndim > 1 and "relative" not in name and name != "voices":
                # last layers of blocks have small weights, so that blocks start close to the identity
                last = ".out." in name or "out_layers.3" in name or "proj_out" in name
                nn.init.normal_(parameter, std=(0.1 if last else 1.0) * parameter[0].numel() ** -0.5)
            elif "norm" in name or "_layers.0" in name or ".out.0" in name:
                nn.init.constant_(parameter, float(name.endswith("weight")))
            else:
                nn.init.zeros_(parameter)
        nn.init.normal_(self.voices, std=0.3)


@torch.no_grad()
def fix_variance(network: DiffusionTts) -> None:
    """Set the variance channels to the constant −1, which means the variance of the posterior (Ho et al. 2020).

    These channels are not trained with the variational bound (Nichol & Dhariwal 2021), because that fails in a short
    training that predicts x0. At low noise, the remaining error of x0 is inaudible, but large compared with the
    variance of the posterior. So the channels would grow until ancestral sampling yields noise.
    """
    out = network.out[2]
    mels = out.out_channels // 2
    out.weight[mels:], out.bias[mels:] = 0.0, -1.0


@dataclass
class DenoiserObjective:
    """Computes the denoiser's loss for a training step.

    Attributes:
        model: The denoiser.
        clips: Clips to train on.
        hidden: Latents of each clip, (n, D) float32.
        mels: Normalised mel of each clip, (100, L) float32.
        batches: Batches of the clips.
        alphas_cumprod: Cumulative products of the diffusion schedule's alphas, (TRAINED_STEPS,) float32.
        device: Torch device.
    """

    model: DenoiserInTraining
    clips: Sequence[Clip]
    hidden: Sequence[np.ndarray]
    mels: Sequence[np.ndarray]
    batches: Batches
    alphas_cumprod: Tensor
    device: str

    def step(self, index: int, generator: torch.Generator) -> dict[str, Tensor]:
        chosen, network, voices = self.batches[index].tolist(), self.model.network, self.model.voices
        count = min(len(self.hidden[i]) for i in chosen)  # all clips are cut to the length of the shortest clip
        frames = frame_count(count)
        x0 = torch.from_numpy(np.stack([self.mels[i][:, :frames] for i in chosen])).to(self.device)
        latents = torch.from_numpy(np.stack([self.hidden[i][:count] for i in chosen])).to(self.device)
        B = len(chosen)
        t = torch.randint(TRAINED_STEPS, (B,), generator=generator).to(self.device)
        noise = torch.randn(x0.shape, generator=generator).to(self.device)
        hide, blend, weight = (torch.rand(B, 1, 1, generator=generator).to(self.device) for _ in range(3))
        alpha = self.alphas_cumprod[t][:, None, None]
        x = alpha.sqrt() * x0 + (1 - alpha).sqrt() * noise
        own = voices[torch.tensor([self.clips[i].voice for i in chosen], device=self.device)]
        voice = torch.where(blend[:, 0] < BLENDED, torch.lerp(voices[0], voices[-1], weight[:, 0]), own)
        with fast_autocast(self.device):
            conditioning = network.condition(latents, voice, frames)
            conditioning = torch.where(hide < UNCONDITIONED, network.unconditioned(frames), conditioning)
            prediction = network(x, t, conditioning).float()[:, : x0.shape[1]]
        return {"loss": ((prediction - x0) ** 2).mean()}


def train_denoiser(
    part: TrainedPart,
    config: DiffusionConfig,
    clips: Sequence[Clip],
    latents: Callable[[Clip], np.ndarray],
    voices: int,
) -> DenoiserInTraining:
    """Train the denoiser, which must predict x0 (``config.prediction``).

    ``latents`` takes a clip, and returns its latents (n, D) with the latents of the silence after its end.
    """
    assert config.prediction == "x0"
    torch.manual_seed(part.schedule.seed)
    model = DenoiserInTraining(config, voices)
    trainer = Trainer(model, part)
    if not trainer.finished:
        audio = {path: Shard.load(path).clips for path in {clip.shard for clip in clips}}
        hidden = [latents(clip).astype(np.float32) for clip in clips]
        mels = [
            padded_mel(audio[clip.shard][clip.index], frame_count(len(rows)))
            for clip, rows in zip(clips, hidden, strict=True)
        ]
        batches = Batches([mel.shape[1] for mel in mels], part.schedule.batch, part.schedule.seed)
        alphas_cumprod = torch.from_numpy(Schedule(TRAINED_STEPS).alphas_cumprod).float().to(part.device)
        trainer.run(DenoiserObjective(model, clips, hidden, mels, batches, alphas_cumprod, part.device).step)
    fix_variance(trainer.result().network)
    return model


def padded_mel(audio: np.ndarray, frames: int) -> np.ndarray:
    """Compute the normalised mel (100, frames) float32 of audio (S,) at 24 kHz.

    If the audio is too short for ``frames`` frames, silence follows it.
    """
    audio = np.pad(audio, (0, max(0, frames * HOP - len(audio))))
    return normalise_mel(diffusion_mel(audio)[:, :frames]).astype(np.float32)
