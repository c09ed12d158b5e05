"""Compare the models that this package contains: how fast they speak, and how soon a stream has its first sound.

This process loads both models, and they speak the same texts. Speed is seconds of speech per second. The figure
audio_per_cpu_s is seconds of speech per second of processor time, which other work on the machine hardly changes.

With --busy, other programs keep cores busy at the same time. In rows called `chosen`, the backend chooses its number of
threads (``ane.backends.torch.threads``). In rows such as `2 threads`, it uses a number from --fixed. These rows are
measured alternately.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

import ane
from ane.bench.measure import RepeatedCall, measure_in_rounds
from ane.bench.records import BenchRow
from ane.commands.arguments import comma_separated, counts, natural
from benchmarks.harness import Benchmark, BenchmarkResult, busy_programs
from benchmarks.speech import SENTENCES

TEXTS = {"a sentence": SENTENCES[0], "a paragraph": " ".join(SENTENCES)}
# bundle → arguments of ``speak`` and ``stream``
BUNDLES: dict[str, dict[str, Any]] = {"demo": {"preset": "fastest", "seed": 1}, "heart": {}}
Reading = Callable[[], dict[str, float | None]]
SETTLING = 1.0  # readings in the first seconds do not count, because the chosen number of threads still changes


def measure(options: argparse.Namespace) -> BenchmarkResult:
    rows = []
    for bundle, arguments in BUNDLES.items():
        synthesizer, readings = ane.load(bundle, "torch", keep=True), dict[tuple[str, str], Reading]()
        for what, text in TEXTS.items():
            readings[what, "× real time"] = speed_call(synthesizer, text, arguments)
            readings[f"{what}, first sound", "ms"] = first_sound_call(synthesizer, text, arguments)
        rows += rows_in_conditions(options, synthesizer.backend, bundle, readings)
    return BenchmarkResult(rows, {"threads": options.threads, "rounds": options.rounds})


def rows_in_conditions(
    options: argparse.Namespace,
    backend: Any,
    competitor: str,
    readings: Mapping[tuple[str, str], Reading],
    settings: dict[str, Any] | None = None,
) -> list[BenchRow]:
    """Measure readings while other programs run, with the number of threads that the backend chooses and with others.

    Args:
        options: Options ``busy``, ``fixed``, ``threads`` and ``rounds``.
        backend: Backend whose number of threads is set.
        competitor: Name for the rows.
        readings: Functions that measure, by the name and the unit of their value.
        settings: Settings for the rows.
    """
    governor, rows = backend.governor, list[BenchRow]()

    def conditioned(fixed: int | None, read: Reading) -> dict[str, float | None]:
        backend.governor = None if fixed else governor
        torch.set_num_threads(fixed or options.threads)
        end = time.monotonic() + SETTLING
        while time.monotonic() < end:
            read()
        return read()

    for busy in options.busy:
        with busy_programs(busy):
            calls = [
                RepeatedCall(
                    BenchRow(
                        f"{competitor} beside {busy}, {f'{fixed} threads' if fixed else 'chosen'}",
                        what,
                        unit,
                        settings or {},
                    ),
                    partial(conditioned, fixed, read),
                )
                for (what, unit), read in readings.items()
                for fixed in (None, *options.fixed)
            ]
            rows += measure_in_rounds(calls, options.rounds, warm_up=False)
    backend.governor = governor
    return rows


def speed_call(synthesizer: Any, text: str, arguments: dict[str, Any]) -> Reading:
    def read() -> dict[str, float | None]:
        started, busy = time.perf_counter(), time.process_time()
        speech = synthesizer.speak(text, **arguments)
        took, busy = time.perf_counter() - started, time.process_time() - busy
        seconds = len(speech.audio) / speech.sample_rate
        return {"value": seconds / took, "took_s": took, "audio_s": seconds, "audio_per_cpu_s": seconds / busy}

    return read


def first_sound_call(synthesizer: Any, text: str, arguments: dict[str, Any]) -> Reading:
    def read() -> dict[str, float | None]:
        started = time.perf_counter()
        stream = synthesizer.stream(text, **arguments)
        piece = next(stream)
        took = time.perf_counter() - started
        stream.close()
        return {"value": 1000 * took, "piece_s": len(piece) / stream.sample_rate}

    return read


def add_busy_options(add: Callable[..., Any]) -> None:
    add(
        "--busy",
        type=lambda text: [*map(natural, comma_separated(text))],
        default=[0],
        metavar="N,…",
        help="numbers of other programs that keep cores busy, such as 0,1,2,4 (default: 0)",
    )
    add(
        "--fixed",
        type=counts,
        default=(),
        metavar="N,…",
        help="fixed numbers of threads to compare with the number that the backend chooses",
    )


BENCHMARK = Benchmark(
    measure,
    "speed and first sound of the models in this package",
    add_busy_options,
    "--rounds 1",
    uses=("threads", "rounds"),
)
