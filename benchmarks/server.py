"""Many programs speak at once: `ane serve` beside one request at a time, a server with a lock, and no server at all.

The client is curl with as many connections as requests. All contestants answer the same requests, in one run. Every
sound is compared, byte for byte, with that of the same request alone; each different sound is recognised once, as the
likeliest of all the texts.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ane
from ane.bench.records import BenchRow, Spread
from ane.commands.arguments import comma_separated, positive
from ane.server.encoders import PCM_RATE, make_encoder
from benchmarks.harness import Benchmark, BenchmarkResult
from benchmarks.listening import Recogniser, recogniser_problem

TEXTS = (
    "The wind blew over the hill.", "It rained in the valley all night.", "She opened the old wooden door.",
    "The train was late again this morning.", "Please close the window before you leave.",
    "He found a letter under the table.", "The children played in the garden.",
    "We walked along the river to the town.", "My brother works in a small shop.",
    "The dog slept beside the warm fire.", "They sold their house last summer.", "A good book is a quiet friend.",
    "The teacher wrote a word on the board.", "I would like a cup of tea.", "The moon was bright above the sea.",
    "Nobody heard the bell at noon.", "The farmer counted his sheep.", "Her sister sang a song in the kitchen.",
    "The road goes down to the harbour.", "Snow fell on the roof of the church.")
NO_SERVER = "Python without a server, one at a time"
MODELS: dict[str, dict[str, Any]] = {"demo-fast": {}, "demo": {"preset": "fastest"}}


@dataclass(frozen=True)
class Answer:
    """What curl says of a request: seconds to the first byte and to the last, status, and the sound."""

    first: float
    total: float
    status: int
    sound: bytes


def requests_of(model: str, count: int) -> list[dict[str, Any]]:
    """Requests with the texts in turn; the same text has the same seed."""
    return [{"model": model, "input": TEXTS[number % len(TEXTS)], "seed": number % len(TEXTS),
             "response_format": "pcm", **MODELS[model]} for number in range(count)]


def send(address: str, requests: Sequence[Mapping[str, Any]], at_once: int) -> list[Answer]:
    """The answers in the order of the requests."""
    with tempfile.TemporaryDirectory() as folder:
        parts = [f'url = "{address}/v1/audio/speech"\nheader = "Content-Type: application/json"\n'
                 f"data = {json.dumps(json.dumps(request))}\noutput = \"{folder}/{number}\"\n"
                 'write-out = "%{filename_effective} %{time_starttransfer} %{time_total} %{http_code}\\n"\n'
                 for number, request in enumerate(requests)]
        config = Path(folder) / "config"
        config.write_text("next\n".join(parts))
        found = subprocess.run(["curl", "-sSN", "-Z", "--parallel-immediate", "--parallel-max", str(at_once),
                                "-K", str(config)], capture_output=True, text=True, check=True)
        answers: dict[int, Answer] = {}
        for line in found.stdout.splitlines():
            path, first, total, status = line.rsplit(" ", 3)
            answers[int(Path(path).name)] = Answer(float(first), float(total), int(status), Path(path).read_bytes())
    return [answers[number] for number in range(len(requests))]


@dataclass(frozen=True)
class StartedServer:
    """A server's process. ``address``: such as http://127.0.0.1:8880."""

    address: str
    pid: int

    def cpu_seconds(self) -> float:
        """CPU time that it has taken; nan where the system has no /proc."""
        try:
            user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        except OSError:
            return math.nan
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def started(*command: str, threads: int | None = None) -> Iterator[StartedServer]:
    """A server's process, which ends with the block. ``threads``: CPU threads of torch (None: its own choice)."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True, env={**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})})
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://[\d.:]+", line)
        if found is None:
            raise RuntimeError(f"{' '.join(command)} did not start")
        yield StartedServer(found[0], process.pid)
    finally:
        process.terminate()
        process.wait()


def measure(options: argparse.Namespace) -> BenchmarkResult:
    rows: list[BenchRow] = []
    notes: list[str] = []
    for model in options.models:
        requests = requests_of(model, options.requests)
        serve = ("ane", "serve", "--port", "0", "--models", model, "--lanes", str(options.lanes),
                 "--requests", str(max(256, options.requests)))
        with (started(*serve, threads=options.threads) as ours,
              started("benchmarks.lock_server", model, threads=options.threads) as locked):
            direct = DirectSpeech(model, options.threads)
            alone = [[answer.sound for answer in answers] for answers in (      # loads the models
                *(send(server.address, requests[:len(TEXTS)], 1) for server in (ours, locked)),
                direct.run(requests[:len(TEXTS)]).answers)]
            runs: dict[str, Callable[[], TimedRun]] = {
                "ane serve, all at once": partial(run, ours, requests, len(requests)),
                "ane serve, one at a time": partial(run, ours, requests, 1),
                "a lock, all at once": partial(run, locked, requests, len(requests)),
                NO_SERVER: partial(direct.run, requests)}
            rounds = [{name: each() for name, each in runs.items()} for _ in range(options.rounds)]
        rows += rows_of(model, rounds, dict(zip(runs, (alone[0], alone[0], alone[1], alone[2]), strict=True)))
        notes.append(recognised(model, alone[0]))
    return BenchmarkResult(rows, {"requests": options.requests, "lanes": options.lanes,
                                  "threads": options.threads}, notes)


@dataclass(frozen=True)
class TimedRun:
    """A run of all requests: its wall time, the CPU time that the server's process took (nan: unknown), the answers."""

    seconds: float
    cpu_seconds: float
    answers: Sequence[Answer]


