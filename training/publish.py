"""The trained parts as a bundle, with its voices and its card."""

import importlib.metadata
import json
import os
import platform
import tempfile
from pathlib import Path

import torch

from ane.bundles.bundle import Bundle, write_bundle
from ane.system.version import version
from ane.voices import Voice, save_voice
from training.card import write_card
from training.parts import BEGAN_AS, Work
from training.recipe import CONFIGS
from training.speech import Shard
from training.trained import TrainedModel

PACKAGES = ("torch", "numpy", "soxr", "wordfreq")


def publish(work: Work, destination: Path, precision: str = "fp16") -> None:
    """Write a bundle: every network, the latents that were learned for each teacher as its voices, and MODEL.md."""
    modules = {"autoregressive": work.autoregressive.network, "diffusion": work.diffusion.network,
               **{name: getattr(work, name) for name in CONFIGS if name not in ("autoregressive", "diffusion")}}
    voices = work.recipe.voices
    with tempfile.TemporaryDirectory() as folder:
        model = TrainedModel(modules, work.mel_norms, voices[0], Path(folder))
        latents = (part.detach().cpu().numpy() for part in (work.voice_latents, work.diffusion.voices))
        for name, ar, diffusion in zip(voices, *latents, strict=True):
            voice = Voice(ar[None], diffusion[None], name=name, source=f"learned from flite {name}")
            save_voice(Path(folder) / f"{name}.safetensors", voice)
        write_bundle(model, destination, precision=precision, name="demo", overwrite=True, licence="Apache-2.0",
                     description="A small Tortoise trained on synthetic speech of two flite voices.",
                     source=source(work))
    write_scored_card(work, destination)


def write_scored_card(work: Work, bundle: Path) -> None:
    """The card of a bundle, with what `benchmarks.quality` found, if its result lies in the run as quality.json (a part
    may have learned more since: the card says so), and pictures of the sound that it kept in the folder sound."""
    curves = {path.parent.name: json.loads(path.read_text()) for path in sorted(work.out.glob("*/curve.json"))}
    measured, sound = work.out / "quality.json", work.out / "sound"
    quality = json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else None
    write_card(bundle, curves, quality, sound if quality is not None and sound.exists() else None,
               Bundle(bundle).identity)


def source(work: Work) -> dict:
    """What bundle.json says of where the weights came from."""
    # a finished CLVP asks for no listener
    curves = {part: json.loads(path.read_text())[-1] for part in work.recipe.plans
              if (path := work.out / part / "curve.json").exists()}
    began = work.out / BEGAN_AS
    earlier = {"began_as": json.loads(began.read_text())} if began.exists() else {}
    return {**earlier, "teachers": [f"flite {voice}" for voice in work.recipe.voices],
            "hours": round(sum(Shard.load(path).hours for path in work.shards), 1),
            "clips": len(work.texts), "held_back": round(work.held_back / len(work.shards), 3),
            "seed": work.recipe.seed, "device": device_name(work.device), "batch": work.recipe.batch,
            "steps": {part: point["step"] for part, point in curves.items()},
            "seconds": {part: round(point["seconds"]) for part, point in curves.items()},
            "versions": {"python": platform.python_version(), "tortoise-ane": version(),
                         **{package: importlib.metadata.version(package) for package in PACKAGES}}}


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
