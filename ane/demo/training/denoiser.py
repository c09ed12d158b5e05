"""The diffusion decoder, from latents of clips that the autoregressive decoder never learned."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ane.demo.training.clips import Batches, Clip
from ane.demo.training.loop import Plan, Training
from ane.demo.training.speech import Shard
from ane.demo.training.vocoders import at_24k
from ane.diffusion import TRAINED_STEPS, Schedule, frames_of
from ane.mel import HOP, diffusion_mel, normalise_mel
from ane.networks.diffusion import DiffusionConfig, DiffusionTts

FRAMES = 3000               # of a batch
UNCONDITIONED = 0.12        # share of clips whose conditioning is hidden, for guidance
BLENDED = 0.10              # share whose voice is a blend: a voice that does not fit the latents must do no harm
VARIANCE_WEIGHT = 1e-3


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


def variance_bound(schedule: dict[str, Tensor], t: Tensor, x: Tensor, x0: Tensor, said_x0: Tensor,
                   spread: Tensor) -> Tensor:
    """What the variance channels learn from: the variational bound in bits, the mean held fixed
    (Nichol & Dhariwal 2021, section 3.1; upstream utils/diffusion.py, _vb_terms_bpd)."""
    def at(name: str) -> Tensor:
        return schedule[name][t][:, None, None]

    true_mean = at("coef1") * x0 + at("coef2") * x
    mean = at("coef1") * said_x0 + at("coef2") * x
    share = (spread + 1) / 2
    log_variance = share * at("log_beta") + (1 - share) * at("log_posterior")
    difference = at("log_posterior") - log_variance
    return 0.5 * (-1 - difference + difference.exp() + (true_mean - mean) ** 2 * (-log_variance).exp()) / np.log(2)


def schedule_tensors(device: str) -> dict[str, Tensor]:
    schedule = Schedule(TRAINED_STEPS)
    rows = {"kept": schedule.alphas_cumprod, "coef1": schedule.posterior_mean_coef1,
            "coef2": schedule.posterior_mean_coef2, "log_beta": np.log(schedule.betas),
            "log_posterior": schedule.posterior_log_variance_clipped}
    return {name: torch.from_numpy(row).float().to(device) for name, row in rows.items()}


def train_denoiser(folder: Path, config: DiffusionConfig, clips: Sequence[Clip],
                   latents: Callable[[Clip], np.ndarray], voices: int, plan: Plan, device: str) -> DenoiserInTraining:
    """``latents``: (n, D) of a clip, the silent ones after its end included. The config must predict x0."""
    assert config.prediction == "x0"
    torch.manual_seed(plan.seed)
    model = DenoiserInTraining(config, voices)
    training = Training(folder, model, plan, device)
    if training.finished:
        return model.eval()
    shards = {path: Shard.load(path) for path in {clip.shard for clip in clips}}
    hidden = [latents(clip).astype(np.float32) for clip in clips]
    mels = []
    for clip, rows in zip(clips, hidden, strict=True):
        audio, frames = at_24k(shards[clip.shard], clip.index), frames_of(len(rows))
        audio = np.pad(audio, (0, max(0, frames * HOP - len(audio))))
        mels.append(normalise_mel(diffusion_mel(audio)[:, :frames]).astype(np.float32))
    batches = Batches([mel.shape[1] for mel in mels], FRAMES, plan.seed)
    schedule, network = schedule_tensors(device), model.network

    def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        chosen = batches[index].tolist()
        # clips of a batch differ by a few frames: the shortest says where all are cut
        count = min(len(hidden[i]) for i in chosen)
        frames = frames_of(count)
        x0 = torch.from_numpy(np.stack([mels[i][:, :frames] for i in chosen])).to(device)
        rows = torch.from_numpy(np.stack([hidden[i][:count] for i in chosen])).to(device)
        B = len(chosen)
        t = torch.randint(TRAINED_STEPS, (B,), generator=generator).to(device)
        noise = torch.randn(x0.shape, generator=generator).to(device)
        hide, blend, weight = (torch.rand(B, 1, 1, generator=generator).to(device) for _ in range(3))
        kept = schedule["kept"][t][:, None, None]
        x = kept.sqrt() * x0 + (1 - kept).sqrt() * noise
        own = model.voices[torch.tensor([clips[i].voice for i in chosen], device=device)]
        mixed = torch.lerp(model.voices[0], model.voices[-1], weight[:, 0])
        voice = torch.where(blend[:, 0] < BLENDED, mixed, own)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            code = network.condition(rows, voice, frames)
            code = torch.where(hide < UNCONDITIONED, network.unconditioned(frames), code)
            said, spread = network(x, t, code).float().chunk(2, dim=1)
        error = ((said - x0) ** 2).mean()
        bound = variance_bound(schedule, t, x, x0, said.detach(), spread).mean()
        return {"loss": error + VARIANCE_WEIGHT * bound, "error": error}

    training.run(step)
    return model.eval()
