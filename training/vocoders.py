"""Training of the two vocoders: UnivNet from mels, HiFi-GAN from the decoder's latents.

The loss compares spectra at several resolutions (Yamamoto et al. 2020, section 2.3) and the largest differences of
successive samples. There is no discriminator, so that training takes hours on a CPU.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ane.audio import resample
from ane.audio.mel import DIFFUSION_RATE, HOP, WINDOW, diffusion_mel, mel_filters
from ane.models.tortoise.networks.hifigan import Hifigan, HifiganConfig
from ane.models.tortoise.networks.univnet import UnivNet, UnivNetConfig
from ane.models.tortoise.vocoding import interpolate_latents
from training.clips import Clip
from training.speech import RATE, Shard
from training.trainer import Initialise, PartSchedule, Trainer

WINDOWS = ((512, 120, 480), (1024, 240, 1000), (2048, 480, 2000), (256, 60, 240))   # FFT, hop, window
FRAMES, EDGE = 56, 4        # frames of a crop; frames at each end, which padding affects, that the loss ignores
LATENTS = 12                # of a crop
SAMPLES_PER_LATENT = 1024 * DIFFUSION_RATE / 22050
MEL_WEIGHT, CLICK_WEIGHT = 1.0, 0.5
CLICK_WINDOW, FLOOR = 60, 1e-3      # samples in which the largest difference is compared; added before the log
CLIP_ENDS = 0.25            # share of batches with crops at the start of clips, and (HiFi-GAN) of those at the end

# index of a clip, generator → input of the network, and its target, the waveform (S,) float32
Crop = Callable[[int, torch.Generator], tuple[np.ndarray, np.ndarray]]


class SpectralLoss(nn.Module):
    """Spectral convergence and log-magnitude distance over ``WINDOWS``, distance of log-mels, and distance of the
    largest differences of successive samples, without which quiet speech may contain clicks. The mel is that of audio
    at ``rate`` Hz, ``bands`` up to ``highest`` Hz."""

    def __init__(self, rate: int = DIFFUSION_RATE, bands: int = 100, highest: float = 12000.0):
        super().__init__()
        for size, _, window in WINDOWS:
            self.register_buffer(f"window_{size}", torch.hann_window(window))
        self.register_buffer("hann", torch.hann_window(WINDOW))
        self.register_buffer("filters", torch.from_numpy(mel_filters(rate, bands, highest, "slaney")).float())

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Audio (B, S) each → scalar."""
        total = output.new_zeros(())
        for size, hop, _ in WINDOWS:
            window = getattr(self, f"window_{size}")
            ours, theirs = (magnitude(x, size, hop, window) for x in (output, target))
            total = total + (theirs - ours).norm() / theirs.norm().clamp(min=1e-3)
            total = total + (theirs.log() - ours.log()).abs().mean()
        ours, theirs = (torch.log((self.filters @ magnitude(x, WINDOW, HOP, self.hann)).clamp(min=1e-5))
                        for x in (output, target))
        total = total / len(WINDOWS) + MEL_WEIGHT * (ours - theirs).abs().mean()
        return total + CLICK_WEIGHT * (largest_differences(output) - largest_differences(target)).abs().mean()


def largest_differences(audio: Tensor) -> Tensor:
    """(B, S) → (B, n): log of the largest difference of successive samples, in each ``CLICK_WINDOW`` samples."""
    differences = audio.diff(dim=1).abs()
    return torch.log(nn.functional.max_pool1d(differences[:, None], CLICK_WINDOW)[:, 0] + FLOOR)


def magnitude(audio: Tensor, size: int, hop: int, window: Tensor) -> Tensor:
    spectrum = torch.stft(audio, size, hop, len(window), window, return_complex=True)
    return (spectrum.real ** 2 + spectrum.imag ** 2 + 1e-7).sqrt()


def clip_at_24k(shard: Shard, index: int) -> np.ndarray:
    return resample(shard.clip(index), RATE, DIFFUSION_RATE)


def load_audio(shards: Sequence[Path]) -> list[np.ndarray]:
    """All clips of the shards as (S,) float32 at 24 kHz."""
    return [clip_at_24k(shard, index) for shard in map(Shard.load, shards) for index in range(len(shard.texts))]


