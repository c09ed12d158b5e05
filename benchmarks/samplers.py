"""`python -m benchmarks.samplers`: what each sampler of the diffusion costs and what it loses, on a bundle's own voice.

Held-out sentences are decoded to codes once; then every sampler, number of steps, spacing and guidance makes sound of
the same codes. Three distances of log-mels, in dB: from 200 steps of upstream's ancestral ``p`` with the same seed,
from the flow that both deterministic samplers approximate (100 steps of ddim from the same noise), and of the sound
from the teacher's. The distance of 200 steps of ``p`` from themselves with another noise is the scale: a sampler that
is nearer loses less than the seed decides. Of those that a preset could take, pocketsphinx writes down what it hears;
errors are compared, sentence by sentence, with those of upstream's quickest preset.

The embedded network says x0. "ε, 2 %" lets it say epsilon, as the official one does, with a white error of 0.02 beside
an epsilon of 1: where noise is high, x0 is then wrong by many times its range, as that of a network that learned
epsilon is. It stands for such a network in this alone.

Finished sentences lie in --work and are not measured again. Seconds are of the processor, on one thread.
"""

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import ane
from ane.audio import resample
from ane.audio.mel import HOP, denormalise_mel
from ane.backends.base import Denoiser
from ane.bundles import open_model
from ane.models.tortoise.diffusion import SAMPLERS, Diffusion, frames_of, sample, trained_alphas_cumprod
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.synthesizer import SAMPLE_RATE, Synthesizer
from ane.system.files import replacing
from ane.voices import load_voice
from benchmarks.listening import mel_distance
from benchmarks.quality import interval, judge
from benchmarks.report import RESULTS, Spread, plot, print_table, publish, run
from benchmarks.speakers import SEED, Said, readings_of, sound_of
from training.speech import RATE, Flite
from training.text import held_out_sentences

DECIBELS = 20 / np.log(10)      # of a mel's natural logarithm of a magnitude
GUIDED = (None, 2.0)


@dataclass(frozen=True)
class System:
    """A way to make a mel of latents.

    Attributes:
        error: the network says epsilon, wrong by this much (root mean square); None: what it was trained to say.
        seed: of the diffusion's noise, beside the sentence's.
        heard: whether the recogniser hears it, in every sentence; the others are seen alone, in the first few.
    """

    diffusion: Diffusion
    error: float | None = None
    seed: int = 0
    heard: bool = False

    @property
    def name(self) -> str:
        diffusion = self.diffusion
        parts = [f"{diffusion.sampler} {diffusion.steps} {diffusion.spacing}"]
        parts += [f"guidance {diffusion.guidance:g}"] if diffusion.guidance else []
        parts += [f"ε, {self.error:.0%}"] if self.error else []
        return ", ".join(parts + ["another noise"] * bool(self.seed))

    @property
    def rows(self) -> int:
        """What the network is asked for: one a step, guided two."""
        return self.diffusion.steps * (2 if self.diffusion.guidance else 1)


def reference(guidance: float | None) -> System:
    return System(Diffusion(200, "p", guidance), heard=not guidance)


def scale(guidance: float | None) -> System:
    """The reference with another noise."""
    return System(Diffusion(200, "p", guidance), seed=1000)


def flow(guidance: float | None) -> System:
    return System(Diffusion(100, "ddim", guidance, spacing="logsnr"))


def default() -> System:
    """What errors are held against: upstream's quickest preset."""
    return System(Diffusion(30, "p", None), heard=True)


# steps by sampler, spacing and guidance: those that a preset could take are heard, the rest seen
HEARD = {("p", "even", None): (30,), ("p", "logsnr", None): (10,),
         ("ddim", "even", None): (10,), ("ddim", "logsnr", None): (8, 10), ("dpm++2m", "logsnr", None): (8, 10, 15),
         ("p", "even", 2.0): (80,), ("p", "logsnr", 2.0): (10,),
         ("ddim", "logsnr", 2.0): (10,), ("dpm++2m", "logsnr", 2.0): (10, 15)}
SEEN = {("p", "even", None): (80,), ("p", "logsnr", None): (20,), ("ddim", "logsnr", None): (15, 20, 30),
        ("dpm++2m", "even", None): (10, 20), ("dpm++2m", "logsnr", None): (6, 12, 20),
        ("p", "even", 2.0): (30,), ("p", "logsnr", 2.0): (20,),
        ("ddim", "even", 2.0): (10,), ("ddim", "logsnr", 2.0): (8, 20),
        ("dpm++2m", "even", 2.0): (10,), ("dpm++2m", "logsnr", 2.0): (6, 8, 20)}


