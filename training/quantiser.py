"""Mel codes: a quantiser, one code for four frames. Needed in training only.

The vector quantiser follows its code means (van den Oord et al. 2017, appendix A.1); entries that nothing chooses
are restarted at encodings of the batch. It is told whose voice it hears, as the decoders are whose to speak with, so
that no code is spent on that, and is held to the smooth shape of the spectrum, which tells the sounds of speech apart,
more than to the harmonics in it.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.system.files import replacing
from training.loop import Plan, Training, received, sent
from training.speech import load_mels, voice_of

STAMP, DONE = "quantiser.sha256", "done"        # in the folder of codes: which quantiser made them; all are made
WIDTH, ENTRY = 320, 64
DECAY, COMMITMENT = 0.99, 0.25
RESTART = 0.3           # an entry chosen more rarely than this a batch (on average 1) begins anew
CROP = 64               # frames of a training crop
BATCH = 64
SMOOTH, SHAPE = 20, 8.0     # cosines that make up the smooth shape of a mel, and the weight of its error


class Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), nn.Conv1d(channels, channels, 3, padding=1), nn.ReLU(),
                                    nn.Conv1d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Quantiser(nn.Module):
    """Mel (B, 80, 4T) of voices (B,) → codes (B, T) → mel."""

    def __init__(self, entries: int, voices: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(80, 1))
        self.register_buffer("deviation", torch.ones(80, 1))
        self.register_buffer("entries", torch.randn(entries, ENTRY))
        self.register_buffer("counts", torch.zeros(entries))
        self.register_buffer("sums", torch.zeros(entries, ENTRY))
        self.register_buffer("smooth", smoothing())
        self.heard, self.spoken = nn.Embedding(voices, WIDTH), nn.Embedding(voices, WIDTH)
        self.entrance = nn.Conv1d(80, WIDTH, 4, stride=2, padding=1)
        self.encoder = nn.Sequential(
            Residual(WIDTH), nn.ReLU(),
            nn.Conv1d(WIDTH, WIDTH, 4, stride=2, padding=1), Residual(WIDTH), Residual(WIDTH), nn.ReLU(),
            nn.Conv1d(WIDTH, ENTRY, 1))
        self.opened = nn.Conv1d(ENTRY, WIDTH, 3, padding=1)
        self.decoder = nn.Sequential(
            Residual(WIDTH), Residual(WIDTH), nn.ReLU(),
            nn.ConvTranspose1d(WIDTH, WIDTH, 4, stride=2, padding=1), Residual(WIDTH), nn.ReLU(),
            nn.ConvTranspose1d(WIDTH, 80, 4, stride=2, padding=1))

    def encode(self, mel: Tensor, voices: Tensor) -> Tensor:
        """(B, 80, 4T), (B,) → encodings (B·T, ENTRY)."""
        x = self.entrance((mel - self.mean) / self.deviation) + self.heard(voices)[:, :, None]
        return self.encoder(x).transpose(1, 2).reshape(-1, ENTRY)

    def nearest(self, encodings: Tensor) -> Tensor:
        with torch.autocast(encodings.device.type, enabled=False):
            return (self.entries.square().sum(dim=1) - 2 * encodings @ self.entries.T).argmin(dim=1)

    def decode(self, entries: Tensor, voices: Tensor) -> Tensor:
        """(B, ENTRY, T), (B,) → mel (B, 80, 4T) in deviations from the mean."""
        return self.decoder(self.opened(entries) + self.spoken(voices)[:, :, None])

    def codes(self, mel: Tensor, voices: Tensor) -> Tensor:
        return self.nearest(self.encode(mel, voices)).view(len(mel), -1)

    def mel(self, codes: Tensor, voices: Tensor) -> Tensor:
        """(B, T), (B,) → (B, 80, 4T)."""
        return self.decode(self.entries[codes].transpose(1, 2), voices) * self.deviation + self.mean

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

    def errors(self, said: Tensor, mel: Tensor) -> tuple[Tensor, Tensor]:
        """Mean distance of what was ``said``, (…, 80, L) in deviations from the mean, from a mel, and that of their
        smooth shapes."""
        with torch.autocast(mel.device.type, enabled=False):
            off = said.float() - (mel - self.mean) / self.deviation
            return off.abs().mean(), (self.smooth @ (off * self.deviation / self.deviation.mean())).abs().mean()

    def loss(self, mel: Tensor, voices: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        encodings = self.encode(mel, voices).float()
        chosen = self.nearest(encodings.detach())
        entries = self.entries[chosen]
        commitment = F.mse_loss(encodings, entries)
        through = (encodings + (entries - encodings).detach()).view(len(mel), -1, ENTRY).transpose(1, 2)
        error, shape = self.errors(self.decode(through, voices), mel)
        self.follow(encodings.detach(), chosen, generator)
        share = torch.bincount(chosen, minlength=len(self.entries)).float() / len(chosen)
        perplexity = torch.exp(-(share * torch.log(share + 1e-9)).sum())
        return {"loss": error + SHAPE * shape + COMMITMENT * commitment, "error": error, "error of the shape": shape,
                "perplexity / 1000": perplexity / 1000}


def smoothing() -> Tensor:
    """(80, 80): keeps the ``SMOOTH`` slowest cosines along the bands of a mel (DCT-II, Ahmed et al. 1974)."""
    band, wave = torch.arange(80) + 0.5, torch.arange(SMOOTH)
    cosines = torch.cos(torch.pi / 80 * wave[:, None] * band) * (2 / 80) ** 0.5
    cosines[0] /= 2 ** 0.5
    return cosines.T @ cosines


def train_quantiser(folder: Path, shards: Sequence[Path], entries: int, voices: Sequence[str], plan: Plan,
                    device: str) -> Quantiser:
    """Learn from a few shards: some hours of speech hold every sound."""
    quantiser = Quantiser(entries, len(voices))
    training = Training(folder, quantiser, plan, device)
    if training.finished:
        return quantiser.cpu().eval()
    mels = [np.concatenate(load_mels(path)) for path in shards]
    voice = torch.cat([torch.full((len(mel),), voice_of(path, voices)) for mel, path in zip(mels, shards, strict=True)])
    mel = torch.from_numpy(np.concatenate(mels).astype(np.float32).T)
    quantiser.mean.copy_(mel.mean(dim=1, keepdim=True))
    quantiser.deviation.copy_(mel.std(dim=1, keepdim=True))

    def loss(step: int, generator: torch.Generator) -> dict[str, Tensor]:
        starts = torch.randint(mel.shape[1] - CROP, (BATCH,), generator=generator)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            return quantiser.loss(torch.stack([mel[:, start:start + CROP] for start in starts]).to(device),
                                  voice[starts + CROP // 2].to(device), generator)

    training.run(loss)
    return quantiser.cpu().eval()


def write_codes(folder: Path, quantiser: Quantiser, shards: Sequence[Path], voices: Sequence[str],
                workers: int) -> list[Path]:
    """The codes of every clip of every shard: (codes,) uint16 clip after clip, lengths being its frames / 4.

    Codes that another quantiser made are made anew.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, stamp = [folder / f"{path.stem}.npy" for path in shards], folder / STAMP
    entries = hashlib.sha256(quantiser.entries.cpu().numpy().tobytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != entries:
        for path in (*folder.glob("*.npy"), folder / DONE):
            path.unlink(missing_ok=True)
        stamp.write_text(entries)
    missing = [(path, source) for path, source in zip(paths, shards, strict=True) if not path.exists()]
    if missing:
        job = partial(write_shard, sent(quantiser), len(quantiser.entries), len(voices))
        with ProcessPoolExecutor(min(workers, len(missing)), mp_context=get_context("spawn")) as pool:
            list(pool.map(job, *zip(*missing, strict=True), [voice_of(source, voices) for _, source in missing]))
    (folder / DONE).touch()
    return paths


@torch.no_grad()
def write_shard(state: bytes, entries: int, voices: int, path: Path, source: Path, voice: int) -> None:
    """The codes of one shard, in a process of its own. ``state``: the quantiser's, ``sent``."""
    torch.set_num_threads(1)
    quantiser = Quantiser(entries, voices)
    received(state, quantiser)
    speaker = torch.tensor([voice])
    codes = [quantiser.codes(torch.from_numpy(mel.T.astype(np.float32))[None], speaker)[0].numpy()
             for mel in load_mels(source)]
    with replacing(path) as target:
        np.save(target, np.concatenate(codes).astype(np.uint16))
