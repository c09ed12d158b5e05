"""MODEL.md, the card of the embedded bundle: its sources, its training, how well it speaks, its limits."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ane.audio import read_audio
from ane.audio.mel import DIFFUSION_RATE, diffusion_mel
from ane.system.files import replacing
from training.text import SHARES

CARD, CURVES, SPECTROGRAMS = "MODEL.md", "curves.jpg", "spectrograms.jpg"


def write_card(bundle: Path, curves: Mapping[str, Sequence[Mapping[str, float]]], quality: Mapping[str, Any] | None,
               sound: Path | None, identity: str) -> None:
    """Write the card into a bundle.

    Args:
        curves: the curve of each part. quality: what ``benchmarks.quality`` wrote, if it ran.
        sound: a folder of its sound, files named VOICE-SYSTEM-NNN.wav. identity: of the bundle.
    """
    source = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))["source"]
    draw_curves(curves, bundle / CURVES)
    text = [HEAD, data_section(source), training_section(source)]
    if quality is not None:
        text.append(score_section(quality, identity))
    if sound is not None:
        draw_spectrograms(sound, list(quality["voices"]), bundle / SPECTROGRAMS)
        text.append(f"![One sentence by teacher, fast path and quality path]({SPECTROGRAMS})\n")
    text.append(LIMITS)
    with replacing(bundle / CARD) as target:
        target.write_text("\n".join(text), encoding="utf-8")


HEAD = """# The embedded voice

A small Tortoise: the networks of the official model at tiny sizes, trained from nothing on synthetic speech, so that
`ane say` speaks with no download and every test, benchmark and conversion has a real model to work on. Apache-2.0.
"""

LIMITS = """## Limits

- It speaks English in two synthetic voices, `rms` and `slt`, and sounds like what it learned from: flite, a little
  buzzier. The official model is the one that sounds alive.
- It does not clone. A clip picks the nearer of the two voices; `random` gives one of them or a blend.
- It has learned clips of up to 130 characters; longer text is split before it.
- Its teachers speak at 16 kHz: there is nothing above 8 kHz.
- Rare words are spelled out by rules it had to guess, and some come out wrong.
- Both vocoders learned spectra alone, without a discriminator: hence the buzz.
"""


def data_section(source: Mapping[str, Any]) -> str:
    plain, examples, definitions, strings = SHARES
    return f"""## Data

- Teachers: {", ".join(source["teachers"])}, voices of CMU Flite, built on the recordings rms and slt of CMU ARCTIC
  (John Kominek and Alan W Black). Flite: copyright 1999-2001 Language Technologies Institute, Carnegie Mellon
  University; free to use, change and pass on if its notice stays, changes are marked, the authors' names stay and are
  not used to endorse what was made of it. Nothing of flite is in this bundle.
- {source["clips"]} clips, {source["hours"]} hours, every text read by one voice once; {source["held_back"]:.1%} of the
  clips are held back from the autoregressive decoder: the diffusion decoder, both vocoders and both encoders learn from
  those alone.
- Texts, by share of the draws: {plain:.0%} sentences of a small grammar of everyday English, {examples:.0%} example
  sentences and {definitions:.0%} definitions of WordNet 3.0 (copyright 2006 Princeton University), {strings:.0%}
  strings of frequent words (the first 40 000 of wordfreq by Robyn Speer, https://github.com/rspeer/wordfreq, data CC
  BY-SA 4.0; no list is passed on). No clip shares five words in a row with the sentences that quality is measured on.
"""


def training_section(source: Mapping[str, Any]) -> str:
    rows = "\n".join(f"| {part} | {source['steps'][part]} | {source['seconds'][part] / 60:.0f} |"
                     for part in source["steps"])
    versions = ", ".join(f"{name} {version}" for name, version in source["versions"].items())
    earlier = earlier_section(source["began_as"]) if "began_as" in source else ""
    return f"""## Training

`python -m training --out DIR` makes such a voice (seed {source["seed"]}). This one was trained on
{source["device"]}, some parts side by side and some by several processes, crops of a vocoder's step: {source["batch"]}
a process:

| part | steps | minutes |
|---|---:|---:|
{rows}

The quantiser and the listener, which judges the readings that CLVP learns to rank, are needed in training alone.
{earlier}
Made with {versions}.

