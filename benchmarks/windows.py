"""Compares speech diffused in windows with speech diffused whole.

Latents of held-out sentences are diffused whole and in windows of several lengths, with the same noise, and once
more whole with other noise, as a scale for the distances. It measures the distance of the mels in dB (root mean square
over bands, mean over frames) and the word error rate of an offline recogniser.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ane
from ane.bench.records import BenchRow, Spread
from ane.commands.arguments import positive
from ane.models.tortoise.diffusion import SOLVERS, Diffusion, spectrogram
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.settings import SAMPLE_RATE
from ane.models.tortoise.vocoding import UnivnetSound, joined
from ane.models.tortoise.windows import WindowedDiffusion, Windows
from ane.voices import load_voice
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult, model_name
from benchmarks.listening import Recogniser, edits, log_spectral_distance, recogniser_problem, words
from benchmarks.speakers import sample_candidates
from training.text import held_out_sentences

SEED, OTHER_SEED, NOISE_FRAMES = 7, 1000, 4000
TRIED = ((16, 16, 4), (16, 64, 4), (24, 96, 8), (32, 32, 8), (32, 128, 4), (32, 128, 12), (32, 128, 20), (48, 128, 12))


class RepeatableNoise:
    """Stands in for a random generator so that windows and whole get the same noise.

    Each utterance takes ``draws`` draws a window. Draw k of a window is the next slice of the k-th of ``draws`` arrays.
    """

    def __init__(self, seed: int, draws: int):
        self.seed, self.draws, self.turn = seed, draws, 0
        self.used = [0] * draws

    def standard_normal(self, shape: Sequence[int], dtype: type) -> np.ndarray:
        draw = self.turn % self.draws
        first, self.turn = self.used[draw], self.turn + 1
        self.used[draw] += shape[-1]
        field = np.random.default_rng((self.seed, draw)).standard_normal((NOISE_FRAMES, shape[1]), dtype)
        return field[first:first + shape[-1]].T[None]


def measure(options: argparse.Namespace) -> BenchmarkResult:
    """Rows: diffused whole, whole with other noise, and with each setting of windows."""
    synthesizer = ane.load(options.bundle or "demo")
    model, backend = synthesizer.model, synthesizer.backend
    name = model.default_voice
    voice = load_voice(model.voices / f"{name}.safetensors", name)
    sentences = held_out_sentences()[:options.sentences]
    separate = [sample_candidates(synthesizer, text, voice, 1, Randomness(SEED + index))[1][0].latents
                for index, text in enumerate(sentences)]
    starts = range(0, len(sentences), options.join)
    texts = [" ".join(sentences[start:start + options.join]) for start in starts]
    latents = [np.concatenate(separate[start:start + options.join]) for start in starts]
    diffusion = Diffusion(options.steps, options.sampler, None)
    draws, prediction = options.steps + 1 if options.sampler == "p" else 1, model.config("diffusion").prediction
    recogniser = Recogniser(())

    def whole(seed: int) -> list[np.ndarray]:
        return [spectrogram(backend, some, voice.diffusion, diffusion, RepeatableNoise(seed + index, draws),
                            prediction=prediction)[0] for index, some in enumerate(latents)]

    def windowed(windows: Windows) -> list[np.ndarray]:
        def mel(index: int, some: np.ndarray) -> np.ndarray:
            diffused = WindowedDiffusion(backend, voice.diffusion, diffusion, RepeatableNoise(index, draws), windows,
                                         prediction=prediction)
            return np.concatenate([*diffused.feed(some), *diffused.finish()], axis=1)

        return [mel(index, some) for index, some in enumerate(latents)]

    def errors(mels: Sequence[np.ndarray]) -> float:
        wrong = total = 0
        for index, (mel, text) in enumerate(zip(mels, texts, strict=True)):
            sound = joined(UnivnetSound(backend, model.config("univnet"), Randomness(SEED + index).vocoder(0, 0)), mel)
            expected, transcript = words(text), words(recogniser.transcribe(sound, SAMPLE_RATE))
            wrong, total = wrong + edits(expected, transcript), total + len(expected)
        return wrong / total

    reference = whole(0)
    systems: dict[str, Callable[[], list[np.ndarray]]] = {
        "whole": lambda: reference, "whole, other noise": lambda: whole(OTHER_SEED),
        **{f"first {sizes[0]}, size {sizes[1]}, overlap {sizes[2]}": lambda sizes=sizes: windowed(Windows(*sizes))
           for sizes in options.windows or TRIED}}
    rows = []
    for system, make in systems.items():
        mels = make()
        spread = Spread.of([log_spectral_distance(ours, theirs) for ours, theirs in zip(mels, reference, strict=True)])
        rows.append(BenchRow(system, "mel distance", "dB", {}, spread, {"word_error_rate": errors(mels)}))
    settings = {"model": model_name(options), **{name: getattr(options, name) for name in (
        "sentences", "join", "sampler", "steps")}, "latents": float(np.mean([len(some) for some in latents]))}
    return BenchmarkResult(rows, settings, (), [BenchmarkPlot("Distance from diffusing whole")])


def window_sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def add_options(add: Callable[..., Any]) -> None:
    add("--sentences", type=positive, default=24, metavar="N", help="the first N held-out ones (%(default)s)")
    add("--join", type=positive, default=1, metavar="N", help="sentences of a text (%(default)s)")
    add("--sampler", choices=tuple(SOLVERS), default="dpm++2m", help="(%(default)s)")
    add("--steps", type=positive, default=12, metavar="N", help="(%(default)s)")
    add("--windows", type=window_sizes, action="append", metavar="FIRST,SIZE,OVERLAP", help="may be given repeatedly")


BENCHMARK = Benchmark(measure, "windowed diffusion", add_options, "--sentences 1 --steps 4 --windows 16,64,4",
                      lambda options: recogniser_problem(), uses=())
