"""Train a voice encoder on speakers whom it must tell apart, and measure it on speakers whom it has never met.

    python -m training.clone_encoder -o clone/ --minutes 30        # goes on from the last checkpoint in clone/
    python -m training.clone_encoder -o clone/ --minutes 0 --report FILE.json

The encoder is the small Tortoise's conditioning encoder. A linear layer predicts the embedding of a speaker from the
encoder's latent. The embeddings are Resemblyzer's, whose cosines say how alike two voices sound.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ane.audio.mel import CONDITIONING_RATE, FLOOR, HOP
from ane.bench.records import BenchRow, Spread, document
from ane.models.tortoise.networks.conditioning import ConditioningEncoder, ConditioningEncoderConfig
from ane.system.errors import UserError
from ane.system.files import write_json
from benchmarks.yardsticks import mean_embedding
from training.clone_hearing import Ear, HeardClip, people, recordings_of_speakers, separation
from training.clone_speakers import CONFIG, CloneConfig, EncoderLosses, passes, read_config
from training.clone_speech import judgements
from training.program import TrainingProgram
from training.recipe import CONFIGS
from training.speech import Shard
from training.trainer import PartSchedule, TrainedPart, Trainer, fast_autocast

PART = "clone_encoder"  # beginning of the name of the folder with the checkpoint
WINDOW = 517  # mel frames of 6 s, which the encoder takes at once
CROPS = 129, 129, 258, WINDOW  # mel frames of the crops of successive training steps
GAIN = 2.0  # largest change of a mel's level, in natural logarithms of the power
TILT = 0.25  # standard deviation of each of the first cosines over the bands, of which a random filter consists
FILTER_COSINES = 6
LOG_FLOOR = float(np.log(FLOOR))  # lowest value of a mel, in natural logarithms
VALIDATED = 2  # recordings of every held-back speaker that each checkpoint measures. The report measures all
REVERBERATION = 0.15, 0.9  # shortest and longest seconds in which the sound of a random room fades by 60 dB
REVERBERANT = 0.6  # largest share of the power of a sound that reaches the microphone by way of the walls
NOISE = -12.0, -5.0  # weakest and strongest noise, in natural logarithms of its power relative to the mean power


class CloneEncoder(nn.Module):
    """The conditioning encoder, and a linear layer that predicts a speaker's embedding from its latent."""

    def __init__(self, config: ConditioningEncoderConfig, mean: Tensor):
        super().__init__()
        self.encoder = ConditioningEncoder(config)
        self.head = nn.Linear(config.model_dim, len(mean))
        for name, parameter in self.encoder.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=(0.2 if "proj_out" in name else 1.0) * parameter[0].numel() ** -0.5)
            else:
                nn.init.constant_(parameter, float("norm" in name and name.endswith("weight")))
        nn.init.normal_(self.head.weight, std=0.01)
        with torch.no_grad():
            self.head.bias.copy_(mean)

    def forward(self, mel: Tensor) -> Tensor:
        """Predict embeddings (B, 256) from mels (B, 80, L)."""
        return self.head(self.encoder(mel).float())

    @torch.no_grad()
    def embedding(self, mel: np.ndarray) -> np.ndarray:
        """Predict the embedding of a recording from its mel (L, 80): the mean over windows of 6 s, with the norm 1."""
        starts = [*range(0, max(len(mel) - WINDOW, 0), WINDOW), max(len(mel) - WINDOW, 0)]
        windows = torch.from_numpy(np.stack([crop(mel, start, WINDOW) for start in starts])).float()
        return mean_embedding(list(self(windows.transpose(1, 2)).numpy()))


def crop(mel: np.ndarray, start: int, frames: int) -> np.ndarray:
    """Return ``frames`` frames of a mel (L, 80). After its last frame, it begins again."""
    return mel.take(np.arange(start, start + frames), axis=0, mode="wrap")


