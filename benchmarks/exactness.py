"""Count texts whose sound depends on the number of lanes or threads, or on the texts spoken with them.

On the CPU, the count must be 0. The benchmark speaks held-out sentences together, with the preset `fastest` and with a
preset that uses diffusion, on several numbers of decoder lanes and threads. It compares every bit of their sound with
the sound of the sentence spoken alone on one thread. It also compares streams with the stream on one thread.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import ane
from ane.bench.records import BenchRow, Spread
from ane.bundles.opening import DEMO
from ane.commands.arguments import comma_separated, counts, positive
from ane.models.tortoise.settings import TortoiseSettings
from benchmarks.harness import Benchmark, BenchmarkResult, model_name
from training.text import held_out_sentences

SEED = 1


def compare_sounds(precision: str, preset: str, options: argparse.Namespace) -> Iterator[BenchRow]:
    """Yield a row for each number of threads and lanes: how many texts differ from the text alone on one thread."""
    synthesizer = ane.load(options.bundle or DEMO, "torch:cpu", precision, keep=True)
    texts = held_out_sentences()[: options.texts]
    model_settings = synthesizer.model.settings

    def spoken(texts: list[str], lanes: int | None = None) -> list[bytes]:
        settings = TortoiseSettings.of(preset, model_settings, **({} if lanes is None else {"lanes": lanes}))
        return [speech.audio.tobytes() for speech in synthesizer.speak_all(texts, seed=SEED, settings=settings)]

    def streamed(text: str) -> bytes:
        return np.concatenate(list(synthesizer.stream(text, preset=preset, seed=SEED))).tobytes()

    torch.set_num_threads(1)
    alone = [spoken([text])[0] for text in texts]
    streams = [streamed(text) for text in texts]
    for threads, lanes in itertools.product(options.thread_counts, options.lanes):
        torch.set_num_threads(threads)
        sounds = spoken(texts, lanes)
        other_streams = [streamed(text) for text in texts] if lanes == options.lanes[0] else streams
        differing = sum(sound != reference for sound, reference in zip(sounds, alone, strict=True))
        print(f"{precision}, {preset}, {threads} threads, {lanes} lanes: {differing} of {len(texts)}", flush=True)
        yield BenchRow(
            f"torch:cpu {precision}",
            preset,
            "differing",
            {"threads": threads, "lanes": lanes},
            Spread.of([differing]),
            {
                "texts": len(texts),
                "streams": sum(sound != reference for sound, reference in zip(other_streams, streams, strict=True)),
            },
        )


def measure(options: argparse.Namespace) -> BenchmarkResult:
    rows = [
        row
        for precision in options.precision
        for preset in options.presets
        for row in compare_sounds(precision, preset, options)
    ]
    return BenchmarkResult(rows, {"model": model_name(options)})


def add_options(add: Callable[..., Any]) -> None:
    add(
        "--precision",
        type=comma_separated,
        default=["fp32", "bf16", "int8"],
        metavar="P,…",
        help="precisions (default: fp32,bf16,int8)",
    )
    add(
        "--presets",
        type=comma_separated,
        default=["fastest", "1x10"],
        metavar="P,…",
        help="presets (default: fastest,1x10)",
    )
    add("--texts", type=positive, default=60, metavar="N", help="number of texts (default: %(default)s)")
    add("--lanes", type=counts, default=[1, 2, 5, 8, 16], metavar="N,…", help="numbers of lanes (default: 1,2,5,8,16)")
    add("--thread-counts", type=counts, default=[1, 2], metavar="N,…", help="numbers of threads (default: 1,2)")


BENCHMARK = Benchmark(
    measure,
    "count of texts whose sound depends on lanes, threads or other texts",
    add_options,
    "--texts 2 --lanes 1,3 --thread-counts 1 --precision int8 --presets fastest",
    uses=("bundle",),
)
