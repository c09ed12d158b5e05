"""The two makers of sound: UnivNet from mels, HiFi-GAN straight from latents.

Both learn the spectra of the teacher's sound at several resolutions (Yamamoto et al. 2020, section 2.3) and how steep
it is, and no discriminator: what an hour of a CPU can do.
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
from ane.models.tortoise.vocoding import interpolated
from training.clips import Clip
from training.loop import Begin, Plan, Training
from training.speech import RATE, Shard

WINDOWS = ((512, 120, 480), (1024, 240, 1000), (2048, 480, 2000), (256, 60, 240))   # FFT, hop, window
FRAMES, EDGE = 56, 4        # frames of a crop, and of its ends, which see padding and are not judged
LATENTS = 12                # of a crop
SAMPLES_OF_LATENT = 1024 * DIFFUSION_RATE / 22050
MEL_WEIGHT, PEAK_WEIGHT = 1.0, 0.5
PEAK, STILL = 60, 1e-3      # samples in which the steepest step counts, and the step that is as good as none
EDGES = 0.25                # share of the batches that are beginnings of clips, and of HiFi-GAN's that are ends

# index of a clip, generator → what the network is given, and the wave (S,) float32 that it is to make of it
Crop = Callable[[int, torch.Generator], tuple[np.ndarray, np.ndarray]]


class SpectralLoss(nn.Module):
    """Spectral convergence and log-magnitude distance over ``WINDOWS``, the distance of log-mels, and that of the
    steepest steps from sample to sample, without which the sound may tick where speech is quiet."""

    def __init__(self):
        super().__init__()
        for size, _, window in WINDOWS:
            self.register_buffer(f"window_{size}", torch.hann_window(window))
        self.register_buffer("hann", torch.hann_window(WINDOW))
        self.register_buffer("filters", torch.from_numpy(mel_filters(DIFFUSION_RATE, 100, 12000.0, "slaney")).float())

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        """Audio (B, S) each → scalar."""
        total = made.new_zeros(())
        for size, hop, _ in WINDOWS:
            window = getattr(self, f"window_{size}")
            ours, theirs = (magnitude(x, size, hop, window) for x in (made, wanted))
            total = total + (theirs - ours).norm() / theirs.norm().clamp(min=1e-3)
            total = total + (theirs.log() - ours.log()).abs().mean()
        ours, theirs = (torch.log((self.filters @ magnitude(x, WINDOW, HOP, self.hann)).clamp(min=1e-5))
                        for x in (made, wanted))
        total = total / len(WINDOWS) + MEL_WEIGHT * (ours - theirs).abs().mean()
        return total + PEAK_WEIGHT * (steepest(made) - steepest(wanted)).abs().mean()


def steepest(audio: Tensor) -> Tensor:
    """(B, S) → (B, n): the logarithm of the largest step from sample to sample, of every ``PEAK`` samples."""
    steps = audio.diff(dim=1).abs()
    return torch.log(nn.functional.max_pool1d(steps[:, None], PEAK)[:, 0] + STILL)


def magnitude(audio: Tensor, size: int, hop: int, window: Tensor) -> Tensor:
    spectrum = torch.stft(audio, size, hop, len(window), window, return_complex=True)
    return (spectrum.real ** 2 + spectrum.imag ** 2 + 1e-7).sqrt()


def at_24k(shard: Shard, index: int) -> np.ndarray:
    return resample(shard.clip(index), RATE, DIFFUSION_RATE)


def sounds(shards: Sequence[Path]) -> list[np.ndarray]:
    """All clips of the shards as (S,) float32 at 24 kHz."""
    return [at_24k(shard, index) for shard in map(Shard.load, shards) for index in range(len(shard.texts))]


def start(module: nn.Module) -> None:
    """torch's own start for every convolution: hotter kernels drive UnivNet's gates into saturation."""
    for part in module.modules():
        if isinstance(part, nn.Conv1d | nn.ConvTranspose1d):
            part.reset_parameters()


def batch_of(crop: Crop, clips: int, batch: int, generator: torch.Generator,
             device: str) -> tuple[list[int], Tensor, Tensor]:
    """Crops of clips drawn at random: which clips, what the network is given, the waves (batch, S) it is to make."""
    chosen = torch.randint(clips, (batch,), generator=generator).tolist()
    given, waves = (torch.from_numpy(np.stack(part)).to(device)
                    for part in zip(*(crop(index, generator) for index in chosen), strict=True))
    return chosen, given, waves


def judged(audio: Tensor, begins: bool = False, ends: bool = False) -> Tensor:
    """Audio (B, S) without the ends of a crop, but for those that are the clip's own."""
    return audio[:, 0 if begins else EDGE * HOP:None if ends else -EDGE * HOP]


