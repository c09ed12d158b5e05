"""Word error rates of a bundle's voices by an offline recogniser, and other measurements of their speech.

Each voice speaks the held-out sentences (training/held_out.txt) and pocketsphinx transcribes them: word error rate with
its 95 % interval (bootstrap over sentences), forced choice among the first 30 sentences, share of sentences that end
with a stop code, DNSMOS, and speaker similarity, length, pitch, mel distance, silence and clicks compared with the
teacher, flite. With --run, the teacher's codes, from a training run's quantiser, are spoken too, which shows the loss
by sampling. The best of 8 candidates by CLVP is compared with the mean of the same 8, twice for each sentence. A model
without voices and presets, such as the fast embedded voice, speaks the sentences in one way.
"""

import argparse
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import ane
from ane.bench.records import BenchRow, Spread
from ane.bundles import Model, open_model
from ane.commands.arguments import natural, positive
from ane.models.tortoise.settings import PRESETS, SAMPLE_RATE, default_preset
from ane.models.tortoise.synthesizer import Synthesizer
from ane.system.errors import UserError
from ane.voices import Voice, load_voice
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult, model_name
from benchmarks.listening import Recogniser, Wave, edits, mel_distance, recogniser_problem, words
from benchmarks.naturalness import Dnsmos, dnsmos_problem
from benchmarks.similarity import SpeakerEncoder, mean_embedding, similarity_problem
from benchmarks.speakers import (
    CANDIDATES,
    SETS,
    SpokenText,
    ranked_candidates,
    save_all,
    speak_all,
    speak_codes,
    speak_plainly,
    speak_teacher,
    teacher_quantiser,
)
from training.speech import Flite
from training.text import held_out_sentences

CHOICES = 30
ALLOWED = {"quality": 0.15, "fast": 0.20, "speech": 0.15}       # word error rate above the teacher's
DIFFUSING_PRESET = "1x10_guided"                                # for a model whose default has no diffusion
LESS_NATURAL = 0.15                                             # DNSMOS below the teacher's


@dataclass
class ScoredSpeech:
    """A sentence as the recogniser transcribed it, and what was measured of its sound."""

    text: str
    transcript: str
    errors: int
    words: int
    chosen: bool | None
    wave: Wave
    mel_distance: float | None
    stopped: bool
    dnsmos: float | None
    similarity: float | None


@dataclass(frozen=True)
class ComparedWith:
    """What speech is compared with.

    Attributes:
        choices: sentences that the recogniser chooses among.
        speaker: embedding of the teacher's voice; None where nothing computes embeddings.
        dnsmos: whether DNSMOS is computed.
    """

    choices: tuple[str, ...] = ()
    speaker: np.ndarray | None = None
    dnsmos: bool = True


def score_speech(spoken: SpokenText, teacher: np.ndarray | None, compared: ComparedWith) -> ScoredSpeech:
    """``teacher``: the same sentence by the teacher, (S,) float32 at 24 kHz, for the mel distance."""
    choices, speaker = compared.choices, compared.speaker
    recogniser = cached_recogniser(choices)
    transcript = recogniser.transcribe(spoken.audio, SAMPLE_RATE)
    chosen = None
    if spoken.text in choices:
        chosen = recogniser.chosen(spoken.audio, SAMPLE_RATE) == " ".join(words(spoken.text))
    distance = None if teacher is None else mel_distance(spoken.audio, teacher)
    expected = words(spoken.text)
    return ScoredSpeech(spoken.text, transcript, edits(expected, words(transcript)), len(expected), chosen,
                        Wave.of(spoken.audio, SAMPLE_RATE), distance, spoken.stopped,
                        cached_dnsmos().overall(spoken.audio, SAMPLE_RATE) if compared.dnsmos else None,
                        None if speaker is None else float(
                            cached_encoder().embedding(spoken.audio, SAMPLE_RATE) @ speaker))


@cache
def cached_recogniser(choices: tuple[str, ...]) -> Recogniser:
    """One for each process: its models take a second to load."""
    return Recogniser(choices)


@cache
def cached_dnsmos() -> Dnsmos:
    return Dnsmos()


