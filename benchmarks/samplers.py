"""Cost and accuracy of each diffusion sampler, with one of a bundle's voices.

Held-out sentences are decoded to codes once; then every sampler, number of steps, spacing and guidance renders
the same codes. It measures three distances of log-mels, in dB: from 200 steps of upstream's ancestral ``p`` with the
same seed; from 100 steps of ddim with the same noise, which stand for the probability flow that both deterministic
samplers approximate; and of the audio from the teacher's. 200 steps of ``p`` with other noise are the scale: a smaller
distance is less than the difference between two seeds. The audio of settings that a preset could use is transcribed by
pocketsphinx; errors are compared, sentence by sentence, with those of upstream's fastest preset.

The embedded network predicts x0. "ε, 2 %" makes it predict epsilon, as the official one does, with white noise of
deviation 0.02 added to it: at high noise levels, the error of x0 is then many times its range, as with a network that
learned epsilon. It represents such a network in this respect only.

Finished sentences are stored in --workspace and are not measured again. Seconds are CPU time on one thread.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
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
from ane.backends.denoising import Denoiser
from ane.bench.records import BenchRow, Spread
from ane.bundles import open_model
from ane.commands.arguments import positive
from ane.models.tortoise.diffusion import SOLVERS, Diffusion, frame_count, sample, trained_alphas_cumprod
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.synthesizer import SAMPLE_RATE, Synthesizer
from ane.system.files import replacing
from ane.voices import load_voice
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult, model_name
from benchmarks.listening import log_spectral_distance, mel_distance
from benchmarks.quality import ComparedWith, interval, score_speech, unavailable
from benchmarks.speakers import SEED, SpokenText, sample_candidates, univnet_audio
from training.speech import RATE, Flite
from training.text import held_out_sentences

GUIDED = (None, 2.0)


@dataclass(frozen=True)
class SamplerCase:
    """A setting of the diffusion to measure.

    Attributes:
        error: deviation of the noise of ``EpsilonDenoiser``; None: the network as it was trained.
        seed: of the diffusion's noise, added to the sentence's.
        transcribed: whether every sentence is transcribed; for other cases only mels are compared.
    """

    diffusion: Diffusion
    error: float | None = None
    seed: int = 0
    transcribed: bool = False

    @property
    def name(self) -> str:
        diffusion = self.diffusion
        parts = [f"{diffusion.sampler} {diffusion.steps} {diffusion.spacing}"]
        parts += [f"guidance {diffusion.guidance:g}"] if diffusion.guidance else []
        parts += [f"ε, {self.error:.0%}"] if self.error else []
        return ", ".join(parts + ["other noise"] * bool(self.seed))

    @property
    def network_calls(self) -> int:
        """Calls of the network: one a step, two if guided."""
        return self.diffusion.steps * (2 if self.diffusion.guidance else 1)


def reference(guidance: float | None) -> SamplerCase:
    """200 steps of upstream's sampler, which distances are measured from."""
    return SamplerCase(Diffusion(200, "p", guidance), transcribed=not guidance)


def scale(guidance: float | None) -> SamplerCase:
    """The reference with other noise, as a scale for distances."""
    return SamplerCase(Diffusion(200, "p", guidance), seed=1000)


def flow(guidance: float | None) -> SamplerCase:
    """The probability flow that ddim and dpm++2m approximate."""
    return SamplerCase(Diffusion(100, "ddim", guidance, spacing="logsnr"))


def default() -> SamplerCase:
    """Upstream's fastest preset, which word errors are compared with."""
    return SamplerCase(Diffusion(30, "p", None), transcribed=True)


# (sampler, spacing, guidance) → steps; a preset could use those of TRANSCRIBED
TRANSCRIBED = {("p", "even", None): (30,), ("p", "logsnr", None): (10,),
               ("ddim", "even", None): (10,), ("ddim", "logsnr", None): (8, 10),
               ("dpm++2m", "logsnr", None): (8, 10, 15),
               ("p", "even", 2.0): (80,), ("p", "logsnr", 2.0): (10,),
               ("ddim", "logsnr", 2.0): (10,), ("dpm++2m", "logsnr", 2.0): (10, 15)}
COMPARED = {("p", "even", None): (80,), ("p", "logsnr", None): (20,), ("ddim", "logsnr", None): (15, 20, 30),
        ("dpm++2m", "even", None): (10, 20), ("dpm++2m", "logsnr", None): (6, 12, 20),
        ("p", "even", 2.0): (30,), ("p", "logsnr", 2.0): (20,),
        ("ddim", "even", 2.0): (10,), ("ddim", "logsnr", 2.0): (8, 20),
        ("dpm++2m", "even", 2.0): (10,), ("dpm++2m", "logsnr", 2.0): (6, 8, 20)}


