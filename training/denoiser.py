"""The diffusion decoder, from latents of clips that the autoregressive decoder never learned."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ane.audio.mel import HOP, diffusion_mel, normalise_mel
from ane.models.tortoise.diffusion import TRAINED_STEPS, Schedule, frame_count
from ane.models.tortoise.networks.diffusion_decoder import DiffusionConfig, DiffusionTts
from training.clips import Batches, Clip
from training.loop import Begin, Plan, Training
from training.speech import Shard
from training.vocoders import at_24k

FRAMES = 3000               # of a batch
UNCONDITIONED = 0.12        # share of clips whose conditioning is hidden, for guidance
BLENDED = 0.10              # share whose voice is a blend: a voice that does not fit the latents must do no harm


class DenoiserInTraining(nn.Module):
    """The denoiser and a voice latent for each teacher."""

    def __init__(self, config: DiffusionConfig, voices: int):
        super().__init__()
        self.network = DiffusionTts(config)
        self.voices = nn.Parameter(torch.zeros(voices, 2 * config.model_channels))
        for name, parameter in self.named_parameters():
            if name.endswith("unconditioned_embedding"):
                nn.init.normal_(parameter)
            elif parameter.ndim > 1 and "relative" not in name and name != "voices":
                silent = ".out." in name or "out_layers.3" in name or "proj_out" in name    # blocks begin as identity
                nn.init.normal_(parameter, std=(0.1 if silent else 1.0) * parameter[0].numel() ** -0.5)
            elif "norm" in name or "_layers.0" in name or ".out.0" in name:
                nn.init.constant_(parameter, float(name.endswith("weight")))
            else:
                nn.init.zeros_(parameter)
        nn.init.normal_(self.voices, std=0.3)


@torch.no_grad()
def fix_variance(network: DiffusionTts) -> None:
    """Let the variance channels say −1 always, the posterior's own variance (Ho et al. 2020).

    Learning them by the variational bound (Nichol & Dhariwal 2021) fails for x0-prediction in so short a time: what is
    left of the error at low noise, tiny for the ear, is huge beside the posterior's variance there, and drives the
    channels so far up that ancestral sampling drowns in noise.
    """
    out = network.out[2]
    mels = out.out_channels // 2
    out.weight[mels:], out.bias[mels:] = 0.0, -1.0


def finished(model: DenoiserInTraining) -> DenoiserInTraining:
    fix_variance(model.network)
    return model.eval()


def train_denoiser(folder: Path, config: DiffusionConfig, clips: Sequence[Clip],
                   latents: Callable[[Clip], np.ndarray], voices: int, plan: Plan, device: str,
                   begin: Begin | None = None) -> DenoiserInTraining:
    """``latents``: (n, D) of a clip, the silent ones after its end included. The config must predict x0."""
    assert config.prediction == "x0"
    torch.manual_seed(plan.seed)
    model = DenoiserInTraining(config, voices)
    training = Training(folder, model, plan, device, begin)
    if training.finished:
        return finished(model)
    shards = {path: Shard.load(path) for path in {clip.shard for clip in clips}}
    hidden = [latents(clip).astype(np.float32) for clip in clips]
    mels = []
    for clip, rows in zip(clips, hidden, strict=True):
        audio, frames = at_24k(shards[clip.shard], clip.index), frame_count(len(rows))
        audio = np.pad(audio, (0, max(0, frames * HOP - len(audio))))
        mels.append(normalise_mel(diffusion_mel(audio)[:, :frames]).astype(np.float32))
    batches = Batches([mel.shape[1] for mel in mels], FRAMES, plan.seed)
    alphas_cumprod = torch.from_numpy(Schedule(TRAINED_STEPS).alphas_cumprod).float().to(device)
    network = model.network

    def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        chosen = batches[index].tolist()
        # clips of a batch differ by a few frames: the shortest says where all are cut
        count = min(len(hidden[i]) for i in chosen)
        frames = frame_count(count)
        x0 = torch.from_numpy(np.stack([mels[i][:, :frames] for i in chosen])).to(device)
        rows = torch.from_numpy(np.stack([hidden[i][:count] for i in chosen])).to(device)
        B = len(chosen)
        t = torch.randint(TRAINED_STEPS, (B,), generator=generator).to(device)
        noise = torch.randn(x0.shape, generator=generator).to(device)
        hide, blend, weight = (torch.rand(B, 1, 1, generator=generator).to(device) for _ in range(3))
        kept = alphas_cumprod[t][:, None, None]
        x = kept.sqrt() * x0 + (1 - kept).sqrt() * noise
        own = model.voices[torch.tensor([clips[i].voice for i in chosen], device=device)]
        mixed = torch.lerp(model.voices[0], model.voices[-1], weight[:, 0])
        voice = torch.where(blend[:, 0] < BLENDED, mixed, own)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            code = network.condition(rows, voice, frames)
            code = torch.where(hide < UNCONDITIONED, network.unconditioned(frames), code)
            said = network(x, t, code).float()[:, :x0.shape[1]]
        return {"loss": ((said - x0) ** 2).mean()}

    training.run(step)
    return finished(model)