@cache
def cached_encoder() -> SpeakerEncoder:
    return SpeakerEncoder()


def teachers_embedding(teacher: Sequence[SpokenText]) -> np.ndarray | None:
    """The embedding of the teacher's voice, of all its sentences; None without the network for it."""
    if similarity_problem():
        return None
    return mean_embedding([cached_encoder().embedding(one.audio, SAMPLE_RATE) for one in teacher])


def summary(scored: Sequence[ScoredSpeech], teacher: Sequence[ScoredSpeech]) -> dict[str, Any]:
    """The figures of one system, with lengths and pitch compared with the teacher's sentence by sentence."""
    errors, count = (np.array([getattr(one, name) for one in scored], dtype=float) for name in ("errors", "words"))
    lengths = np.array([one.wave.seconds / other.wave.seconds for one, other in zip(scored, teacher, strict=True)])
    waves = [one.wave for one in scored]
    f0, own = (float(np.nanmedian([one.wave.f0 for one in side])) for side in (scored, teacher))
    distances = [one.mel_distance for one in scored if one.mel_distance is not None]
    alike = [one.similarity for one in scored if one.similarity is not None]
    chosen = [one.chosen for one in scored if one.chosen is not None]
    return {"wer": errors.sum() / count.sum(), "interval": interval(errors, count), "forced": sum(chosen),
            "choices": len(chosen), "stopped": float(np.mean([one.stopped for one in scored])),
            "dnsmos": float(np.mean([one.dnsmos for one in scored])),
            "similarity": float(np.mean(alike)) if alike else None,
            "longest": float(lengths.max()), "f0": f0, "f0_off": f0 / own - 1,
            "mel_distance_db": float(np.mean(distances)) if distances else None,
            "loudness_db": float(np.mean([wave.loudness for wave in waves])),
            "loudness_spread_db": float(np.std([wave.loudness for wave in waves])),
            "silent_end": max(wave.silent_end for wave in waves), "clicks": sum(wave.clicks for wave in waves),
            "finite": all(wave.finite for wave in waves)}


def interval(errors: np.ndarray, count: np.ndarray) -> tuple[float, float]:
    """95 % interval of the word error rate, by 2000 bootstrap samples of the sentences."""
    drawn = np.random.default_rng(0).integers(0, len(errors), (2000, len(errors)))
    rates = errors[drawn].sum(axis=1) / count[drawn].sum(axis=1)
    return float(np.quantile(rates, 0.025)), float(np.quantile(rates, 0.975))


def score_all(pool: ProcessPoolExecutor, spoken: Iterable[SpokenText], teacher: Sequence[SpokenText] | None,
              compared: ComparedWith) -> list[ScoredSpeech]:
    """Score speech in the pool while the next sentences are being spoken."""
    futures = [pool.submit(score_speech, one, None if teacher is None else teacher[index].audio, compared)
               for index, one in enumerate(spoken)]
    return [future.result() for future in futures]


def ranking(pool: ProcessPoolExecutor, synthesizer: Synthesizer, sentences: Sequence[str],
            voice: Voice) -> dict[str, float]:
    """``ranking_gain`` of CLVP on candidates for these sentences."""
    candidates, chosen = ranked_candidates(synthesizer, sentences, voice)
    scored = score_all(pool, [one for row in candidates for one in row], None, ComparedWith(dnsmos=False))
    errors = np.array([one.errors for one in scored], dtype=float).reshape(len(sentences), SETS, CANDIDATES)
    return ranking_gain(errors, np.array([len(words(text)) for text in sentences], dtype=float), np.array(chosen))


def ranking_gain(errors: np.ndarray, count: np.ndarray, chosen: np.ndarray) -> dict[str, float]:
    """Word error rates of the chosen candidates, of a random one, and of the one with the fewest errors.

    Args:
        errors: (sentences, sets, candidates) wrong words. count: (sentences,) words. chosen: (sentences, sets) index of
            the chosen candidate.
    """
    ours = np.take_along_axis(errors, chosen[..., None], axis=2).mean(axis=(1, 2))
    gains = errors.mean(axis=(1, 2)) - ours
    low, high = interval(gains, count)
    return {"random": errors.mean(axis=(1, 2)).sum() / count.sum(), "clvp": ours.sum() / count.sum(),
            "gain": gains.sum() / count.sum(), "gain_low": low, "gain_high": high,
            "oracle": errors.min(axis=2).mean(axis=1).sum() / count.sum()}


