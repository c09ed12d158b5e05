"""Word error rate and DNSMOS of a bundle's voices in each precision, and with guidance in the last steps only.

All systems speak the same held-out sentences with the same seeds in one preset. Intervals are 95 % bootstraps over
sentences and voices; differences from the first system are paired, sentence by sentence.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

import ane
from ane.bench.records import BenchRow, Spread
from ane.bundles import open_model
from ane.commands.arguments import comma_separated, counts, positive
from ane.models.tortoise.settings import PRESETS, Settings
from ane.models.tortoise.synthesizer import Synthesizer
from benchmarks.harness import Benchmark, BenchmarkResult, model_name
from benchmarks.listening import recogniser_problem
from benchmarks.naturalness import dnsmos_problem
from benchmarks.quality import ComparedWith, ScoredSpeech, interval, score_speech
from benchmarks.speakers import SEED, SpokenText
from training.text import held_out_sentences

SAMPLES = 2000      # of a bootstrap


@dataclass(frozen=True)
class SpeechSystem:
    """A precision, and the settings that it speaks with."""

    name: str
    synthesizer: Synthesizer
    settings: Settings

    def speak(self, index: int, text: str, voice: str) -> ScoredSpeech:
        speech = self.synthesizer.speak(text, voice, seed=SEED + index, settings=self.settings)
        return score_speech(SpokenText(text, speech.audio, not speech.notes), None, ComparedWith())


def chosen_systems(options: argparse.Namespace) -> list[SpeechSystem]:
    """A system for each precision, and for each number of guided steps in the first precision."""
    loaded = {precision: ane.load(options.bundle or "demo", "torch:cpu", precision, options.threads, keep=True)
              for precision in options.precision}
    first = loaded[options.precision[0]]
    usual = Settings.of(options.preset, first.model.settings)
    return [*(SpeechSystem(precision, each, usual) for precision, each in loaded.items()),
            *(SpeechSystem(f"{options.precision[0]}, last {steps} steps guided", first, replace(
                usual, diffusion=replace(usual.diffusion, guidance_steps=steps))) for steps in options.guidance_steps)]


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean, by bootstrap samples of the values (n,)."""
    drawn = np.random.default_rng(0).integers(0, len(values), (SAMPLES, len(values)))
    means = values[drawn].mean(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def compared_row(name: str, scored: Sequence[ScoredSpeech], first: Sequence[ScoredSpeech], voices: str) -> BenchRow:
    """Word error rate and DNSMOS of a system with their intervals, and its paired differences from the first one."""
    errors, own, count = (np.array([getattr(one, key) for one in side], dtype=float) for side, key in (
        (scored, "errors"), (first, "errors"), (scored, "words")))
    natural = np.array([one.dnsmos for one in scored])
    differences = natural - [one.dnsmos for one in first]
    figures = {"dnsmos": natural.mean(), "wer_more": (errors - own).sum() / count.sum(),
               "dnsmos_more": differences.mean()}
    for key, (low, high) in (("dnsmos", mean_interval(natural)), ("wer_more", interval(errors - own, count)),
                             ("dnsmos_more", mean_interval(differences))):
        figures |= {f"{key}_low": low, f"{key}_high": high}
    low, high = interval(errors, count)
    value = Spread(float(errors.sum() / count.sum()), low, high, high, 1)
    return BenchRow(name, "word error rate", "share of words", {"voices": voices}, value,
                    {key: float(figure) for key, figure in figures.items()})


def measure(options: argparse.Namespace) -> BenchmarkResult:
    systems, voices = chosen_systems(options), open_model(options.bundle).voices
    names = sorted(path.stem for path in voices.glob("*.safetensors"))
    scored: dict[str, list[ScoredSpeech]] = {system.name: [] for system in systems}
    end, done = time.monotonic() + 60 * options.minutes, 0
    for index, text in enumerate(held_out_sentences()[:options.sentences]):
        if done and time.monotonic() > end:
            break
        for voice in names:
            for system in systems:
                scored[system.name].append(system.speak(index, text, voice))
        done += 1
        print(f"{done} sentences", flush=True)
    first = scored[systems[0].name]
    rows = [compared_row(name, each, first, " ".join(names)) for name, each in scored.items()]
    words = sum(one.words for one in first)
    settings = {"model": model_name(options), "preset": options.preset or "", "sentences": done, "words": words}
    return BenchmarkResult(rows, settings, more={"speech": {
        name: [asdict(one) for one in each] for name, each in scored.items()}})


def add_options(add: Callable[..., Any]) -> None:
    add("--preset", choices=[name for name, preset in PRESETS.items() if preset.diffusion], default="1x10_guided",
        help="(default: %(default)s)")
    add("--precision", type=comma_separated, default=["fp32", "bf16", "int8"], metavar="P,…",
        help="(default: fp32,bf16,int8)")
    add("--guidance-steps", type=counts, default=[], metavar="N,…",
        help="also speak with guidance in the last N steps only, in the first precision")
    add("--sentences", type=positive, default=30, metavar="N", help="the first N held-out ones (default: 30)")
    add("--minutes", type=positive, default=600, metavar="N", help="begin no sentence after N minutes (default: 600)")


BENCHMARK = Benchmark(measure, "word errors and naturalness of each precision", add_options,
                      "--sentences 1 --precision fp32,int8 --guidance-steps 2",
                      lambda options: recogniser_problem() or dnsmos_problem(), uses=("threads",))
