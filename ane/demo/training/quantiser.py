"""Mel codes: a quantiser of 512 entries, one code for four frames. Needed in training only.

The vector quantiser follows its code means (van den Oord et al. 2017, appendix A.1); entries that nothing chooses
are restarted at encodings of the batch.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.demo.training.loop import Plan, Training
from ane.demo.training.speech import Shard
from ane.files import replacing

STAMP = "quantiser.sha256"      # in the folder of codes: which quantiser made them
WIDTH, ENTRY = 256, 64
DECAY, COMMITMENT = 0.99, 0.25
RESTART = 0.3           # an entry chosen more rarely than this a batch (on average 1 to 2) begins anew
CROP = 64               # frames of a training crop
BATCH = 48


class Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), nn.Conv1d(channels, channels, 3, padding=1), nn.ReLU(),
                                    nn.Conv1d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Quantiser(nn.Module):
    """Mel (B, 80, 4T) → codes (B, T) → mel."""

    def __init__(self, entries: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(80, 1))
        self.register_buffer("deviation", torch.ones(80, 1))
        self.register_buffer("entries", torch.randn(entries, ENTRY))
        self.register_buffer("counts", torch.zeros(entries))
        self.register_buffer("sums", torch.zeros(entries, ENTRY))
        self.encoder = nn.Sequential(
            nn.Conv1d(80, WIDTH, 4, stride=2, padding=1), Residual(WIDTH), nn.ReLU(),
            nn.Conv1d(WIDTH, WIDTH, 4, stride=2, padding=1), Residual(WIDTH), Residual(WIDTH), nn.ReLU(),
            nn.Conv1d(WIDTH, ENTRY, 1))
        self.decoder = nn.Sequential(
            nn.Conv1d(ENTRY, WIDTH, 3, padding=1), Residual(WIDTH), Residual(WIDTH), nn.ReLU(),
            nn.ConvTranspose1d(WIDTH, WIDTH, 4, stride=2, padding=1), Residual(WIDTH), nn.ReLU(),
            nn.ConvTranspose1d(WIDTH, 80, 4, stride=2, padding=1))

    def encode(self, mel: Tensor) -> Tensor:
        """(B, 80, 4T) → encodings (B·T, ENTRY)."""
        encoded = self.encoder((mel - self.mean) / self.deviation)
        return encoded.transpose(1, 2).reshape(-1, ENTRY)

    def nearest(self, encodings: Tensor) -> Tensor:
        return torch.cdist(encodings, self.entries).argmin(dim=1)

    def codes(self, mel: Tensor) -> Tensor:
        return self.nearest(self.encode(mel)).view(len(mel), -1)

    def mel(self, codes: Tensor) -> Tensor:
        """(B, T) → (B, 80, 4T)."""
        return self.decoder(self.entries[codes].transpose(1, 2)) * self.deviation + self.mean

    @torch.no_grad()
    def follow(self, encodings: Tensor, chosen: Tensor, generator: torch.Generator) -> None:
        """Move the entries to the running mean of what chose them."""
        self.counts.mul_(DECAY).index_add_(0, chosen, torch.full_like(chosen, 1 - DECAY, dtype=self.counts.dtype))
        self.sums.mul_(DECAY).index_add_(0, chosen, (1 - DECAY) * encodings)
        used = self.counts > RESTART
        self.entries[used] = self.sums[used] / self.counts[used, None]
        unused = (~used).nonzero()[:, 0]
        if len(unused):
            fresh = encodings[torch.randint(len(encodings), (len(unused),), generator=generator)]
            self.entries[unused], self.sums[unused], self.counts[unused] = fresh, fresh, 1.0

    def loss(self, mel: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        encodings = self.encode(mel).float()
        chosen = self.nearest(encodings.detach())
        entries = self.entries[chosen]
        commitment = F.mse_loss(encodings, entries)
        through = (encodings + (entries - encodings).detach()).view(len(mel), -1, ENTRY).transpose(1, 2)
        error = F.l1_loss(self.decoder(through).float(), (mel - self.mean) / self.deviation)
        self.follow(encodings.detach(), chosen, generator)
        share = torch.bincount(chosen, minlength=len(self.entries)).float() / len(chosen)
        perplexity = torch.exp(-(share * torch.log(share + 1e-9)).sum())
        return {"loss": error + COMMITMENT * commitment, "error": error, "perplexity / 1000": perplexity / 1000}


def train_quantiser(folder: Path, shards: list[Path], entries: int, plan: Plan, device: str) -> Quantiser:
    """Learn from a few shards: two hours of speech hold every sound."""
    mel = torch.from_numpy(np.concatenate([Shard.load(path).mel for path in shards]).astype(np.float32).T)
    quantiser = Quantiser(entries)
    quantiser.mean.copy_(mel.mean(dim=1, keepdim=True))
    quantiser.deviation.copy_(mel.std(dim=1, keepdim=True))
    training = Training(folder, quantiser, plan, device)

    def loss(step: int, generator: torch.Generator) -> dict[str, Tensor]:
        starts = torch.randint(mel.shape[1] - CROP, (BATCH,), generator=generator)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            return quantiser.loss(torch.stack([mel[:, start:start + CROP] for start in starts]).to(device), generator)

    training.run(loss)
    return quantiser.eval()


def write_codes(folder: Path, quantiser: Quantiser, shards: list[Path]) -> list[Path]:
    """The codes of every clip of every shard: (codes,) uint16 clip after clip, lengths being its frames / 4.

    Codes that another quantiser made are made anew.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, stamp = [folder / f"{path.stem}.npy" for path in shards], folder / STAMP
    entries = hashlib.sha256(quantiser.entries.cpu().numpy().tobytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != entries:
        for path in folder.glob("*.npy"):
            path.unlink()
        stamp.write_text(entries)
    device = quantiser.entries.device
    for path, source in zip(paths, shards, strict=True):
        if not path.exists():
            shard = Shard.load(source)
            with torch.no_grad():
                codes = [quantiser.codes(torch.from_numpy(shard.clip_mel(index))[None].to(device))[0].cpu().numpy()
                         for index in range(len(shard.texts))]
            with replacing(path) as target:
                np.save(target, np.concatenate(codes).astype(np.uint16))
    return paths