def check_thresholds(results: dict[str, Any]) -> list[tuple[str, float, str, bool]]:
    """The thresholds that the embedded voice must meet: (claim, figure, range, whether it is met)."""
    found = []

    def check(claim: str, figure: float, least: float, most: float) -> None:
        found.append((claim, float(figure), f"{least:g} to {most:g}", bool(least <= figure <= most)))

    for voice, result in results.items():
        for system in (name for name in ALLOWED if name in result):
            one, allowed = result[system], ALLOWED[system]
            check(f"{voice}, {system}: word error rate above the teacher's", one["wer"] - result["teacher"]["wer"], -1,
                  allowed)
            check(f"{voice}, {system}: DNSMOS below the teacher's", result["teacher"]["dnsmos"] - one["dnsmos"], -4,
                  LESS_NATURAL)
            check(f"{voice}, {system}: share that ends with a stop code", one["stopped"], 1, 1)
            check(f"{voice}, {system}: longest, in lengths of the teacher", one["longest"], 0, 1.5)
            check(f"{voice}, {system}: pitch relative to the teacher's", one["f0_off"], -0.15, 0.15)
            check(f"{voice}, {system}: silence at the end, s", one["silent_end"], 0, 0.3)
            check(f"{voice}, {system}: clicks", one["clicks"], 0, 0)
            check(f"{voice}, {system}: NaN", not one["finite"], 0, 0)
        if "ranking" in result:
            check(f"{voice}: gain of ranking by CLVP", result["ranking"]["gain"], 0, 1)
    return found


def measure_voice(voice: str, options: argparse.Namespace) -> dict[str, Any]:
    synthesizer = ane.load(options.bundle or "demo", options.backend, options.precision, options.threads)
    sentences = held_out_sentences()[:options.sentences]
    teacher = list(speak_teacher(sentences, voice, Flite(options.flite, options.flite_libraries)))
    systems: dict[str, Iterable[SpokenText]] = {"teacher": teacher}
    latents = None
    if synthesizer.model.voices is None:
        systems["speech"] = speak_plainly(synthesizer, sentences)
    else:
        latents = load_voice(synthesizer.model.voices / f"{voice}.safetensors", voice)
        if options.run_folder:
            quantiser = teacher_quantiser(options.run_folder, voice)
            systems["codes"] = speak_codes(synthesizer, teacher, latents, quantiser, options.preset)
        systems["fast"] = speak_all(synthesizer, sentences, voice, "fastest")
        systems["quality"] = speak_all(synthesizer, sentences, voice, options.preset)
    scored, ranked = {}, sentences[:options.ranked]
    with ProcessPoolExecutor(options.workers) as pool:
        compared = ComparedWith(tuple(sentences[:CHOICES]), pool.submit(teachers_embedding, teacher).result())
        for system, spoken in systems.items():
            kept = save_all(spoken, options.keep, f"{voice}-{system}")
            scored[system] = score_all(pool, kept, None if system == "teacher" else teacher, compared)
        return {**{system: summary(side, scored["teacher"]) for system, side in scored.items()},
                **({"ranking": ranking(pool, synthesizer, ranked, latents)} if latents is not None and ranked else {}),
                "sentences": {system: [asdict(one) for one in side] for system, side in scored.items()}}


def measured_voices(model: Model) -> list[str]:
    """The voices of a bundle, its default first; of a model without voices the flite voice that taught it."""
    if model.voices is not None:
        names = (path.stem for path in model.voices.glob("*.safetensors"))
        return sorted(names, key=lambda name: name != model.default_voice)
    manifest = getattr(model, "manifest", None)
    teachers = manifest.source.get("teachers", []) if manifest else []
    if len(teachers) != 1:
        raise UserError(f"{model.name} has no voices of its own to measure")
    return [teachers[0].removeprefix("flite ")]