def systems() -> list[System]:
    grids = [System(Diffusion(count, sampler, guidance, spacing=spacing), heard=grid is HEARD)
             for grid in (HEARD, SEEN) for (sampler, spacing, guidance), counts in grid.items() for count in counts]
    wrong = [System(Diffusion(10, sampler, guidance, spacing=spacing), error=0.02) for guidance in GUIDED
             for sampler, spacing in (("ddim", "even"), ("ddim", "logsnr"), ("dpm++2m", "logsnr"))]
    return [system for guidance in GUIDED for system in (
        reference(guidance), scale(guidance), flow(guidance),
        *sorted((one for one in grids if one.diffusion.guidance == guidance), key=order),
        *(one for one in wrong if one.diffusion.guidance == guidance))]


def order(system: System) -> tuple[int, str, int]:
    return SAMPLERS.index(system.diffusion.sampler), system.diffusion.spacing, system.diffusion.steps


class Epsilon:
    """A denoiser that says x0 as one that says epsilon, with a white error."""

    def __init__(self, denoiser: Denoiser, error: float):
        self.denoiser, self.error = denoiser, error
        self.kept, self.rng = trained_alphas_cumprod(), np.random.default_rng(SEED)

    def __call__(self, x: np.ndarray, timestep: int, guided: bool) -> np.ndarray:
        x0, variance = np.split(self.denoiser(x, timestep, guided), 2, axis=1)
        kept = self.kept[timestep]
        said = (x - np.sqrt(kept) * x0) / np.sqrt(1 - kept) + self.error * self.rng.standard_normal(x0.shape)
        return np.concatenate((said.astype(np.float32), variance), axis=1)


def mel_of(synthesizer: Synthesizer, latents: np.ndarray, voice: np.ndarray, system: System,
           randomness: Randomness) -> np.ndarray:
    """(1, 100, L) float32, as ``ane.models.tortoise.diffusion.spectrogram`` gives it."""
    frames = frames_of(len(latents))
    denoiser = synthesizer.backend.denoiser(latents[None], voice, frames)
    prediction = synthesizer.model.config("diffusion").prediction
    if system.error is not None:
        denoiser, prediction = Epsilon(denoiser, system.error), "epsilon"
    mel = sample(denoiser, frames, system.diffusion, randomness.diffusion(0, 0), prediction=prediction)
    return denormalise_mel(mel)


def log_spectral_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Of two mels (1, 100, L) in dB: the root mean square over bands, its mean over frames."""
    return float(np.sqrt((((a - b) * DECIBELS) ** 2).mean(axis=1)).mean())


@cache
def opened(bundle: str | None) -> Synthesizer:
    """One a process, on one thread: a process for each core."""
    return ane.load(bundle, threads=1)


def measure(index: int, text: str, seen: bool, options: argparse.Namespace) -> dict[str, Any]:
    """One sentence: the figures of each system by its name; distances of mels when all are ``seen``."""
    synthesizer = opened(options.bundle)
    voice = load_voice(synthesizer.model.voices / f"{options.voice}.safetensors", options.voice)
    latents = readings_of(synthesizer, text, voice, 1, Randomness(SEED + index))[1][0].latents
    teacher = resample(Flite(options.flite, options.flite_libraries).read(text.lower(), options.voice), RATE,
                       SAMPLE_RATE)
    mels, found = {}, {}
    for system in systems():
        if seen or system.heard:
            started = time.process_time()       # a busy machine must not tell in the figures
            mel = mel_of(synthesizer, latents, voice.diffusion, system, Randomness(SEED + index + system.seed))
            spent = time.process_time() - started
            found[system.name] = {"cpu_seconds_per_second": spent / (mel.shape[-1] * HOP / SAMPLE_RATE)}
            mels[system] = mel
    for system, mel in mels.items():
        audio, figures = sound_of(synthesizer, mel, Randomness(SEED + index)), found[system.name]
        figures["from_teacher"] = mel_distance(audio, teacher)
        if system.heard:
            said = judge(Said(text, audio), None, ())
            figures |= {"errors": said.errors, "words": said.words, "heard": said.heard}
        if seen:
            guidance = system.diffusion.guidance
            figures |= {"from_p200": log_spectral_distance(mel, mels[reference(guidance)]),
                        "from_flow": log_spectral_distance(mel, mels[flow(guidance)])}
    return found


def measured(index: int, text: str, options: argparse.Namespace) -> dict[str, Any]:
    """``measure``, or what lies finished in the folder of work."""
    path, seen = options.work / f"{options.voice}-{index:03d}.json", index < options.seen
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if all("heard" in found.get(system.name, {}) if system.heard else system.name in found or not seen
               for system in systems()):
            return found
    found = measure(index, text, seen, options)
    with replacing(path) as staging:
        staging.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    return found


def summary(system: System, sentences: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A system's figures over all sentences; its word errors also beside those of ``default()``, codes being equal."""
    def column(name: str, of: System = system) -> np.ndarray:
        rows = [sentence[of.name] for sentence in sentences if of.name in sentence]
        return np.array([row[name] for row in rows if name in row], dtype=float)

    seen = column("from_p200")
    found = {"rows": system.rows, "from_p200": seen.mean(), "from_flow": column("from_flow").mean(),
             "from_teacher": column("from_teacher")[:len(seen)].mean(), "distances": seen.round(3).tolist()}
    if system.heard:
        errors, count = column("errors"), column("words")
        more = errors - column("errors", default())
        found |= {"wer": errors.sum() / count.sum(), "interval": interval(errors, count),
                  "more": more.sum() / count.sum(), "more_interval": interval(more, count),
                  "cpu_seconds_per_second": float(np.median(column("cpu_seconds_per_second"))),
                  "errors": errors.astype(int).tolist()}
    return found