![Curves of all parts]({CURVES})
"""


def earlier_section(began: Mapping[str, Any]) -> str:
    """The voice whose networks these began as."""
    text = f"""
Its networks began as those of an earlier voice (`--begin-as`; bundle {began["bundle"][:12]}), but for the quantiser,
the listener and the two converters of noise, which are new; embeddings of codes began as those of the earlier codes
that sound alike, and CLVP's anew.
"""
    if not {"device", "steps", "seconds"} <= began.keys():
        return text
    rows = ", ".join(f"{part} {steps} ({began['seconds'][part] / 60:.0f})" for part, steps in began["steps"].items())
    return text + textwrap.fill(f"That one learned on {began['device']}, steps (minutes): {rows}.", 120) + "\n"


def score_section(quality: Mapping[str, Any], identity: str) -> str:
    lines = [f"""## Quality

`python -m benchmarks.quality` on {quality["settings"]["sentences"]} plain sentences that it never learned; an offline
recogniser (pocketsphinx) writes down what it hears. Quality path: preset `{quality["settings"]["preset"]}`.

| voice | spoken by | word error rate | 95 % | chosen rightly | ends by itself | pitch, Hz | mel distance, dB |
|---|---|---:|---|---:|---:|---:|---:|"""]
    for voice, result in quality["voices"].items():
        for system in (name for name in ("teacher", "codes", "fast", "quality") if name in result):
            row = result[system]
            distance = "–" if row["mel_distance_db"] is None else f"{row['mel_distance_db']:.1f}"
            (low, high), chosen = row["interval"], f"{row['forced']} / {row['choices']}"
            lines.append(f"| {voice} | {system} | {row['wer']:.3f} | {low:.3f}–{high:.3f} | {chosen} | "
                         f"{row['stopped']:.0%} | {row['f0']:.0f} | {distance} |")
    if quality["bundle"] != identity:
        lines += ["", f"Measured on the bundle {quality['bundle'][:12]}, before a part of it learned more."]
    lines.append("")
    lines += ["- {}: best of 8 by CLVP {clvp:.3f}, a random one of them {random:.3f}: a gain of {gain:.3f} "
              "({gain_low:.3f} to {gain_high:.3f}; fast path).".format(voice, **result["ranking"])
              for voice, result in quality["voices"].items()]
    lines += ["", "Not kept of what is asked of it:" if any(not kept for *_, kept in quality["bars"]) else
              "All that is asked of it is kept (`bars` in benchmarks/quality.py)."]
    lines += [f"- {claim}: {figure:.3f}, asked {bound}" for claim, figure, bound, kept in quality["bars"] if not kept]
    return "\n".join(lines) + "\n"


def draw_curves(curves: Mapping[str, Sequence[Mapping[str, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    columns = 3
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(4 * columns, 2.4 * rows), layout="constrained")
    for number, (part, curve) in enumerate(curves.items(), 1):
        axes = figure.add_subplot(rows, columns, number)
        for name in sorted({name for point in curve for name in point} - {"step", "seconds"}):
            points = [(point["step"], point[name]) for point in curve if name in point]
            axes.plot(*zip(*points, strict=True), label=name, linewidth=0.8)
        axes.set_title(part, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=6)
        axes.grid(alpha=0.3)
    with replacing(path) as target:
        figure.savefig(target, dpi=60, pil_kwargs={"quality": 70})


def draw_spectrograms(sound: Path, voices: Sequence[str], path: Path, sentence: int = 0) -> None:
    """One sentence by every system, voice by voice."""
    from matplotlib.figure import Figure

    systems = ("teacher", "fast", "quality")
    figure = Figure(figsize=(12, 2.6 * len(systems)), layout="constrained")
    for column, voice in enumerate(voices):
        for row, system in enumerate(systems):
            audio, rate = read_audio(sound / f"{voice}-{system}-{sentence:03d}.wav")
            assert rate == DIFFUSION_RATE
            axes = figure.add_subplot(len(systems), len(voices), row * len(voices) + column + 1)
            axes.imshow(diffusion_mel(audio), origin="lower", aspect="auto", vmin=-11.5, vmax=1, cmap="magma",
                        extent=(0, len(audio) / rate, 0, 100))
            axes.set_title(f"{voice}, {system}", fontsize=9)
            axes.tick_params(labelsize=7)
    with replacing(path) as target:
        figure.savefig(target, dpi=60, pil_kwargs={"quality": 70})
