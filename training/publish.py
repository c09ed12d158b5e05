"""Writes the trained networks as a bundle, with voices and model card."""

import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from ane.bundles.bundle import Bundle, write_bundle
from ane.system.version import version
from ane.voices import Voice, save_voice
from training.card import card_text, write_card
from training.fast_card import fast_card_text
from training.fast_recipe import FAST_PARTS
from training.fast_run import FastTrainingRun
from training.recipe import CONFIGS
from training.run import INITIALISED_FROM, TrainingRun
from training.speech import Shard
from training.timed_speech import timed_hours
from training.trained_model import TrainedFastSpeech, TrainedModel

PACKAGES = ("torch", "numpy", "soxr", "wordfreq")


def publish(run: TrainingRun, destination: Path) -> None:
    """Write a bundle: all networks, the latents learned for each teacher as its voices, and MODEL.md."""
    modules = {"autoregressive": run.autoregressive.network, "diffusion": run.diffusion.network,
               **{name: getattr(run, name) for name in CONFIGS if name not in ("autoregressive", "diffusion")}}
    voices = run.recipe.voices
    with tempfile.TemporaryDirectory() as folder:
        model = TrainedModel(modules, run.mel_norms, voices[0], Path(folder))
        latents = (part.detach().cpu().numpy() for part in (run.voice_latents, run.diffusion.voices))
        for name, ar, diffusion in zip(voices, *latents, strict=True):
            voice = Voice(ar[None], diffusion[None], name=name, source=f"learned from flite {name}")
            save_voice(Path(folder) / f"{name}.safetensors", voice)
        write_bundle(model, destination, precision=run.recipe.precision, name="demo", overwrite=True,
                     licence="Apache-2.0",
                     description="A small Tortoise trained on synthetic speech of two flite voices.",
                     source=source(run))
    write_scored_card(run, destination)


def publish_fast(run: FastTrainingRun, destination: Path) -> None:
    """Write a bundle of FastSpeech and its vocoder, with MODEL.md."""
    model = TrainedFastSpeech({"fastspeech": run.fastspeech, "vocoder": run.vocoder})
    source = {"teachers": [f"flite {run.recipe.voice}"],
              "hours": round(sum(timed_hours(path) for path in run.shards), 1), "clips": len(run.texts),
              **training_facts(run, FAST_PARTS)}
    write_bundle(model, destination, precision=run.recipe.precision, name=model.name, overwrite=True,
                 licence="Apache-2.0", description="A small FastSpeech trained on synthetic speech of a flite voice.",
                 source=source)
    write_scored_card(run, destination)


def write_scored_card(run: TrainingRun | FastTrainingRun, bundle: Path) -> None:
    """Write the card of a bundle. Scores are read from quality.json in the run's folder, spectrograms drawn from its
    folder sound, if `python -m benchmarks quality` wrote them there."""
    curves = {path.parent.name: json.loads(path.read_text()) for path in sorted(run.folder.glob("*/curve.json"))}
    measured, sound = run.folder / "quality.json", run.folder / "sound"
    quality = json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else None
    card = fast_card_text if isinstance(run, FastTrainingRun) else card_text
    write_card(bundle, curves, quality, sound if quality is not None and sound.exists() else None,
               Bundle(bundle).identity, card)


def source(run: TrainingRun) -> dict:
    """`source` in bundle.json: how the weights were trained."""
    began = run.folder / INITIALISED_FROM
    earlier = {"initialised_from": json.loads(began.read_text())} if began.exists() else {}
    return {**earlier, "teachers": [f"flite {voice}" for voice in run.recipe.voices],
            "hours": round(sum(Shard.load(path).hours for path in run.shards), 1),
            "clips": len(run.texts), "held_back": round(run.held_back_count / len(run.shards), 3),
            **training_facts(run, list(run.recipe.parts))}


def training_facts(run: TrainingRun | FastTrainingRun, parts: Sequence[str]) -> dict:
    """What `source` states of any run."""
    # a run that resumes with a finished CLVP may have no listener
    curves = {part: json.loads(path.read_text())[-1] for part in parts
              if (path := run.folder / part / "curve.json").exists()}
    device = torch.cuda.get_device_name() if run.device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
    return {"seed": run.recipe.seed, "device": device, "batch": run.recipe.crops,
            "run_ends": {part: list(schedule.steps) for part, schedule in run.recipe.parts.items()
                     if len(schedule.steps) > 1},
            "steps": {part: point["step"] for part, point in curves.items()},
            "seconds": {part: round(point["seconds"]) for part, point in curves.items()},
            "versions": {"python": platform.python_version(), "tortoise-ane": version(),
                         **{package: importlib.metadata.version(package) for package in PACKAGES}}}
