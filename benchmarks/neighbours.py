"""The embedded voices beside other busy programs: real-time factor and first sound, by number of programs.

Each of the other programs is a process of its own session that counts without end. `chosen` lets the torch backend
lower the number of threads while they wait for cores (``ane.backends.torch.threads``), `2 threads` keeps the number.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import ane
from ane.bench.measure import RepeatedCall, measure_in_rounds
from ane.bench.records import BenchRow
from ane.commands.arguments import comma_separated, natural
from benchmarks.embedded import TEXTS, WAYS, first_sound_call, speed_call
from benchmarks.harness import Benchmark, BenchmarkResult

SETTLING = 2.0          # seconds of speech before a reading, in which the number of threads is found


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Others that want a core each, until the block ends."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
                for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def measure(options: argparse.Namespace) -> BenchmarkResult:
    text, rows = TEXTS["a sentence"], []
    for bundle, ways in WAYS.items():
        way, arguments = next(iter(ways.items()))
        synthesizer = ane.load(bundle, "torch", keep=True)
        governor = synthesizer.backend.governor
        for busy in options.busy:
            with busy_programs(busy):
                for fixed in (None, *options.fixed):
                    synthesizer.backend.governor = None if fixed else governor
                    torch.set_num_threads(fixed or options.threads)
                    name = f"{bundle} {way}".strip() + f" beside {busy}, " + (f"{fixed} threads" if fixed else "chosen")
                    settle(synthesizer, text, arguments)
                    rows += measure_in_rounds(
                        [RepeatedCall(BenchRow(name, "a sentence", "× real time"),
                                      speed_call(synthesizer, text, arguments)),
                         RepeatedCall(BenchRow(name, "a sentence, first sound", "ms"),
                                      first_sound_call(synthesizer, text, arguments))], options.rounds, warm_up=False)
    return BenchmarkResult(rows, {"threads": options.threads, "rounds": options.rounds})


def settle(synthesizer: Any, text: str, arguments: dict[str, Any]) -> None:
    end = time.monotonic() + SETTLING
    while time.monotonic() < end:
        synthesizer.speak(text, **arguments)


def numbers(text: str) -> list[int]:
    return [natural(part) for part in comma_separated(text)]


def add_options(add: Any) -> None:
    add("--busy", type=numbers, default=[0, 1, 2, 4], metavar="N,…", help="other programs (default: 0,1,2,4)")
    add("--fixed", type=numbers, default=[1, 2], metavar="N,…", help="numbers of threads beside (default: 1,2)")


BENCHMARK = Benchmark(measure, "the embedded voices beside other busy programs", add_options,
                      quick="--rounds 1 --busy 0 --fixed 1", uses=("threads", "rounds"))
