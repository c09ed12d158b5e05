"""The embedded voices side by side: how fast they speak, and how soon the first sound of a stream comes.

Both are loaded by ``ane.load`` in this process and speak the same texts. Speed is seconds of speech made in a second,
and the figure audio_per_cpu_s those made in a second of processor time, which other work on the machine hardly changes.

With --busy the same is measured beside so many other programs, each a process of its own session that counts without
end: `chosen` lets the torch backend lower the number of threads while they wait for cores
(``ane.backends.torch.threads``), `2 threads` of --fixed keeps the number.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import torch

import ane
from ane.bench.measure import RepeatedCall, measure_in_rounds
from ane.bench.records import BenchRow
from ane.commands.arguments import comma_separated, counts, natural
from benchmarks.harness import Benchmark, BenchmarkResult, busy_programs
from benchmarks.speech import SENTENCES

TEXTS = {"a sentence": SENTENCES[0], "a paragraph": " ".join(SENTENCES)}
# how each speaks: arguments of ``speak`` and ``stream``
BUNDLES: dict[str, dict[str, Any]] = {"demo": {"preset": "fastest", "seed": 1}, "demo-fast": {}}
SETTLING = 2.0          # seconds of speech before a reading beside others, in which the number of threads is found


def measure(options: argparse.Namespace) -> BenchmarkResult:
    rows = []
    for bundle, arguments in BUNDLES.items():
        synthesizer = ane.load(bundle, "torch", keep=True)
        with closing(conditions(options, synthesizer.backend)) as names:
            for name in names:
                end = time.monotonic() + SETTLING
                while time.monotonic() < end:
                    synthesizer.speak(TEXTS["a sentence"], **arguments)
                for what, text in TEXTS.items():
                    rows += measure_in_rounds(
                        [RepeatedCall(BenchRow(f"{bundle} {name}", what, "× real time"),
                                      speed_call(synthesizer, text, arguments)),
                         RepeatedCall(BenchRow(f"{bundle} {name}", f"{what}, first sound", "ms"),
                                      first_sound_call(synthesizer, text, arguments))], options.rounds, warm_up=False)
    return BenchmarkResult(rows, {"threads": options.threads, "rounds": options.rounds})


def conditions(options: argparse.Namespace, backend: Any) -> Iterator[str]:
    """Names of conditions, each in effect until the next: busy programs, and threads, chosen by the backend or not."""
    governor = backend.governor
    for busy, fixed in itertools.product(options.busy, (None, *options.fixed)):
        with busy_programs(busy):
            backend.governor = None if fixed else governor
            torch.set_num_threads(fixed or options.threads)
            yield f"beside {busy}, " + (f"{fixed} threads" if fixed else "chosen")
    backend.governor = governor


def speed_call(synthesizer: Any, text: str, arguments: dict[str, Any]) -> Callable[[], dict[str, float | None]]:
    def read() -> dict[str, float | None]:
        started, busy = time.perf_counter(), time.process_time()
        speech = synthesizer.speak(text, **arguments)
        took, busy = time.perf_counter() - started, time.process_time() - busy
        seconds = len(speech.audio) / speech.sample_rate
        return {"value": seconds / took, "took_s": took, "audio_s": seconds, "audio_per_cpu_s": seconds / busy}

    return read


def first_sound_call(synthesizer: Any, text: str, arguments: dict[str, Any]) -> Callable[[], dict[str, float | None]]:
    def read() -> dict[str, float | None]:
        started = time.perf_counter()
        stream = synthesizer.stream(text, **arguments)
        piece = next(stream)
        took = time.perf_counter() - started
        stream.close()
        return {"value": 1000 * took, "piece_s": len(piece) / stream.sample_rate}

    return read


def add_busy_options(add: Callable[..., Any]) -> None:
    add("--busy", type=lambda text: [*map(natural, comma_separated(text))], default=[0], metavar="N,…",
        help="other programs, such as 0,1,2,4 (default: 0)")
    add("--fixed", type=counts, default=(), metavar="N,…",
        help="numbers of threads to try beside the chosen one")


BENCHMARK = Benchmark(measure, "speed and first sound of the embedded voices", add_busy_options, "--rounds 1",
                      uses=("threads", "rounds"))
