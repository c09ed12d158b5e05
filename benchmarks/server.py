"""Many programs speak at once: `ane serve` beside one request at a time, and beside a server with a lock.

The client is curl with as many connections as requests. All contestants answer the same requests, in one run. Every
sound is compared, byte for byte, with that of the same request alone; each different sound is recognised once, as the
likeliest of all the texts.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ane.bench.records import BenchRow, Spread
from ane.commands.arguments import comma_separated, positive
from ane.server.encoders import PCM_RATE
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


@contextmanager
def started(*command: str) -> Iterator[StartedServer]:
    """A server's process, which ends with the block."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True)
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
        with started(*serve) as ours, started("benchmarks.lock_server", model) as locked:
            alone = [[answer.sound for answer in send(server.address, requests[:len(TEXTS)], 1)]     # loads the model
                     for server in (ours, locked)]
            contestants: dict[str, Callable[[], list[Answer]]] = {
                "ane serve, all at once": lambda: send(ours.address, requests, len(requests)),   # noqa: B023 (called here)
                "ane serve, one at a time": lambda: send(ours.address, requests, 1),       # noqa: B023
                "a lock, all at once": lambda: send(locked.address, requests, len(requests))}   # noqa: B023
            results = {name: timed(run) for name, run in contestants.items()}
        rows += rows_of(model, results, dict(zip(contestants, (alone[0], alone[0], alone[1]), strict=True)))
        notes.append(recognised(model, alone[0]))
    return BenchmarkResult(rows, {"requests": options.requests, "lanes": options.lanes}, notes)


def timed(run: Callable[[], list[Answer]]) -> tuple[float, list[Answer]]:
    began = time.perf_counter()
    answers = run()
    return time.perf_counter() - began, answers


def rows_of(model: str, results: Mapping[str, tuple[float, list[Answer]]],
            alone: Mapping[str, list[bytes]]) -> list[BenchRow]:
    """``alone``: the sound of each text alone, from the same server."""
    rows = []
    baseline = results["ane serve, one at a time"][0]
    for name, (elapsed, answers) in results.items():
        first = [answer.first for answer in answers]
        seconds = sum(len(answer.sound) for answer in answers) / 2 / PCM_RATE
        rows.append(BenchRow(name, f"{len(answers)} requests", "s", {"model": model}, Spread.of([elapsed]), {
            "first_sound_p50_s": float(np.percentile(first, 50)), "first_sound_p95_s": float(np.percentile(first, 95)),
            "sound_seconds_per_s": seconds / elapsed, "times_one_at_a_time": baseline / elapsed,
            "lost": float(sum(answer.status != 200 or not answer.sound for answer in answers)),
            "bytes_as_alone": float(sum(answer.sound == alone[name][number % len(TEXTS)]
                                        for number, answer in enumerate(answers)))}))
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
    measure, "many requests at once to `ane serve`", add_options, quick="--requests 3 --models demo-fast",
    unavailable=lambda options: None if shutil.which("curl") else "curl is not installed", uses=())
