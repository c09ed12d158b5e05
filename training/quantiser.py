"""Train the vector quantiser, which turns four mel frames into one code. Only training needs it.

Each entry of the codebook is the running mean of the encodings that are assigned to it (van den Oord et al. 2017,
appendix A.1). Unused entries are reset to encodings from the batch. The encoder and the decoder also take the voice as
input, so that the codes need not encode the voice. The loss gives more weight to the spectral envelope, which
distinguishes the sounds of speech, than to the harmonics.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.system.files import replacing
from training.speech import load_mels, voice_of
from training.trainer import TrainedPart, Trainer, fast_autocast

STAMP = "quantiser.sha256"  # name of a file in the folder of the codes, which has the hash of the codebook
WIDTH, ENTRY = 320, 64  # width of the networks, and width of a codebook entry
DECAY, COMMITMENT = 0.99, 0.25  # decay of the running means, and weight of the commitment loss
MIN_COUNT = 0.3  # an entry is reset when its running count falls below this. The mean of all counts is 1
CROP = 64  # number of mel frames in a training crop
ENVELOPE_COSINES, ENVELOPE_WEIGHT = 20, 8.0  # number of cosines in the envelope, and weight of the envelope's error


class QuantiserResidual(nn.Module):
    """A residual block of two convolutions: (B, C, T) → (B, C, T)."""

    def __init__(self, channels: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv1d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv1d(channels, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Quantiser(nn.Module):
    """A network that turns mels (B, 80, 4T) of ``voices`` (B,) into codes (B, T), and codes back into mels."""

    def __init__(self, entries: int, voices: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(80, 1))
        self.register_buffer("deviation", torch.ones(80, 1))
        self.register_buffer("codebook", torch.randn(entries, ENTRY))
        self.register_buffer("counts", torch.zeros(entries))
        self.register_buffer("sums", torch.zeros(entries, ENTRY))
        self.register_buffer("envelope", envelope_matrix())
        self.encoder_voices, self.decoder_voices = nn.Embedding(voices, WIDTH), nn.Embedding(voices, WIDTH)
        self.encoder_input = nn.Conv1d(80, WIDTH, 4, stride=2, padding=1)
        self.encoder = nn.Sequential(
            QuantiserResidual(WIDTH),
            nn.ReLU(),
            nn.Conv1d(WIDTH, WIDTH, 4, stride=2, padding=1),
            QuantiserResidual(WIDTH),
            QuantiserResidual(WIDTH),
            nn.ReLU(),
            nn.Conv1d(WIDTH, ENTRY, 1),
        )
        self.decoder_input = nn.Conv1d(ENTRY, WIDTH, 3, padding=1)
        self.decoder = nn.Sequential(
            QuantiserResidual(WIDTH),
            QuantiserResidual(WIDTH),
            nn.ReLU(),
            nn.ConvTranspose1d(WIDTH, WIDTH, 4, stride=2, padding=1),
            QuantiserResidual(WIDTH),
            nn.ReLU(),
            nn.ConvTranspose1d(WIDTH, 80, 4, stride=2, padding=1),
        )

    def encode(self, mel: Tensor, voices: Tensor) -> Tensor:
        """Encode mels (B, 80, 4T), which the ``voices`` (B,) speak → encodings (B·T, ENTRY)."""
        x = self.encoder_input((mel - self.mean) / self.deviation) + self.encoder_voices(voices)[:, :, None]
        return self.encoder(x).transpose(1, 2).reshape(-1, ENTRY)

    def nearest(self, encodings: Tensor) -> Tensor:
        """Find the codebook entry that is nearest to each encoding: (n, ENTRY) → indices (n,)."""
        with torch.autocast(encodings.device.type, enabled=False):
            return (self.codebook.square().sum(dim=1) - 2 * encodings @ self.codebook.T).argmin(dim=1)

    def decode(self, entries: Tensor, voices: Tensor) -> Tensor:
        """Decode codebook entries (B, ENTRY, T) → mels (B, 80, 4T) in standard deviations from the mean."""
        return self.decoder(self.decoder_input(entries) + self.decoder_voices(voices)[:, :, None])

    def codes(self, mel: Tensor, voices: Tensor) -> Tensor:
        """Turn mels (B, 80, 4T) into codes (B, T)."""
        return self.nearest(self.encode(mel, voices)).view(len(mel), -1)

    def mel(self, codes: Tensor, voices: Tensor) -> Tensor:
        """Turn codes (B, T) into mels (B, 80, 4T)."""
        return self.decode(self.codebook[codes].transpose(1, 2), voices) * self.deviation + self.mean

    @torch.no_grad()
    def update_codebook(self, encodings: Tensor, codes: Tensor, generator: torch.Generator) -> None:
        """Set each entry to the running mean of the encodings assigned to it, and reset the unused entries."""
        self.counts.mul_(DECAY).index_add_(0, codes, torch.full_like(codes, 1 - DECAY, dtype=self.counts.dtype))
        self.sums.mul_(DECAY).index_add_(0, codes, (1 - DECAY) * encodings)
        used = self.counts > MIN_COUNT
        self.codebook[used] = self.sums[used] / self.counts[used, None]
        unused = (~used).nonzero()[:, 0]
        if len(unused):
            random = encodings[torch.randint(len(encodings), (len(unused),), generator=generator)]
            self.codebook[unused], self.sums[unused], self.counts[unused] = random, random, 1.0

    def errors(self, prediction: Tensor, mel: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean absolute error of predicted mels, and the mean absolute error of their envelopes.

        Both errors are in standard deviations.

        Args:
            prediction: Predicted mels in standard deviations from the mean, (…, 80, L).
            mel: True mels, (…, 80, L).
        """
        with torch.autocast(mel.device.type, enabled=False):
            difference = prediction.float() - (mel - self.mean) / self.deviation
            return difference.abs().mean(), (
                self.envelope @ (difference * self.deviation / self.deviation.mean())
            ).abs().mean()

    def loss(self, mel: Tensor, voices: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Compute the losses of a batch, by name, and update the codebook."""
        encodings = self.encode(mel, voices).float()
        codes = self.nearest(encodings.detach())
        entries = self.codebook[codes]
        commitment = F.mse_loss(encodings, entries)
        straight_through = (encodings + (entries - encodings).detach()).view(len(mel), -1, ENTRY).transpose(1, 2)
        error, envelope = self.errors(self.decode(straight_through, voices), mel)
        self.update_codebook(encodings.detach(), codes, generator)
        share = torch.bincount(codes, minlength=len(self.codebook)).float() / len(codes)
        perplexity = torch.exp(-(share * torch.log(share + 1e-9)).sum())
        return {
            "loss": error + ENVELOPE_WEIGHT * envelope + COMMITMENT * commitment,
            "error": error,
            "envelope error": envelope,
            "perplexity / 1000": perplexity / 1000,
        }


def envelope_matrix() -> Tensor:
    """Return a matrix (80, 80) that smooths mels along their bands, so that only the envelope remains.

    It keeps the lowest ``ENVELOPE_COSINES`` cosines of the DCT-II (Ahmed et al. 1974).
    """
    band, wave = torch.arange(80) + 0.5, torch.arange(ENVELOPE_COSINES)
    cosines = torch.cos(torch.pi / 80 * wave[:, None] * band) * (2 / 80) ** 0.5
    cosines[0] /= 2**0.5
    return cosines.T @ cosines


def train_quantiser(part: TrainedPart, shards: Sequence[Path], entries: int, voices: Sequence[str]) -> Quantiser:
    torch.manual_seed(part.schedule.seed)
    quantiser, device = Quantiser(entries, len(voices)), part.device
    trainer = Trainer(quantiser, part)
    if trainer.finished:
        return trainer.result().cpu()
    mels = [np.concatenate(load_mels(path)) for path in shards]
    voice = torch.cat([torch.full((len(mel),), voice_of(path, voices)) for mel, path in zip(mels, shards, strict=True)])
    mel = torch.from_numpy(np.concatenate(mels).astype(np.float32).T)
    if trainer.step == 0:
        quantiser.mean.copy_(mel.mean(dim=1, keepdim=True))
        quantiser.deviation.copy_(mel.std(dim=1, keepdim=True))

    def loss(_: int, generator: torch.Generator) -> dict[str, Tensor]:
        starts = torch.randint(mel.shape[1] - CROP, (part.schedule.batch,), generator=generator)
        with fast_autocast(device):
            return quantiser.loss(
                torch.stack([mel[:, start : start + CROP] for start in starts]).to(device),
                voice[starts + CROP // 2].to(device),
                generator,
            )

    trainer.run(loss)
    return trainer.result().cpu()


@torch.no_grad()
def write_codes(folder: Path, quantiser: Quantiser, shards: Sequence[Path], voices: Sequence[str]) -> list[Path]:
    """Write one file of codes per shard, (codes,) uint16, and return the paths of the files.

    A file has the codes of all clips, one clip after another. A clip has a quarter as many codes as mel frames. If the
    folder has codes of another quantiser, they are deleted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, stamp = [folder / f"{path.stem}.npy" for path in shards], folder / STAMP
    codebook = hashlib.sha256(quantiser.codebook.cpu().numpy().tobytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != codebook:
        for path in folder.glob("*.npy"):
            path.unlink()
        stamp.write_text(codebook)
    for path, source in zip(paths, shards, strict=True):
        if not path.exists():
            voice = torch.tensor([voice_of(source, voices)])
            codes = [
                quantiser.codes(torch.from_numpy(mel.T.astype(np.float32))[None], voice)[0].numpy()
                for mel in load_mels(source)
            ]
            with replacing(path) as target:
                np.save(target, np.concatenate(codes).astype(np.uint16))
    return paths
