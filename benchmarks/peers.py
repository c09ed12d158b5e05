"""Compare the default voice with the program that its model comes from, hibari-tts, in one process and one run.

Both speak the same sentences in turns, on one thread, and ours also on two. Seconds of processor time hardly change
with other work on the machine. If the package and weights of a peer are unavailable, it is named and left out.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import ane
from ane.bench.measure import RepeatedCall, measure_in_rounds
from ane.bench.records import BenchRow
from ane.system.errors import UserError
from benchmarks.data_packages import package_folder
from benchmarks.embedded import first_sound_call
from benchmarks.harness import Benchmark, BenchmarkResult
from benchmarks.server import TEXTS

LONG = " ".join(TEXTS)  # several chunks
Voice = Callable[[str], float]  # speaks a text, and returns the seconds of its sound
ABSENT = "kokoro-onnx and KittenTTS are not measured here"


def measure(options: argparse.Namespace) -> BenchmarkResult:
    calls = []
    for name, voice in voices():
        for what, texts in (("20 sentences", TEXTS), ("a text of several chunks", (LONG,))):
            calls.append(RepeatedCall(BenchRow(name, what, "× real time", {}), partial(speed, voice, texts)))
    for threads in (1, 2):
        read = first_sound_call(ane.load(threads=threads), TEXTS[0], {"seed": 1})
        calls.append(RepeatedCall(BenchRow(f"heart, {threads} threads", "first sound", "ms", {}), read))
    print(ABSENT, file=sys.stderr)
    return BenchmarkResult(measure_in_rounds(calls, options.rounds), {"rounds": options.rounds})


def voices() -> Iterator[tuple[str, Voice]]:
    """Yield the name of each program that speaks here, and its voice."""
    for threads in (1, 2):
        yield f"heart, {threads} threads", partial(ours, ane.load(threads=threads))
    demo = ane.load("demo", "torch", keep=True, threads=1)
    yield "demo, 1 thread", lambda text: demo.speak(text, preset="fastest", seed=1).seconds
    try:
        sys.path.append(str(package_folder("hibari-tts")))
    except UserError as error:
        print(f"hibari-tts is left out: {error}", file=sys.stderr)
        return
    from hibari import Hibari  # from the unpacked package

    hibari = Hibari()
    yield "hibari-tts, 1 thread", lambda text: len(hibari(text, seed=1)) / hibari.sample_rate


def ours(speaker: ane.Speaker, text: str) -> float:
    return speaker.speak(text, seed=1).seconds


def speed(voice: Voice, texts: tuple[str, ...]) -> dict[str, float | None]:
    """Return seconds of sound for each second, and for each second of processor time."""
    began, busy = time.perf_counter(), time.process_time()
    seconds = sum(map(voice, texts))
    return {"value": seconds / (time.perf_counter() - began), "audio_per_cpu_s": seconds / (time.process_time() - busy)}


BENCHMARK = Benchmark(measure, "the default voice next to hibari-tts, in one run", quick=None, uses=("rounds",))