class DirectSpeech:
    """The same requests in this process, one after the other: what is left of the time without a server."""

    def __init__(self, model: str, threads: int | None):
        self._speaker = ane.load(model, keep=True, threads=threads)

    def run(self, requests: Sequence[Mapping[str, Any]]) -> TimedRun:
        began, cpu = time.perf_counter(), time.process_time()
        answers = [self._speak(request) for request in requests]
        return TimedRun(time.perf_counter() - began, time.process_time() - cpu, answers)

    def _speak(self, request: Mapping[str, Any]) -> Answer:
        began, first, sound = time.perf_counter(), 0.0, b""
        names = {"seed", "preset"} & set(request) if "preset" in request else ()
        stream = self._speaker.stream(request["input"], **{name: request[name] for name in names})
        encoder = make_encoder("pcm", stream.sample_rate)
        for piece in stream:
            sound += encoder.feed(piece)
            first = first or time.perf_counter() - began
        return Answer(first, time.perf_counter() - began, 200, sound + encoder.finish())


def run(server: StartedServer, requests: Sequence[Mapping[str, Any]], at_once: int) -> TimedRun:
    began, cpu = time.perf_counter(), server.cpu_seconds()
    answers = send(server.address, requests, at_once)
    return TimedRun(time.perf_counter() - began, server.cpu_seconds() - cpu, answers)


def rows_of(model: str, rounds: Sequence[Mapping[str, TimedRun]], alone: Mapping[str, list[bytes]]) -> list[BenchRow]:
    """``alone``: the sound of each text alone, from the same server."""
    rows = []
    for name in rounds[0]:
        runs = [found[name] for found in rounds]
        first = [[answer.first for answer in run.answers] for run in runs]
        answers = [(number, answer) for run in runs for number, answer in enumerate(run.answers)]
        seconds = sum(len(answer.sound) for answer in runs[0].answers) / 2 / PCM_RATE
        rows.append(BenchRow(name, f"{len(first[0])} requests", "s", {"model": model},
                             Spread.of([run.seconds for run in runs]), {
            "cpu_s": float(np.median([run.cpu_seconds for run in runs])),
            "first_sound_p50_s": float(np.median(np.percentile(first, 50, axis=1))),
            "first_sound_p95_s": float(np.median(np.percentile(first, 95, axis=1))),
            "sound_seconds_per_s": float(np.median([seconds / run.seconds for run in runs])),
            # in each round, because what else the machine does changes from one to the next
            "times_one_at_a_time": float(np.median([
                found["ane serve, one at a time"].seconds / found[name].seconds for found in rounds])),
            "lost": float(sum(answer.status != 200 or not answer.sound for _, answer in answers)),
            "bytes_as_alone": float(sum(answer.sound == alone[name][number % len(TEXTS)]
                                        for number, answer in answers))}))
    return rows


def recognised(model: str, sounds: Sequence[bytes]) -> str:
    """How many sounds are recognised as their text, of all texts."""
    if (problem := recogniser_problem()) is not None:
        return f"{model}: not recognised, because {problem}"
    recogniser = Recogniser(TEXTS)
    right = sum(recogniser.chosen(np.frombuffer(sound, "<i2") / np.float32(32768), PCM_RATE)
                == recogniser.choices[number] for number, sound in enumerate(sounds))
    return f"{model}: {right} of {len(sounds)} different sounds are recognised as their own text"


def add_options(add: Callable[..., Any]) -> None:
    add("--requests", type=positive, default=200, metavar="N", help="at once (default: 200)")
    add("--lanes", type=positive, default=32, metavar="N", help="of the decoder (default: 32)")
    add("--models", type=comma_separated, default=list(MODELS), metavar="A,B", help=f"of {', '.join(MODELS)}")


BENCHMARK = Benchmark(
    measure, "many requests at once to `ane serve`", add_options, quick="--rounds 1 --requests 3 --models demo-fast",
    unavailable=lambda options: None if shutil.which("curl") else "curl is not installed", uses=("threads", "rounds"))