def systems() -> list[SamplerCase]:
    grids = [SamplerCase(Diffusion(count, sampler, guidance, spacing=spacing), transcribed=grid is TRANSCRIBED)
             for grid in (TRANSCRIBED, COMPARED) for (sampler, spacing, guidance), steps in grid.items()
             for count in steps]
    wrong = [SamplerCase(Diffusion(10, sampler, guidance, spacing=spacing), error=0.02) for guidance in GUIDED
             for sampler, spacing in (("ddim", "even"), ("ddim", "logsnr"), ("dpm++2m", "logsnr"))]
    return [system for guidance in GUIDED for system in (
        reference(guidance), scale(guidance), flow(guidance),
        *sorted((one for one in grids if one.diffusion.guidance == guidance), key=order),
        *(one for one in wrong if one.diffusion.guidance == guidance))]


def order(system: SamplerCase) -> tuple[int, str, int]:
    return list(SOLVERS).index(system.diffusion.sampler), system.diffusion.spacing, system.diffusion.steps


class EpsilonDenoiser(Denoiser):
    """Makes a denoiser that predicts x0 predict epsilon, with white noise of deviation ``error`` added."""

    def __init__(self, denoiser: Denoiser, error: float):
        self.denoiser, self.error = denoiser, error
        self.kept, self.rng = trained_alphas_cumprod(), np.random.default_rng(SEED)

    def __call__(self, x: Sequence[np.ndarray], timestep: int, guided: bool) -> list[np.ndarray]:
        return [self.predicted(*each, timestep) for each in zip(x, self.denoiser(x, timestep, guided), strict=True)]

    def predicted(self, x: np.ndarray, output: np.ndarray, timestep: int) -> np.ndarray:
        x0, variance = np.split(output, 2, axis=1)
        kept = self.kept[timestep]
        epsilon = (x - np.sqrt(kept) * x0) / np.sqrt(1 - kept) + self.error * self.rng.standard_normal(x0.shape)
        return np.concatenate((epsilon.astype(np.float32), variance), axis=1)


def mel_of(synthesizer: Synthesizer, latents: np.ndarray, voice: np.ndarray, system: SamplerCase,
           randomness: Randomness) -> np.ndarray:
    """The mel (1, 100, L) float32 of latents (N, D), as ``ane.models.tortoise.diffusion.spectrogram`` returns it."""
    frames = frame_count(len(latents))
    denoiser = synthesizer.backend.denoiser([latents[None]], voice, [frames])
    prediction = synthesizer.model.config("diffusion").prediction
    if system.error is not None:
        denoiser, prediction = EpsilonDenoiser(denoiser, system.error), "epsilon"
    mel = sample(denoiser, frames, system.diffusion, randomness.diffusion(0, 0), prediction=prediction)
    return denormalise_mel(mel)


@cache
def cached_synthesizer(bundle: str | None) -> Synthesizer:
    """One for each process, on one thread."""
    return ane.load(bundle, threads=1)