def series(found: dict[str, dict[str, Any]], guidance: float | None) -> dict[str, dict[float, Spread]]:
    """Distance from ``p`` 200 over steps, a line a sampler and spacing; the scale as a line of its own."""
    lines: dict[str, dict[float, Spread]] = {}
    for system in systems():
        diffusion = system.diffusion
        if diffusion.guidance == guidance and system.error is None and diffusion.steps <= 80:
            line = lines.setdefault(f"{diffusion.sampler}, {diffusion.spacing}", {})
            line[diffusion.steps] = Spread.of(found[system.name]["distances"])
    other = Spread.of(found[scale(guidance).name]["distances"])
    return {**lines, "p 200, another noise": {6: other, 80: other}}


def main() -> None:
    options = arguments()
    model = open_model(bundle=options.bundle)
    options.voice = options.voice or model.default_voice
    options.work = options.work / model.identity[:12]
    options.work.mkdir(parents=True, exist_ok=True)
    texts = held_out_sentences()[:options.sentences]
    seen = min(options.seen, len(texts))
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        sentences = list(pool.map(measured, range(len(texts)), texts, [options] * len(texts)))
    found = {system.name: summary(system, sentences) for system in systems()}
    tables = [print_table(
        f"{options.voice}, {len(texts)} sentences, {f'guidance {guidance:g}' if guidance else 'unguided'}", COLUMNS,
        [row_of(system, found[system.name]) for system in systems() if system.diffusion.guidance == guidance])
        for guidance in GUIDED]
    plots = {f"-{kind}": lambda path, kind=kind, guidance=guidance: plot(
        path, f"{options.voice}: {kind} diffusion, {seen} sentences", ("steps", "dB from 200 steps of p"),
        series(found, guidance)) for kind, guidance in zip(("unguided", "guided"), GUIDED, strict=True)}
    settings = {"bundle": model.identity, "voice": options.voice, "sentences": len(texts), "seen": seen}
    publish(options.output, "samplers", settings, [], tables, plots, systems=found)


COLUMNS = ("sampler", "rows", "p 200, dB", "flow, dB", "teacher, dB", "WER", "95 %", f"beside {default().name}",
           "CPU s a second")


def row_of(system: System, result: dict[str, Any]) -> tuple[str | None, ...]:
    def between(name: str) -> str:
        return "{:.3f}–{:.3f}".format(*result[name])

    heard = (None,) * 4
    if system.heard:
        heard = (f"{result['wer']:.3f}", between("interval"), f"{result['more']:+.3f} ({between('more_interval')})",
                 f"{result['cpu_seconds_per_second']:.3f}")
    return (system.name, str(result["rows"]), f"{result['from_p200']:.2f}", f"{result['from_flow']:.2f}",
            f"{result['from_teacher']:.2f}", *heard)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samplers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--bundle", help="its name or directory (default: the embedded one)")
    add("--voice", help="one of the bundle's own that flite has too (default: the bundle's default)")
    add("--sentences", type=int, default=40, metavar="N", help="held-out sentences that are heard (%(default)s)")
    add("--seen", type=int, default=6, metavar="N",
        help="the first of them, in which all samplers are seen and mels compared (%(default)s)")
    add("--workers", type=int, default=2, metavar="N", help="processes of one thread each (%(default)s)")
    add("--work", type=Path, default=Path("samplers-work"), metavar="DIR",
        help="finished sentences, for a run that goes on (%(default)s)")
    add("--flite", default="flite", metavar="PROGRAM", help="the teacher")
    add("--flite-libraries", metavar="DIR", help="of a flite that is unpacked rather than installed")
    add("--output", type=Path, default=RESULTS / "samplers-demo.json", metavar="FILE", help="%(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    run(main)
