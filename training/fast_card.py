"""MODEL.md, the card of the fast embedded bundle."""

from collections.abc import Mapping
from typing import Any

from training.card import CURVES, FLITE, SPECTROGRAMS, run_ends_section, texts_item

FAST_HEAD = """# The fast embedded voice

A small FastSpeech with a small HiFi-GAN, trained on synthetic speech: `ane say "Hello." --bundle demo-fast`. It has one
voice and needs no download. Apache-2.0.
"""

FAST_LIMITS = """## Limits

- It speaks English in one synthetic voice, that of flite's `rms`, and sounds like it. It does not clone.
- It reads letters, and learned to read them from flite, whose lexicon and letter-to-sound rules are right for frequent
  words. It mispronounces some rare words and names; phonemes in braces, `{HH AH0 L OW1}`, say how a word is spoken.
- It was trained at speeds from 0.45 to 2.2; `--speed` takes more.
- The buzz comes from the vocoder, which was trained on spectra, without a discriminator and for a short time. It draws
  the pitch to 86 Hz, the rate of mel frames, so the voice is lower and flatter than its teacher's.
- At half speed it is understood less well than its teacher at that speed, since few of its clips are so slow.
- Its training speech has a sample rate of 16 kHz, so its output has nothing above 8 kHz.
"""


def fast_card_text(source: Mapping[str, Any], quality: Mapping[str, Any] | None, identity: str,
                   spectrograms: bool) -> str:
    sections = [FAST_HEAD, fast_data_section(source), fast_training_section(source)]
    if quality is not None:
        sections.append(fast_score_section(quality, identity))
    if spectrograms:
        sections.append(f"![One sentence by teacher and voice]({SPECTROGRAMS})\n")
    return "\n".join([*sections, FAST_LIMITS])


def fast_data_section(source: Mapping[str, Any]) -> str:
    return f"""## Data

- Teacher: {", ".join(source["teachers"])}, a voice of CMU Flite, built from the recordings rms of CMU ARCTIC
  (John Kominek and Alan W Black). {FLITE}
- {source["clips"]} texts, {source["hours"]} hours of speech, two fifths of it slower or faster than the voice's own
  speed. The times of phonemes are flite's own; letters got theirs by an alignment of letters and phonemes in flite's
  lexicon.
{texts_item()}"""


def fast_training_section(source: Mapping[str, Any]) -> str:
    rows = "\n".join(f"| {part} | {source['steps'][part]} | {source['seconds'][part] / 60:.0f} |"
                     for part in source["steps"])
    versions = ", ".join(f"{name} {version}" for name, version in source["versions"].items())
    return f"""## Training

In a clone of the repository, `python -m training --config training/fast_voice.toml -o DIR` trains such a voice (seed
{source["seed"]}); the command is not part of the installed package. This voice was trained on {source["device"]},
{source["batch"]} crops in a vocoder's batch:

| part | steps | minutes |
|---|---:|---:|
{rows}

The vocoder was trained on the teacher's mels, then on those that FastSpeech predicts with the teacher's durations.
{run_ends_section(source)}
Versions: {versions}.

![Curves of all parts]({CURVES})
"""


def fast_score_section(quality: Mapping[str, Any], identity: str) -> str:
    lines = [f"""## Quality

Word error rates of an offline recogniser (pocketsphinx) on {quality["settings"]["sentences"]} sentences outside the
training data: `python -m benchmarks quality --bundle demo-fast`, benchmarks/results/quality-demo-fast.json.

| spoken by | word error rate | 95 % interval | forced choices | pitch, Hz | mel distance, dB |
|---|---:|---|---:|---:|---:|"""]
    [result] = quality["voices"].values()
    for system in ("teacher", "speech"):
        row = result[system]
        distance = "–" if row["mel_distance_db"] is None else f"{row['mel_distance_db']:.1f}"
        low, high = row["interval"]
        name = "this voice" if system == "speech" else system
        lines.append(f"| {name} | {row['wer']:.3f} | {low:.3f}–{high:.3f} | {row['forced']} / {row['choices']} | "
                     f"{row['f0']:.0f} | {distance} |")
    if quality["bundle"] != identity:
        lines += ["", f"Measured on the bundle {quality['bundle'][:12]}, before a part of it was trained further."]
    missed = [f"- {claim}: {value:.3f}, threshold {bound}"
              for claim, value, bound, met in quality["thresholds"] if not met]
    lines += ["", "Thresholds of benchmarks/quality.py that it does not meet:" if missed else
              "It meets every threshold of benchmarks/quality.py.", *missed]
    return "\n".join(lines) + "\n"