def train_univnet(folder: Path, config: UnivNetConfig, shards: Sequence[Path], plan: Plan, batch: int,
                  device: str, begin: Begin | None = None) -> UnivNet:
    torch.manual_seed(plan.seed)
    network, loss = UnivNet(config), SpectralLoss().to(device)
    start(network)
    training = Training(folder, network, plan, device, begin)
    if training.finished:
        return network.eval()
    audio = [wave for wave in sounds(shards) if len(wave) > (FRAMES + 1) * HOP]
    mels = [diffusion_mel(wave) for wave in audio]

    def step(_: int, generator: torch.Generator) -> dict[str, Tensor]:
        begins = float(torch.rand((), generator=generator)) < EDGES     # ends are cut off with the silence after them

        def crop(index: int, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
            anywhere = int(torch.randint(mels[index].shape[1] - FRAMES, (), generator=generator))
            first = 0 if begins else anywhere
            wave = audio[index][first * HOP:(first + FRAMES) * HOP]
            return mels[index][:, first:first + FRAMES], np.pad(wave, (0, FRAMES * HOP - len(wave)))

        _, mel, wave = batch_of(crop, len(audio), batch, generator, device)
        noise = torch.randn(batch, config.noise_dim, FRAMES, generator=generator).to(device)
        return {"loss": loss(judged(network.sound(mel, noise)[:, 0], begins), judged(wave, begins))}

    training.run(step)
    return network.eval()


def train_hifigan(folder: Path, config: HifiganConfig, clips: Sequence[Clip], latents: Callable[[Clip], np.ndarray],
                  conditioning: np.ndarray, plan: Plan, batch: int, device: str,
                  begin: Begin | None = None) -> Hifigan:
    """``latents``: (n, D) of a clip; ``conditioning``: (voices, D)."""
    torch.manual_seed(plan.seed)
    network, loss = Hifigan(config), SpectralLoss().to(device)
    start(network)
    training = Training(folder, network, plan, device, begin)
    if training.finished:
        return network.eval()
    clips = [clip for clip in clips if len(clip.codes) > LATENTS]
    shards = {path: Shard.load(path) for path in {clip.shard for clip in clips}}
    waves = [at_24k(shards[clip.shard], clip.index) for clip in clips]
    hidden = [latents(clip).astype(np.float32) for clip in clips]
    voices = torch.from_numpy(conditioning).to(device)
    length = LATENTS * 4 * DIFFUSION_RATE // 22050 * HOP

    def stretch(index: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        at = round(first * SAMPLES_OF_LATENT)
        wave = waves[index][at:at + length]
        return interpolated(hidden[index][first:first + LATENTS]), np.pad(wave, (0, length - len(wave)))

    def step(_: int, generator: torch.Generator) -> dict[str, Tensor]:
        where = float(torch.rand((), generator=generator))
        begins, ends = where < EDGES, where > 1 - EDGES

        def crop(index: int, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
            last = len(hidden[index]) - LATENTS
            anywhere = int(torch.randint(last + 1, (), generator=generator))
            return stretch(index, 0 if begins else last if ends else anywhere)

        chosen, rows, wave = batch_of(crop, len(clips), batch, generator, device)
        made = network(rows, voices[[clips[index].voice for index in chosen]])[:, 0]
        return {"loss": loss(judged(made, begins, ends), judged(wave, begins, ends))}

    training.run(step)
    return network.eval()