def initialise_convolutions(module: nn.Module) -> None:
    """torch's default initialisation for every convolution: larger weights saturate UnivNet's gates."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):
            layer.reset_parameters()


def batch_of(crop: Crop, clips: int, batch: int, generator: torch.Generator,
             device: str) -> tuple[list[int], Tensor, Tensor]:
    """Crops of random clips: the clips, the network's input, and the target waveforms (batch, S)."""
    chosen = torch.randint(clips, (batch,), generator=generator).tolist()
    inputs, waves = (torch.from_numpy(np.stack(part)).to(device)
                     for part in zip(*(crop(index, generator) for index in chosen), strict=True))
    return chosen, inputs, waves


def without_edges(audio: Tensor, at_start: bool = False, at_end: bool = False) -> Tensor:
    """Audio (B, S) of crops without their edges, except where the clip itself starts or ends."""
    return audio[:, 0 if at_start else EDGE * HOP:None if at_end else -EDGE * HOP]


def train_univnet(folder: Path, config: UnivNetConfig, shards: Sequence[Path], schedule: PartSchedule, batch: int,
                  device: str, initialise: Initialise | None = None) -> UnivNet:
    torch.manual_seed(schedule.seed)
    network, loss = UnivNet(config), SpectralLoss().to(device)
    initialise_convolutions(network)
    trainer = Trainer(folder, network, schedule, device, initialise)
    if trainer.finished:
        return network.eval()
    audio = [wave for wave in load_audio(shards) if len(wave) > (FRAMES + 1) * HOP]
    mels = [diffusion_mel(wave) for wave in audio]

    def step(_: int, generator: torch.Generator) -> dict[str, Tensor]:
        at_start = float(torch.rand((), generator=generator)) < CLIP_ENDS

        def crop(index: int, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
            random = int(torch.randint(mels[index].shape[1] - FRAMES, (), generator=generator))
            first = 0 if at_start else random
            wave = audio[index][first * HOP:(first + FRAMES) * HOP]
            return mels[index][:, first:first + FRAMES], np.pad(wave, (0, FRAMES * HOP - len(wave)))

        _, mel, wave = batch_of(crop, len(audio), batch, generator, device)
        noise = torch.randn(batch, config.noise_dim, FRAMES, generator=generator).to(device)
        return {"loss": loss(without_edges(network.sound(mel, noise)[:, 0], at_start), without_edges(wave, at_start))}

    trainer.run(step)
    return network.eval()


def train_hifigan(folder: Path, config: HifiganConfig, clips: Sequence[Clip], latents: Callable[[Clip], np.ndarray],
                  conditioning: np.ndarray, schedule: PartSchedule, batch: int, device: str,
                  initialise: Initialise | None = None) -> Hifigan:
    """``latents``: (n, D) of a clip; ``conditioning``: (voices, D)."""
    torch.manual_seed(schedule.seed)
    network, loss = Hifigan(config), SpectralLoss().to(device)
    initialise_convolutions(network)
    trainer = Trainer(folder, network, schedule, device, initialise)
    if trainer.finished:
        return network.eval()
    clips = [clip for clip in clips if len(clip.codes) > LATENTS]
    shards = {path: Shard.load(path) for path in {clip.shard for clip in clips}}
    waves = [clip_at_24k(shards[clip.shard], clip.index) for clip in clips]
    hidden = [latents(clip).astype(np.float32) for clip in clips]
    voices = torch.from_numpy(conditioning).to(device)
    length = LATENTS * 4 * DIFFUSION_RATE // 22050 * HOP

    def crop_at(index: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        start = round(first * SAMPLES_PER_LATENT)
        wave = waves[index][start:start + length]
        return interpolate_latents(hidden[index][first:first + LATENTS]), np.pad(wave, (0, length - len(wave)))

    def step(_: int, generator: torch.Generator) -> dict[str, Tensor]:
        draw = float(torch.rand((), generator=generator))
        at_start, at_end = draw < CLIP_ENDS, draw > 1 - CLIP_ENDS

        def crop(index: int, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
            last = len(hidden[index]) - LATENTS
            random = int(torch.randint(last + 1, (), generator=generator))
            return crop_at(index, 0 if at_start else last if at_end else random)

        chosen, rows, wave = batch_of(crop, len(clips), batch, generator, device)
        output = network(rows, voices[[clips[index].voice for index in chosen]])[:, 0]
        return {"loss": loss(without_edges(output, at_start, at_end),
                             without_edges(wave, at_start, at_end))}

    trainer.run(step)
    return network.eval()