class ClipLessons:
    """Recordings of speakers to learn from, and the losses of an encoder on their crops."""

    def __init__(self, recordings: Sequence[HeardClip], losses: EncoderLosses, frames: int, mel_norms: np.ndarray):
        names = sorted({heard.speaker for heard in recordings})
        self.recordings = [[heard for heard in recordings if heard.speaker == name] for name in names]
        means = [mean_embedding([heard.embedding for heard in some]) for some in self.recordings]
        self.targets = torch.from_numpy(np.stack(means))
        self.spread = (self.targets - self.targets.mean(dim=0)).square().sum(dim=1).mean()
        self.settings, self.frames, self.mel_norms = losses, frames, torch.from_numpy(mel_norms)

    def losses(self, model: CloneEncoder, step: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of crops of random speakers. "loss" is their weighted sum."""
        size = CROPS[step % len(CROPS)]
        speakers = torch.randint(len(self.recordings), (self.frames // size,), generator=generator)
        crops = []
        for speaker in speakers.tolist():
            some = self.recordings[speaker]
            mel = some[int(torch.randint(len(some), (), generator=generator))].mel
            crops.append(crop(mel, int(torch.randint(len(mel), (), generator=generator)), size))
        mels = torch.from_numpy(np.stack(crops)).float()
        mels = recorded_elsewhere(mels * self.mel_norms, generator) / self.mel_norms
        with fast_autocast("cpu"):
            predicted = model(mels.transpose(1, 2)).float()
        error = (predicted - self.targets[speakers]).square().sum(dim=1).mean() / self.spread
        cosines = F.normalize(predicted, dim=1) @ self.targets.T
        contrast = F.cross_entropy(cosines / self.settings.temperature, speakers)
        hits = (cosines.argmax(dim=1) == speakers).float().mean()
        return {"loss": error + self.settings.contrast * contrast, "error": error, "contrast": contrast, "hits": hits}


def recorded_elsewhere(mels: Tensor, generator: torch.Generator) -> Tensor:
    """Change the room, the level, the frequency response and the noise of natural log-mels (B, L, bands) at random."""
    count, _, bands = mels.shape
    level = GAIN * (2 * torch.rand(count, 1, 1, generator=generator) - 1)
    angles = torch.outer(torch.arange(1, 1 + FILTER_COSINES), (torch.arange(bands) + 0.5) * torch.pi / bands)
    response = TILT * torch.randn(count, FILTER_COSINES, generator=generator) @ torch.cos(angles)
    low, high = NOISE
    noise = low + (high - low) * torch.rand(count, 1, 1, generator=generator)
    mels = in_random_rooms(mels, generator)
    power = mels.exp().mean(dim=(1, 2), keepdim=True).log()
    grain = 0.5 * torch.randn(mels.shape, generator=generator)
    return (torch.logaddexp(mels + response[:, None], power + noise + grain) + level).clamp(min=LOG_FLOOR)


def in_random_rooms(mels: Tensor, generator: torch.Generator) -> Tensor:
    """Let natural log-mels (B, L, bands) sound in random rooms, whose reverberant power fades exponentially."""
    count, frames, _ = mels.shape
    low, high = REVERBERATION
    seconds = low * (high / low) ** torch.rand(count, 1, generator=generator)
    share = REVERBERANT * torch.rand(count, 1, generator=generator)
    decay = torch.exp(-math.log(1e6) * HOP / CONDITIONING_RATE / seconds * torch.arange(frames))
    response = share * decay / decay.sum(dim=1, keepdim=True)
    response[:, 0] += 1 - share[:, 0]
    # float64, because the power of frames differs by more than float32 has digits
    power = torch.fft.rfft(mels.double().exp(), 2 * frames, dim=1)
    power = power * torch.fft.rfft(response.double(), 2 * frames)[..., None]
    return torch.fft.irfft(power, 2 * frames, dim=1)[:, :frames].clamp(min=FLOOR).log().float()


def train_clone_encoder(
    part: TrainedPart, lessons: ClipLessons, exam: Sequence[HeardClip]
) -> tuple[CloneEncoder, Trainer]:
    """Train an encoder, and measure at every checkpoint how well it separates the speakers of ``exam``."""
    torch.manual_seed(part.schedule.seed)
    model = CloneEncoder(CONFIGS["conditioning_encoder"], lessons.targets.mean(dim=0))
    trainer = Trainer(model, part)

    def validate() -> dict[str, float]:
        return {f"held-back {name}": value for name, value in measured(model, exam).items()}

    trainer.run(lambda step, generator: lessons.losses(model, step, generator), validate)
    return trainer.result(), trainer


def measured(
    model: CloneEncoder, recordings: Sequence[HeardClip], centre: np.ndarray | None = None
) -> dict[str, float]:
    """Measure how well predicted embeddings separate speakers, and their mean cosine with Resemblyzer's embedding."""
    predicted = np.stack([model.embedding(heard.mel) for heard in recordings])
    true = np.stack([heard.embedding for heard in recordings])
    return separations(predicted, [heard.speaker for heard in recordings], centre) | {
        "agreement": float((predicted * true).sum(axis=1).mean())
    }


def separations(embeddings: np.ndarray, speakers: Sequence[str], centre: np.ndarray | None) -> dict[str, float]:
    """Measure how well embeddings separate speakers, and, unless ``centre`` is ``None``, their distances from it."""
    figures = separation(embeddings, speakers)
    if centre is not None:
        centred = embeddings - centre
        centred /= np.linalg.norm(centred, axis=1, keepdims=True)
        figures |= {f"{name}_centred": value for name, value in separation(centred, speakers).items()}
    return figures


def rows_of(
    model: CloneEncoder, name: str, groups: Mapping[str, Sequence[HeardClip]], centre: np.ndarray
) -> list[BenchRow]:
    """Measure an encoder, Resemblyzer, and the mean mel, on groups of recordings.

    All embeddings of people are alike to some degree. The figures with the suffix ``_centred`` are of the embeddings
    without ``centre``, Resemblyzer's mean embedding.
    """
    rows = []
    for group, recordings in groups.items():
        speakers = [heard.speaker for heard in recordings]
        true = np.stack([heard.embedding for heard in recordings])
        means = np.stack([heard.mel.astype(np.float32).mean(axis=0) for heard in recordings])
        means -= means.mean(axis=0)
        figures = {
            name: measured(model, recordings, centre),
            "Resemblyzer": separations(true, speakers, centre),
            "mean mel": separation(means / np.linalg.norm(means, axis=1, keepdims=True), speakers),
        }
        settings = {"recordings": len(recordings), "speakers": len(set(speakers))}
        rows += [
            BenchRow(judge, group, "AUC", settings, Spread.of([found["auc"]]), found)
            for judge, found in figures.items()
        ]
    return rows


def speech_to_learn(folder: Path, config: CloneConfig, most: int | None, ear: Ear) -> list[list[HeardClip]]:
    """Hear the recordings of the speakers to learn from, without those who failed the gate.

    Returns:
        The recordings of the first ``most`` speakers. A first recording, played faster or slower, is one more speaker.
    """
    judged = judgements(folder)
    speakers = [
        paths
        for name, paths in recordings_of_speakers(folder, "learned").items()
        if name not in judged or passes(config.gate, judged[name])
    ]
    return [
        [
            ear.heard(path, rate, folder / "heard")
            for place, path in enumerate(paths)
            for rate in ((1.0, *config.encoder.rates) if place == 0 else (1.0,))
        ]
        for paths in speakers[:most]
    ]


def heard_groups(folder: Path, config: CloneConfig, ear: Ear) -> dict[str, list[HeardClip]]:
    """Hear the recordings of the speakers who are held back, of as many who are learned from, and of people.

    Speakers to learn from are left out if they have a single recording.
    """

    def hear(speakers: Sequence[list[Path]]) -> list[HeardClip]:
        return [ear.heard(path, 1.0, folder / "heard") for paths in speakers for path in paths]

    held_back, learned = (list(recordings_of_speakers(folder, kind).values()) for kind in ("held", "learned"))
    groups = {
        "held-back speakers": hear(held_back),
        "held-back style tables": hear(held_back[: len(config.speakers.held_back_tables)]),
        "speakers it learned from": hear([paths for paths in learned if len(paths) > 1][: len(held_back)]),
        "people": people(ear),
    }
    return {name: heard for name, heard in groups.items() if heard}


def encoder_part(folder: Path, schedule: PartSchedule, learned: int) -> TrainedPart:
    return TrainedPart(folder / f"{PART}-{learned}", schedule, "cpu", folder / "none")


def report(folder: Path, config: CloneConfig) -> dict[str, Any]:
    """Measure all encoders of a run, and return a JSON document with their curves."""
    ear, schedule = Ear(), config.schedule.model_copy(update={"minutes": 0.0})
    groups = heard_groups(folder, config, ear)
    lessons = ClipLessons(groups["held-back speakers"], config.encoder, WINDOW, ear.mel_norms)
    firsts = [paths[0] for paths in recordings_of_speakers(folder, "learned").values()]
    centre = np.mean([ear.heard(path, 1.0, folder / "heard").embedding for path in firsts], axis=0)
    rows, curves = {}, {}
    for count in sorted(int(path.name.rpartition("-")[2]) for path in folder.glob(f"{PART}-*")):
        model, trainer = train_clone_encoder(encoder_part(folder, schedule, count), lessons, [])
        name = f"encoder that learned from {count} speakers"
        rows |= {
            (row.competitor, row.what): row for row in rows_of(model, f"{name}, {trainer.step} steps", groups, centre)
        }
        curves[name] = trainer.curve
    judged = judgements(folder)
    scores = list(judged.values())
    made = sorted((folder / "speech").glob("*.npz"))
    facts = {
        "recordings": len(made),
        "minutes_of_speech": sum(Shard.load(path).hours for path in made) * 60,
        "judged_speakers": len(judged),
        "speakers_that_pass": sum(passes(config.gate, score) for score in scores),
    }
    if scores:
        facts["distillmos"] = float(np.mean([score["distillmos"] for score in scores]))
        facts["word_errors"] = sum(score["errors"] for score in scores) / sum(score["words"] for score in scores)
    return document("clone_encoder", facts, list(rows.values()), curves=curves, judged=judged)


def train_or_report(options: argparse.Namespace) -> None:
    config, folder = read_config(options.config), options.output
    if not recordings_of_speakers(folder, "held") or not recordings_of_speakers(folder, "learned"):
        raise UserError(f"{folder} has no speech: run python -m training.clone_speech -o {folder} first")
    (folder / "heard").mkdir(exist_ok=True)
    if options.report:
        write_json(options.report, report(folder, config))
        return
    ear = Ear()
    learned = speech_to_learn(folder, config, options.speakers, ear)
    lessons = ClipLessons(
        [heard for some in learned for heard in some], config.encoder, config.schedule.batch, ear.mel_norms
    )
    exam = [
        ear.heard(path, 1.0, folder / "heard")
        for paths in recordings_of_speakers(folder, "held").values()
        for path in paths[:VALIDATED]
    ]
    schedule = config.schedule.model_copy(update={"minutes": options.minutes})
    train_clone_encoder(encoder_part(folder, schedule, len(learned)), lessons, exam)


def main(arguments: list[str] | None = None) -> int:
    program = TrainingProgram("training.clone_encoder", __doc__, CONFIG, "train for at most N minutes")
    add = program.add_argument
    add("--speakers", type=int, metavar="N", help="learn from the first N speakers (default: all)")
    add("--report", type=Path, metavar="FILE", help="measure all encoders in DIR instead of training, and write JSON")
    return program.run(train_or_report, arguments)


if __name__ == "__main__":
    sys.exit(main())
