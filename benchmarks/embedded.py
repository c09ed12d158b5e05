"""The embedded voices side by side: how fast they speak, and how soon the first sound of a stream comes.

Both are loaded by ``ane.load`` in this process, speak the same text, and take turns. The first request, which loads
networks, is not counted. Speed is seconds of speech made in a second, and the figure audio_per_cpu_s those made in a
second of processor time, which other work on the machine hardly changes. `fresh` is the first sound of a new process:
from the end of ``import ane`` to the first piece of a stream, opening the bundle included.

With --busy the same is measured beside so many other programs, each a process of its own session that counts without
end: `chosen` lets the torch backend lower the number of threads while they wait for cores
(``ane.backends.torch.threads``), `2 threads` keeps the number.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import ane
from ane.bench.measure import RepeatedCall, measure_in_rounds
from ane.bench.records import BenchRow
from ane.commands.arguments import comma_separated, natural
from ane.system.errors import UserError
from benchmarks.harness import Benchmark, BenchmarkResult
from benchmarks.speech import SENTENCES

TEXTS = {"a sentence": SENTENCES[0], "a paragraph": " ".join(SENTENCES)}
# how each speaks: arguments of ``speak`` and ``stream``
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "demo": {"fastest": {"preset": "fastest", "seed": 1}},
    "demo-fast": {"": {}}}
SETTLING = 2.0          # seconds of speech before a reading beside others, in which the number of threads is found
FRESH = """
import time
import ane
started = time.perf_counter()
synthesizer = ane.load({bundle!r}, "torch", threads={threads})
opened = time.perf_counter()
next(synthesizer.stream({text!r}, **{arguments!r}))
print(opened - started, time.perf_counter() - started)
"""


def measure(options: argparse.Namespace) -> BenchmarkResult:
    settings = {"threads": options.threads, "rounds": options.rounds}
    if options.busy:
        return BenchmarkResult(beside_others(options), settings)
    calls = []
    for bundle, ways in WAYS.items():
        synthesizer = ane.load(bundle, "torch", threads=options.threads, keep=True)
        for way, arguments in ways.items():
            name = f"{bundle} {way}".strip()
            for what, text in TEXTS.items():
                calls.append(RepeatedCall(BenchRow(name, what, "× real time"),
                                          speed_call(synthesizer, text, arguments)))
                calls.append(RepeatedCall(BenchRow(name, f"{what}, first sound", "ms"),
                                          first_sound_call(synthesizer, text, arguments)))
    rows = measure_in_rounds(calls, options.rounds)
    fresh = [RepeatedCall(BenchRow(f"{bundle} {way}".strip(), "a sentence, first sound, fresh", "ms"),
                          fresh_call(bundle, arguments, options.threads))
             for bundle, ways in WAYS.items() for way, arguments in list(ways.items())[:1]]
    rows += measure_in_rounds(fresh, options.rounds, warm_up=False)
    return BenchmarkResult(rows, settings)


def beside_others(options: argparse.Namespace) -> list[BenchRow]:
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
                    end = time.monotonic() + SETTLING
                    while time.monotonic() < end:
                        synthesizer.speak(text, **arguments)
                    rows += measure_in_rounds(
                        [RepeatedCall(BenchRow(name, "a sentence", "× real time"),
                                      speed_call(synthesizer, text, arguments)),
                         RepeatedCall(BenchRow(name, "a sentence, first sound", "ms"),
                                      first_sound_call(synthesizer, text, arguments))], options.rounds, warm_up=False)
    return rows


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


def fresh_call(bundle: str, arguments: dict[str, Any], threads: int) -> Callable[[], dict[str, float | None]]:
    program = FRESH.format(bundle=bundle, threads=threads, text=TEXTS["a sentence"], arguments=arguments)

    def read() -> dict[str, float | None]:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(done.stderr.strip().splitlines()[-1])
        opened, first = map(float, done.stdout.split())
        return {"value": 1000 * first, "opening_ms": 1000 * opened}

    return read


def numbers(text: str) -> list[int]:
    return [natural(part) for part in comma_separated(text)]


def add_busy_options(add: Callable[..., Any]) -> None:
    add("--busy", type=numbers, default=[], metavar="N,…",
        help="measure beside so many other programs, such as 0,1,2,4")
    add("--fixed", type=numbers, default=[1, 2], metavar="N,…",
        help="numbers of threads beside the chosen one (default: 1,2)")


BENCHMARK = Benchmark(measure, "speed and first sound of the embedded voices", add_busy_options, "--rounds 1",
                      uses=("threads", "rounds"))
