"""Compare the default voice with hibari-tts, Kokoro with kokoro-onnx, and `ane transcribe` with other programs.

The voices speak the same sentences alternately, in one process, on one thread. The default voice also speaks on two
threads. Other work on the machine hardly changes the seconds of processor time. If the package or the weights of
another program are not available, a line names the program, and it is not measured. ``benchmarks.transcribers`` runs
the programs that transcribe.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ane
from ane.bench.measure import RepeatedCall, measure_in_rounds
from ane.bench.records import BenchRow
from ane.commands.arguments import comma_separated
from ane.system.errors import UserError
from benchmarks.data_packages import package_folder
from benchmarks.embedded import first_sound_call
from benchmarks.harness import Benchmark, BenchmarkResult
from benchmarks.kokoro_peer import kokoro_voices
from benchmarks.server import TEXTS
from benchmarks.transcribers import transcriptions

LONG = " ".join(TEXTS)  # a text that is divided into several chunks
Voice = Callable[[str], float]  # speaks a text, and returns the seconds of its sound
KOKORO_TEXTS = 6  # number of sentences for Kokoro, which takes forty times as long as the default voice
ABSENT = "KittenTTS is not measured here: its weights are in no package"


def measure(options: argparse.Namespace) -> BenchmarkResult:
    measured = {"speech": speaking, "kokoro": speaking_kokoro, "transcription": hearing}
    unknown = [name for name in options.only if name not in measured]
    if unknown:
        raise UserError(f"--only {','.join(unknown)}: choose from {', '.join(measured)}")
    rows = [row for name in options.only or measured for row in measured[name](options.rounds)]
    return BenchmarkResult(rows, {"rounds": options.rounds})


def speaking(rounds: int) -> list[BenchRow]:
    calls = []
    for name, voice in voices():
        for what, texts in (("20 sentences", TEXTS), ("a text of several chunks", (LONG,))):
            calls.append(RepeatedCall(BenchRow(name, what, "× real time", {}), partial(speed, voice, texts)))
    for threads in (1, 2):
        read = first_sound_call(ane.load(threads=threads), TEXTS[0], {"seed": 1})
        calls.append(RepeatedCall(BenchRow(f"heart, {threads} threads", "first sound", "ms", {}), read))
    print(ABSENT, file=sys.stderr)
    return measure_in_rounds(calls, rounds)


def speaking_kokoro(rounds: int) -> list[BenchRow]:
    with tempfile.TemporaryDirectory() as folder:
        calls = [
            RepeatedCall(
                BenchRow(name, f"{KOKORO_TEXTS} sentences", "× real time", {}),
                partial(speed, voice, TEXTS[:KOKORO_TEXTS]),
            )
            for name, voice in kokoro_voices(Path(folder))
        ]
        return measure_in_rounds(calls, rounds)


def hearing(rounds: int) -> list[BenchRow]:
    with tempfile.TemporaryDirectory() as folder:
        return measure_in_rounds(list(transcriptions(Path(folder))), rounds)


def voices() -> Iterator[tuple[str, Voice]]:
    """Yield the name and the voice of each program that can speak on this machine."""
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
    """Measure the seconds of sound that a voice makes per second, and per second of processor time."""
    began, busy = time.perf_counter(), time.process_time()
    seconds = sum(map(voice, texts))
    return {"value": seconds / (time.perf_counter() - began), "audio_per_cpu_s": seconds / (time.process_time() - busy)}


def add_options(add: Callable[..., Any]) -> None:
    add(
        "--only",
        type=comma_separated,
        default=(),
        metavar="NAME,…",
        help="comparisons to run: speech, kokoro, transcription (default: all)",
    )


BENCHMARK = Benchmark(
    measure, "the default voice and `ane transcribe` next to other programs", add_options, quick=None, uses=("rounds",)
)