def diffusing_preset(settings: Mapping[str, Any]) -> str:
    """The default preset, or ``DIFFUSING_PRESET`` if that has no diffusion."""
    default = default_preset(settings)
    return default if PRESETS[default].diffusion else DIFFUSING_PRESET


def measure(options: argparse.Namespace) -> BenchmarkResult:
    model = open_model(bundle=options.bundle)
    names = measured_voices(model)
    options.preset = None if model.voices is None else options.preset or diffusing_preset(model.settings)
    if options.run_folder and model.voices is not None:
        for name in names:
            teacher_quantiser(options.run_folder, name)     # raises now, not after half of the work
    with ProcessPoolExecutor(len(names), mp_context=get_context("spawn")) as pool:
        plain = argparse.Namespace(**{key: value for key, value in vars(options).items() if key != "run"})
        results = dict(zip(names, pool.map(measure_voice, names, [plain] * len(names)), strict=True))
    sentences = len(held_out_sentences()[:options.sentences])
    rows = [quality_row(voice, system, result[system], result["teacher"])
            for voice, result in results.items() for system in result["sentences"]]
    notes = ["{}: word error rate of the best of {} by CLVP {clvp:.3f}, of a random one {random:.3f}, gain {gain:.3f} "
             "({gain_low:.3f} to {gain_high:.3f}), with the fewest errors {oracle:.3f}".format(
                 voice, CANDIDATES, **result["ranking"]) for voice, result in results.items() if "ranking" in result]
    thresholds = check_thresholds(results)
    notes += [f"{'met' if met else 'NOT MET'}: {claim}: {figure:.3f}, required {bound}"
              for claim, figure, bound, met in thresholds]
    notes += [problem] if (problem := similarity_problem()) else []
    settings = {"model": model_name(options), **({"preset": options.preset} if options.preset else {}),
                "sentences": sentences}
    more = {"bundle": model.identity, "precision": model.precision, "thresholds": thresholds, "voices": results}
    return BenchmarkResult(rows, settings, notes, [BenchmarkPlot("Word error rate")], more)


def quality_row(voice: str, system: str, result: dict[str, Any], teacher: dict[str, Any]) -> BenchRow:
    """The word error rate with its interval, and the other figures of a voice and system."""
    low, high = result["interval"]
    names = ("dnsmos", "similarity", "forced", "stopped", "longest", "f0", "f0_off", "mel_distance_db", "loudness_db",
             "silent_end", "clicks")
    figures = {"above_teacher": result["wer"] - teacher["wer"],
               **{name: float(result[name]) for name in names if result[name] is not None}}
    value = Spread(float(result["wer"]), low, high, high, 1)
    return BenchRow(system, "word error rate", "share of words", {"voice": voice}, value, figures)


def unavailable(options: argparse.Namespace) -> str | None:
    has_teacher = shutil.which(getattr(options, "flite", "flite"))
    return recogniser_problem() or dnsmos_problem() or (None if has_teacher else "its teacher, flite, is not installed")


def add_options(add: Callable[..., Any]) -> None:
    add("--preset", choices=PRESETS, help="of the quality path (default: the bundle's, or if that has no diffusion "
        f"{DIFFUSING_PRESET})")
    add("--backend", default="auto", help="(default: auto)")
    add("--precision", default="auto", help="(default: auto)")
    add("--workers", type=positive, default=os.cpu_count(), metavar="N", help="processes of a voice (%(default)s)")
    add("--sentences", type=positive, metavar="N", help="the first N only")
    add("--ranked", type=natural, metavar="N", help="rank candidates of the first N sentences (default: all; 0: none)")
    add("--flite", default="flite", metavar="PROGRAM", help="the teacher (%(default)s)")
    add("--flite-libraries", metavar="DIR", help="folder of its libraries, if they are not installed")
    add("--run", type=Path, metavar="DIR", dest="run_folder",
        help="a training run, for the codes of the teacher's speech")
    add("--keep", type=Path, metavar="DIR", help="write the sound there")


BENCHMARK = Benchmark(measure, "word errors of a bundle's voices", add_options, "--sentences 2", unavailable,
                      uses=("threads",))
