"""Train source-filter vocoders, which predict the envelope and the pitch of speech from latents or mels.

The networks learn the parameters of each frame from an analysis of the speech. A network that only minimises the error
predicts the mean of possible envelopes, which sounds muffled. So a discriminator also judges the envelopes, and the
weights of the trained network are changed to sharpen them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ane.models.vocoders.convnext import SourceFilterConfig, SourceFilterNetwork
from ane.models.vocoders.source_filter import BINS, ENVELOPE, HOP, MIDDLE, mel_bins
from ane.system.errors import UserError
from ane.system.files import replacing
from training.discriminators import features
from training.envelopes import envelopes_of
from training.pitch import pitch_of
from training.speech import Shard
from training.trainer import TrainedPart, Trainer, fast_autocast

FRAMES = 96  # number of frames in a crop
OCTAVE_WEIGHT, VOICING_WEIGHT = 4.0, 0.5
JUDGED_FROM = 700  # step from which the discriminator judges envelopes. Its weight grows over the next RAMP steps
RAMP, ADVERSARIAL_WEIGHT, FEATURE_WEIGHT = 300, 0.1, 0.3
SHARPENING, SMOOTH = 1.4, 3.0  # factor for an envelope's details, and deviation of the Gaussian that smooths them away
LOUDER = 0.4  # sharpening raises the log magnitudes by this, 3.5 dB, so it is subtracted


def analysed(audio: np.ndarray, frames: int) -> np.ndarray:
    """Analyse speech (S,) at 24 kHz, and return its parameters (frames, 66) float32.

    The parameters of a frame are 64 points of the envelope, the pitch in octaves above ``MIDDLE``, and the voicing, 1
    or -1.
    """
    f0 = pitch_of(audio, frames, HOP)
    voiced = np.flatnonzero(f0)
    pitch = np.interp(np.arange(frames), voiced, f0[voiced]) if len(voiced) else np.full(frames, MIDDLE)
    envelopes = np.stack([np.interp(mel_bins(ENVELOPE), np.arange(BINS), row) for row in envelopes_of(audio, f0)])
    return np.concatenate(
        (envelopes, np.log2(pitch / MIDDLE)[:, None], np.where(f0 > 0, 1.0, -1.0)[:, None]), axis=1
    ).astype(np.float32)


def parameters_of(shard: Path, folder: Path) -> list[np.ndarray]:
    """Return the parameters (L, 66) float16 of every clip in a shard. ``folder`` stores them after the first call."""
    path = folder / f"{shard.stem}.npz"
    if not path.exists():
        clips = [analysed(wave, len(wave) // HOP).astype(np.float16) for wave in Shard.load(shard).clips]
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as target, target.open("wb") as file:
            np.savez(file, rows=np.concatenate(clips), lengths=[len(clip) for clip in clips])
    with np.load(path) as data:
        return np.split(data["rows"], data["lengths"].cumsum()[:-1])


class EnvelopeJudge(nn.Module):
    """A discriminator that judges envelopes (B, L, 64) as if they were pictures. It returns the outputs of all layers.

    The last output is its judgement.
    """

    def __init__(self) -> None:
        super().__init__()
        width = 32
        self.layers = nn.ModuleList(
            map(
                nn.utils.spectral_norm,
                (
                    nn.Conv2d(1, width, 5, (1, 2), padding=2),
                    nn.Conv2d(width, width, (3, 5), (1, 2), padding=(1, 2)),
                    nn.Conv2d(width, 2 * width, (3, 5), 2, padding=(1, 2)),
                    nn.Conv2d(2 * width, 2 * width, 3, padding=1),
                    nn.Conv2d(2 * width, 1, 3, padding=1),
                ),
            )
        )

    def forward(self, envelopes: Tensor) -> list[Tensor]:
        return features(self.layers, envelopes[:, None])

    def losses(self, ours: Tensor, theirs: Tensor) -> dict[str, Tensor]:
        """Compute least-squares losses (Mao et al. 2017) of predicted and true envelopes, (B, L, 64) each.

        The gradient of "discriminator" reaches only this discriminator. The gradients of "adversarial" and "features"
        reach only ``ours``.
        """
        frozen = {name: parameter.detach() for name, parameter in self.named_parameters()}
        with fast_autocast(ours.device):
            real, fake, judged = self(theirs), self(ours.detach()), functional_call(self, frozen, (ours,))
        real, fake, judged = ([layer.float() for layer in layers] for layers in (real, fake, judged))
        distance = sum((a - b.detach()).abs().mean() for a, b in zip(judged[:-1], real[:-1], strict=True))
        return {
            "discriminator": ((real[-1] - 1) ** 2).mean() + (fake[-1] ** 2).mean(),
            "adversarial": ((judged[-1] - 1) ** 2).mean(),
            "features": distance,
        }


class ParametersInTraining(nn.Module):
    """The network that predicts parameters, and the discriminator that judges its envelopes."""

    def __init__(self, config: SourceFilterConfig):
        super().__init__()
        self.network, self.judge = SourceFilterNetwork(config), EnvelopeJudge()
        self.register_buffer("unit", torch.ones(()))  # errors of envelopes are divided by this

    @torch.no_grad()
    def begin_at(self, inputs: np.ndarray, envelopes: np.ndarray) -> None:
        """Set the initial weights so that the network predicts the mean of the envelopes (n, 64).

        The first layer also normalises the inputs, whose numbers are ``inputs`` (m,).
        """
        self.unit.fill_(float(envelopes.std()) or 1.0)
        self.network.head.bias[:ENVELOPE] = torch.from_numpy(envelopes.mean(axis=0))
        first = self.network.dec_in
        first.weight /= float(inputs.std()) or 1.0
        first.bias -= first.weight.sum(dim=(1, 2)) * float(inputs.mean())

    def losses(self, frames: Tensor, target: Tensor, judged: float) -> dict[str, Tensor]:
        """Compute the losses for input frames (B, L, channels) and true parameters (B, L, 66).

        ``judged`` is the weight of the discriminator, from 0 to 1.
        """
        with fast_autocast(frames.device):
            output = self.network(frames, torch.ones_like(frames[..., 0]))
        output = output.float()
        ours, theirs = output[..., :ENVELOPE] / self.unit, target[..., :ENVELOPE] / self.unit
        voiced = (target[..., -1] > 0).float()
        octaves = ((output[..., -2] - target[..., -2]).abs() * voiced).sum() / voiced.sum().clamp(min=1)
        voicing = F.binary_cross_entropy_with_logits(output[..., -1], voiced)
        envelope = (ours - theirs).abs().mean()
        loss = envelope + OCTAVE_WEIGHT * octaves + VOICING_WEIGHT * voicing
        losses = {"envelope": envelope, "pitch error, octaves": octaves, "voicing": voicing}
        if judged:
            losses |= self.judge.losses(ours, theirs)
            loss = (
                loss
                + losses["discriminator"]
                + judged * (ADVERSARIAL_WEIGHT * losses["adversarial"] + FEATURE_WEIGHT * losses["features"])
            )
        return {"loss": loss, **losses}


def drawn_crops(
    inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], batch: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw crops of ``FRAMES`` frames from random clips.

    Args:
        inputs: Input of each clip, (channels, L).
        targets: Parameters of each clip, (L, 66).
        batch: Number of crops.
        generator: Generator of the random numbers.

    Returns:
        The inputs (batch, FRAMES, channels) and the parameters (batch, FRAMES, 66) of the crops.
    """
    crops = []
    for clip in torch.randint(len(inputs), (batch,), generator=generator).tolist():
        start = int(torch.randint(inputs[clip].shape[1] - FRAMES + 1, (), generator=generator))
        crops.append((inputs[clip].T[start : start + FRAMES], targets[clip][start : start + FRAMES]))
    return tuple(torch.from_numpy(np.stack(rows)).float() for rows in zip(*crops, strict=True))


