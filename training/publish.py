"""Writes the trained networks as a bundle with voices and model card, and as weights to go on from."""

import importlib.metadata
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ane.bundles import Model
from ane.bundles.bundle import Bundle, write_bundle
from ane.bundles.family import Config
from ane.system.version import version
from ane.voices import Voice, save_voice
from training.card import write_card
from training.recipe import CONFIGS, SETTINGS, tokenizer_json
from training.run import TrainingRun
from training.speech import Shard
from training.trainer import export

PACKAGES = ("torch", "numpy", "soxr", "wordfreq")


class TrainedModel(Model):
    """The networks of a training run: backends run them, and a bundle is written from them."""

    name, trained, precision = "demo", True, "fp32"
    networks, identity = frozenset(CONFIGS), "in training"
    settings, clones = SETTINGS, False

    def __init__(self, modules: dict[str, nn.Module], mel_norms: np.ndarray, default_voice: str,
                 voices: Path | None = None):
        self.modules, self.norms, self.default_voice, self.voices = modules, mel_norms, default_voice, voices

    def config(self, network: str) -> Config:
        return CONFIGS[network]

    def tensors(self, network: str) -> dict[str, Tensor]:
        state = self.modules[network].state_dict()
        return {key: tensor.detach().cpu().contiguous() for key, tensor in state.items()}

    @property
    def tokenizer(self) -> str:
        return tokenizer_json()

    @property
    def mel_norms(self) -> np.ndarray:
        return self.norms


def publish(run: TrainingRun) -> None:
    """Write the run's bundle: all networks, the latents learned for each teacher as its voices, and MODEL.md."""
    modules = {"autoregressive": run.autoregressive.network, "diffusion": run.diffusion.network,
               **{name: getattr(run, name) for name in CONFIGS if name not in ("autoregressive", "diffusion")}}
    with tempfile.TemporaryDirectory() as folder:
        model = TrainedModel(modules, run.mel_norms, run.voices[0], Path(folder))
        latents = (part.detach().cpu().numpy() for part in (run.voice_latents, run.diffusion.voices))
        for name, ar, diffusion in zip(run.voices, *latents, strict=True):
            voice = Voice(ar[None], diffusion[None], name=name,
                          source=f"synthetic, learned from {run.recipe.voices[name].teacher}")
            save_voice(Path(folder) / f"{name}.safetensors", voice)
        write_bundle(model, run.folder / "bundle", precision=run.recipe.precision, name="demo", overwrite=True,
                     licence="Apache-2.0", source=source(run),
                     description="A small Tortoise trained on synthetic speech of hibari and Kokoro.")
    write_scored_card(run)


def write_scored_card(run: TrainingRun) -> None:
    """Write the card of the run's bundle. Scores are read from quality.json in the run's folder, spectrograms drawn
    from its folder sound, if `python -m benchmarks quality` wrote them there."""
    curves = {path.parent.name: json.loads(path.read_text()) for path in sorted(run.folder.glob("*/curve.json"))}
    measured, sound, bundle = run.folder / "quality.json", run.folder / "sound", run.folder / "bundle"
    quality = json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else None
    write_card(bundle, curves, quality, sound if sound.exists() else None, Bundle(bundle).identity)


def write_weights(run: TrainingRun) -> None:
    """Write the weights of every part that has a checkpoint to the run's folder weights, for --start."""
    folder = run.folder / "weights"
    folder.mkdir(exist_ok=True)
    for name in run.recipe.parts:
        if (checkpoint := run.folder / name / "checkpoint.pt").exists():
            export(checkpoint, folder / f"{name}.safetensors")


def source(run: TrainingRun) -> dict[str, Any]:
    """`source` in bundle.json: how the weights were trained."""
    shards = {voice: [path for path in run.shards if path.stem.endswith(f"-{voice}")] for voice in run.voices}
    curves = {part: json.loads((run.folder / part / "curve.json").read_text())[-1] for part in run.recipe.parts}
    remarks = run.folder / "remarks.txt"
    device = torch.cuda.get_device_name() if run.device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
    return {"teachers": [taught.teacher for taught in run.recipe.voices.values()],
            "hours": {voice: round(sum(Shard.load(path).hours for path in paths), 2)
                      for voice, paths in shards.items()},
            "clips": sum(map(len, run.texts.values())),
            "held_back": round(len(run.held_back_shards) / len(run.shards), 3), "seed": run.recipe.seed,
            "device": device, "batch": run.recipe.parts["hifigan"].batch,
            "steps": {part: point["step"] for part, point in curves.items()},
            "seconds": {part: round(point["seconds"]) for part, point in curves.items()},
            **({"remarks": remarks.read_text(encoding="utf-8").splitlines()} if remarks.exists() else {}),
            "versions": {"python": platform.python_version(), "tortoise-ane": version(),
                         **{package: importlib.metadata.version(package) for package in PACKAGES}}}