def measure_sentence(index: int, text: str, compared: bool, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of each case by name for one sentence; ``compared``: measure all cases and their mel distances."""
    synthesizer = cached_synthesizer(options.bundle)
    voice = load_voice(synthesizer.model.voices / f"{options.voice}.safetensors", options.voice)
    latents = sample_candidates(synthesizer, text, voice, 1, Randomness(SEED + index))[1][0].latents
    teacher = resample(Flite(options.flite, options.flite_libraries).speak(text.lower(), options.voice), RATE,
                       SAMPLE_RATE)
    mels, found = {}, {}
    for system in systems():
        if compared or system.transcribed:
            started = time.process_time()       # other load on the machine does not count
            mel = mel_of(synthesizer, latents, voice.diffusion, system, Randomness(SEED + index + system.seed))
            spent = time.process_time() - started
            found[system.name] = {"cpu_seconds_per_second": spent / (mel.shape[-1] * HOP / SAMPLE_RATE)}
            mels[system] = mel
    for system, mel in mels.items():
        audio, figures = univnet_audio(synthesizer, mel, Randomness(SEED + index)), found[system.name]
        figures["from_teacher"] = mel_distance(audio, teacher)
        if system.transcribed:
            scored = score_speech(SpokenText(text, audio), None, ComparedWith())
            figures |= {"errors": scored.errors, "words": scored.words, "transcript": scored.transcript}
        if compared:
            guidance = system.diffusion.guidance
            figures |= {"from_p200": log_spectral_distance(mel[0], mels[reference(guidance)][0]),
                        "from_flow": log_spectral_distance(mel[0], mels[flow(guidance)][0])}
    return found


def measured_sentence(index: int, text: str, options: argparse.Namespace) -> dict[str, Any]:
    """``measure_sentence``, or its result from an earlier run."""
    path, compared = options.workspace / f"{options.voice}-{index:03d}.json", index < options.compared
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if all("transcript" in found.get(system.name, {}) if system.transcribed
               else system.name in found or not compared
               for system in systems()):
            return found
    found = measure_sentence(index, text, compared, options)
    with replacing(path) as staging:
        staging.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    return found


def summary(system: SamplerCase, sentences: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A case's figures over all sentences; its word errors also compared with ``default()``'s on the same codes."""
    def column(name: str, of: SamplerCase = system) -> np.ndarray:
        rows = [sentence[of.name] for sentence in sentences if of.name in sentence]
        return np.array([row[name] for row in rows if name in row], dtype=float)

    distances = column("from_p200")
    found = {"network_calls": system.network_calls, "from_p200": distances.mean(),
             "from_flow": column("from_flow").mean(),
             "from_teacher": column("from_teacher")[:len(distances)].mean(), "distances": distances.round(3).tolist()}
    if system.transcribed:
        errors, count = column("errors"), column("words")
        more = errors - column("errors", default())
        found |= {"wer": errors.sum() / count.sum(), "interval": interval(errors, count),
                  "more": more.sum() / count.sum(), "more_interval": interval(more, count),
                  "cpu_seconds_per_second": float(np.median(column("cpu_seconds_per_second"))),
                  "errors": errors.astype(int).tolist()}
    return found


def measure(options: argparse.Namespace) -> BenchmarkResult:
    model = open_model(bundle=options.bundle)
    options.voice = options.voice or model.default_voice
    options.workspace = options.workspace / model.identity[:12]
    options.workspace.mkdir(parents=True, exist_ok=True)
    texts = held_out_sentences()[:options.sentences]
    plain = argparse.Namespace(**{key: value for key, value in vars(options).items() if key != "run"})
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        sentences = list(pool.map(measured_sentence, range(len(texts)), texts, [plain] * len(texts)))
    found = {system.name: summary(system, sentences) for system in systems()}
    rows = [sampler_row(system, found[system.name]) for system in systems()]
    settings = {"model": model_name(options), "voice": options.voice, "sentences": len(texts),
                "compared": min(options.compared, len(texts))}
    plots = [BenchmarkPlot(f"{options.voice}: {kind} diffusion", kind, "steps", f"-{kind}")
             for kind in ("unguided", "guided")]
    return BenchmarkResult(rows, settings, (), plots, {"bundle": model.identity, "systems": found})


def sampler_row(system: SamplerCase, result: dict[str, Any]) -> BenchRow:
    """A case's row: its distance from 200 steps of ``p``, with the other figures."""
    diffusion = system.diffusion
    settings = {"steps": diffusion.steps, "spacing": diffusion.spacing, "error": system.error, "seed": system.seed}
    names = ("network_calls", "from_flow", "from_teacher", "wer", "more", "cpu_seconds_per_second")
    figures = {name: float(result[name]) for name in names if name in result}
    what = "guided" if diffusion.guidance else "unguided"
    spread = Spread.of(result["distances"])
    return BenchRow(diffusion.sampler, what, "dB from 200 steps of p", settings, spread, figures)


def add_options(add: Callable[..., Any]) -> None:
    add("--voice", help="one of the bundle's own that flite has too (default: the bundle's default)")
    add("--sentences", type=positive, default=40, metavar="N",
        help="held-out sentences that are transcribed (%(default)s)")
    add("--compared", type=positive, default=6, metavar="N",
        help="the first of them, of which all samplers' mels are compared (%(default)s)")
    add("--workers", type=positive, default=2, metavar="N", help="processes of one thread each (%(default)s)")
    add("--workspace", type=Path, default=Path("samplers-work"), metavar="DIR",
        help="folder of finished sentences, to resume an interrupted run (%(default)s)")
    add("--flite", default="flite", metavar="PROGRAM", help="the teacher (%(default)s)")
    add("--flite-libraries", metavar="DIR", help="folder of its libraries, if they are not installed")


BENCHMARK = Benchmark(measure, "cost and accuracy of diffusion samplers", add_options, "--sentences 2 --compared 1",
                      unavailable, uses=())
