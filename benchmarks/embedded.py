"""The embedded voices side by side: how fast they speak, and how soon the first sound of a stream comes.

Both are loaded by ``ane.load`` in this process, speak the same text, and take turns. The first request, which loads
networks, is not counted. Speed is seconds of speech made in a second, and the figure audio_per_cpu_s those made in a
second of processor time, which other work on the machine hardly changes. `fresh` is the first sound of a new process:
from the end of ``import ane`` to the first piece of a stream, opening the bundle included.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import ane
from ane.bench.measure import RepeatedCall, measure_in_rounds
from ane.bench.records import BenchRow
from ane.system.errors import UserError
from benchmarks.harness import Benchmark, BenchmarkResult
from benchmarks.speech import SENTENCES

TEXTS = {"a sentence": SENTENCES[0], "a paragraph": " ".join(SENTENCES)}
# how each speaks: arguments of ``speak`` and ``stream``
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "demo": {"fastest": {"preset": "fastest", "seed": 1}},
    "demo-fast": {"": {}}}
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
    return BenchmarkResult(rows, {"threads": options.threads, "rounds": options.rounds})


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


BENCHMARK = Benchmark(measure, "speed and first sound of the embedded voices", quick="--rounds 1",
                      uses=("threads", "rounds"))
