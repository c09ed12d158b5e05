"""MODEL.md, the card of the embedded bundle: data, training, quality, limits."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ane.audio import read_audio
from ane.audio.mel import DIFFUSION_RATE, diffusion_mel
from ane.system.files import replacing
from training.text import SHARES
from training.trainer import draw_curves

CARD, CURVES, SPECTROGRAMS = "MODEL.md", "curves.jpg", "spectrograms.jpg"


class CardText(Protocol):
    def __call__(self, source: Mapping[str, Any], quality: Mapping[str, Any] | None, identity: str,
                 spectrograms: bool) -> str: ...


def write_card(bundle: Path, curves: Mapping[str, Sequence[Mapping[str, float]]], quality: Mapping[str, Any] | None,
               sound: Path | None, identity: str, text_of: CardText | None = None) -> None:
    """Write the card and its pictures into a bundle.

    Args:
        curves: of each part. quality: the result of ``python -m benchmarks quality``, if it ran.
        sound: folder of its audio files, VOICE-SYSTEM-NNN.wav. identity: of the bundle.
        text_of: the card's text; None: ``card_text``.
    """
    source = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))["source"]
    draw_curves(curves, bundle / CURVES, dpi=60, pil_kwargs={"quality": 70})
    if sound is not None:
        draw_spectrograms(sound, list(quality["voices"]), bundle / SPECTROGRAMS)
    text = (text_of or card_text)(source, quality, identity, spectrograms=sound is not None)
    with replacing(bundle / CARD) as target:
        target.write_text(text, encoding="utf-8")


def card_text(source: Mapping[str, Any], quality: Mapping[str, Any] | None, identity: str, spectrograms: bool) -> str:
    sections = [HEAD, data_section(source), training_section(source)]
    if quality is not None:
        sections.append(score_section(quality, identity))
    if spectrograms:
        sections.append(f"![One sentence by teacher, fast path and quality path]({SPECTROGRAMS})\n")
    return "\n".join([*sections, LIMITS])


FLITE = """Flite: copyright 1999-2001 Language Technologies Institute, Carnegie Mellon
  University; free to use, modify and distribute if its notice and the authors' names are kept, modifications are
  marked, and the names are not used to endorse derived products. The bundle contains nothing of flite itself."""

HEAD = """# The embedded voice

A small Tortoise: the networks of the official model at small sizes, trained on synthetic speech. With it `ane say`
works without a download, and tests, benchmarks and conversions have a trained model. Apache-2.0.
"""

LIMITS = """## Limits

- It speaks English in two synthetic voices, `rms` and `slt`, and sounds like its training data, flite, with some
  buzz. The official model sounds natural; this one does not.
- It does not clone. A clip selects the nearer of the two voices; `random` gives one of them or a blend.
- It was trained on texts of up to 130 characters; longer text is split into chunks.
- Its training speech has a sample rate of 16 kHz, so its output has nothing above 8 kHz.
- It mispronounces some rare words.
- The buzz comes from the vocoders, which were trained on spectra without a discriminator.
"""


def data_section(source: Mapping[str, Any]) -> str:
    return f"""## Data

- Teachers: {", ".join(source["teachers"])}, voices of CMU Flite, built from the recordings rms and slt of CMU ARCTIC
  (John Kominek and Alan W Black). {FLITE}
- {source["clips"]} clips, {source["hours"]} hours; each text is spoken once, by one voice. {source["held_back"]:.1%} of
  the clips are held back from the autoregressive decoder; the diffusion decoder, both vocoders and both encoders are
  trained on those only.
{texts_item()}"""


def texts_item() -> str:
    """What the training texts are, as an item of a list."""
    plain, examples, definitions, strings = SHARES
    return f"""\
- Texts, by share of the draws: {plain:.0%} sentences of a small grammar of everyday English, {examples:.0%} example
  sentences and {definitions:.0%} definitions of WordNet 3.0 (copyright 2006 Princeton University), {strings:.0%}
  strings of frequent words (the first 40,000 of wordfreq by Robyn Speer, https://github.com/rspeer/wordfreq, data CC
  BY-SA 4.0; no list is included). No text shares five successive words with the sentences that quality is measured on.
"""


def training_section(source: Mapping[str, Any]) -> str:
    rows = "\n".join(f"| {part} | {source['steps'][part]} | {source['seconds'][part] / 60:.0f} |"
                     for part in source["steps"])
    versions = ", ".join(f"{name} {version}" for name, version in source["versions"].items())
    earlier = earlier_section(source["initialised_from"]) if "initialised_from" in source else ""
    return f"""## Training