def train_source_filter(
    part: TrainedPart, config: SourceFilterConfig, clips: Callable[[], Sequence[tuple[np.ndarray, np.ndarray]]]
) -> SourceFilterNetwork:
    """Train a network on clips, and sharpen its envelopes.

    ``clips`` returns the input (channels, L) and the parameters (L', 66) of each clip. The longer of the two is cut.
    """
    torch.manual_seed(part.schedule.seed)
    model = ParametersInTraining(config)
    trainer = Trainer(model, part)
    if not trainer.finished:
        pairs = [(x[:, :length], y[:length]) for x, y in clips() if (length := min(x.shape[1], len(y))) >= FRAMES]
        if not pairs:
            raise UserError(f"no clip has {FRAMES} frames: raise `hours` in the recipe")
        inputs, targets = zip(*pairs, strict=True)
        if not trainer.step:
            model.begin_at(
                np.concatenate([x.ravel() for x in inputs]).astype(np.float32),
                np.concatenate(targets)[:, :ENVELOPE].astype(np.float32),
            )

        def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
            frames, target = drawn_crops(inputs, targets, part.schedule.batch, generator)
            judged = min(max(index - JUDGED_FROM + 1, 0) / RAMP, 1.0)
            return model.losses(frames.to(part.device), target.to(part.device), judged)

        trainer.run(step)
    network = trainer.result().network
    sharpen(network)
    return network


@torch.no_grad()
def sharpen(network: SourceFilterNetwork) -> None:
    """Change the network's weights so that the details of its envelopes are multiplied by ``SHARPENING``.

    The details are the difference between an envelope and the envelope smoothed with a Gaussian. The loudness does not
    change.
    """
    distance = torch.arange(ENVELOPE)[:, None] - torch.arange(ENVELOPE)
    smooth = torch.exp(-0.5 * (distance / SMOOTH) ** 2)
    smooth = smooth / smooth.sum(dim=1, keepdim=True)
    matrix = smooth + SHARPENING * (torch.eye(ENVELOPE) - smooth)
    head = network.head
    head.weight[:ENVELOPE] = matrix @ head.weight[:ENVELOPE]
    head.bias[:ENVELOPE] = matrix @ head.bias[:ENVELOPE] - LOUDER