In a clone of the repository, `python -m training -o DIR` trains such a voice (seed {source["seed"]}) with the values of
`training/embedded_voice.toml`; the command is not part of the installed package. This voice was trained on
{source["device"]}, {source["batch"]} crops in a vocoder's batch:

| part | steps | minutes |
|---|---:|---:|
{rows}

The quantiser and the listener are needed in training only. The listener, a recogniser of letters, scores the candidates
that CLVP is trained to rank.
{run_ends_section(source)}{earlier}
Versions: {versions}.

![Curves of all parts]({CURVES})
"""


def run_ends_section(source: Mapping[str, Any]) -> str:
    runs = [f"{part} at steps {', '.join(map(str, ends))}" for part, ends in source.get("run_ends", {}).items()]
    text = textwrap.fill(
        f"Some parts were trained in several runs, which ended: {'; '.join(runs)}. A run continued from the checkpoint "
        "of the one before; its learning rate fell as in one run of as many steps.", 120)
    remarks = [textwrap.fill(f"- {remark}", 120, subsequent_indent="  ") for remark in source.get("remarks", [])]
    return (f"\n{text}\n" if runs else "") + ("\n".join(["\nRemarks on this run:\n", *remarks, ""]) if remarks else "")


def earlier_section(began: Mapping[str, Any]) -> str:
    commit = f" in commit {began['commit'][:12]} of the repository" if "commit" in began else ""
    text = f"""
Its networks started from the weights of an earlier voice, bundle {began["bundle"][:12]}{commit}.
The quantiser, the listener and the two converters of noise started from random weights. The decoder's embeddings of
codes started from means of the earlier embeddings of codes with the same sound, CLVP's from random values.
"""
    if not {"device", "steps", "seconds"} <= began.keys():
        return text
    rows = ", ".join(f"{part} {steps} ({began['seconds'][part] / 60:.0f})" for part, steps in began["steps"].items())
    text += textwrap.fill(f"The earlier voice was trained on {began['device']}, steps (minutes): {rows}.", 120)
    return text + "\n"


def score_section(quality: Mapping[str, Any], identity: str) -> str:
    lines = [f"""## Quality

Word error rates of an offline recogniser (pocketsphinx) on {quality["settings"]["sentences"]} sentences outside the
training data, and DNSMOS, a network's estimate of how natural listeners find them (1 to 5): `python -m benchmarks
quality`, benchmarks/results/quality-demo.json. Fast path: preset `fastest`; quality path: preset
`{quality["settings"]["preset"]}`.

| voice | spoken by | word error rate | 95 % | DNSMOS | forced choices | stop token | pitch, Hz | mel distance, dB |
|---|---|---:|---|---:|---:|---:|---:|---:|"""]
    for voice, result in quality["voices"].items():
        for system in (name for name in ("teacher", "codes", "fast", "quality") if name in result):
            row = result[system]
            distance = "–" if row["mel_distance_db"] is None else f"{row['mel_distance_db']:.1f}"
            dnsmos = "–" if row.get("dnsmos") is None else f"{row['dnsmos']:.2f}"
            (low, high), chosen = row["interval"], f"{row['forced']} / {row['choices']}"
            lines.append(f"| {voice} | {system} | {row['wer']:.3f} | {low:.3f}–{high:.3f} | {dnsmos} | "
                         f"{chosen} | {row['stopped']:.0%} | {row['f0']:.0f} | {distance} |")
    if quality["bundle"] != identity:
        lines += ["", f"Measured on the bundle {quality['bundle'][:12]}, before a part of it was trained further."]
    ranked = {voice: result["ranking"] for voice, result in quality["voices"].items() if "ranking" in result}
    lines += [""] if ranked else []
    lines += ["- {}: best of 8 candidates by CLVP {clvp:.3f}, a random one of them {random:.3f}: a gain of {gain:.3f} "
              "({gain_low:.3f} to {gain_high:.3f}; fast path).".format(voice, **result)
              for voice, result in ranked.items()]
    missed = [f"- {claim}: {value:.3f}, threshold {bound}"
              for claim, value, bound, met in quality["thresholds"] if not met]
    lines += ["", "Thresholds of benchmarks/quality.py that it does not meet:" if missed else
              "It meets every threshold of benchmarks/quality.py.", *missed]
    return "\n".join(lines) + "\n"


def draw_spectrograms(sound: Path, voices: Sequence[str], path: Path, sentence: int = 0) -> None:
    from matplotlib.figure import Figure

    systems = [system for system in ("teacher", "fast", "quality", "speech")
               if (sound / f"{voices[0]}-{system}-{sentence:03d}.wav").exists()]
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
