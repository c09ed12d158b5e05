"""Measure how long `ane serve` takes for many requests that are sent all at once, or one after another.

All requests have a seed. First every text is requested alone. Then the benchmark alternately sends all requests at
once, and one after another. It compares every sound, byte for byte, with the sound of the same request alone.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ane.bench.records import BenchRow, Spread
from ane.commands.arguments import comma_separated, positive
from ane.server.encoders import PCM_RATE
from benchmarks.harness import Benchmark, BenchmarkResult

TEXTS = (
    "The wind blew over the hill.",
    "It rained in the valley all night.",
    "She opened the old wooden door.",
    "The train was late again this morning.",
    "Please close the window before you leave.",
    "He found a letter under the table.",
    "The children played in the garden.",
    "We walked along the river to the town.",
    "My brother works in a small shop.",
    "The dog slept beside the warm fire.",
    "They sold their house last summer.",
    "A good book is a quiet friend.",
    "The teacher wrote a word on the board.",
    "I would like a cup of tea.",
    "The moon was bright above the sea.",
    "Nobody heard the bell at noon.",
    "The farmer counted his sheep.",
    "Her sister sang a song in the kitchen.",
    "The road goes down to the harbour.",
    "Snow fell on the roof of the church.",
)
MODELS: dict[str, dict[str, Any]] = {"heart": {}, "demo": {"preset": "fastest"}}
READ = 4096  # number of bytes that a client reads at once


@dataclass(frozen=True)
class Answer:
    """The answer to a request, as the client sees it.

    Attributes:
        first: Seconds to the first byte.
        total: Seconds to the last byte.
        sound: The sound, or ``None`` if the server answered with an error.
    """

    first: float
    total: float
    sound: bytes | None


def requests_of(model: str, count: int) -> list[dict[str, Any]]:
    """Make ``count`` requests, which go through ``TEXTS`` again and again. Requests for the same text are equal."""
    return [
        {
            "model": model,
            "input": TEXTS[number % len(TEXTS)],
            "seed": number % len(TEXTS),
            "response_format": "pcm",
            **MODELS[model],
        }
        for number in range(count)
    ]


def ask(address: str, request: Mapping[str, Any]) -> Answer:
    connection, began = HTTPConnection(urlsplit(address).netloc, timeout=600), time.perf_counter()
    try:
        connection.request("POST", "/v1/audio/speech", json.dumps(request), {"Content-Type": "application/json"})
        response, body, first = connection.getresponse(), bytearray(), 0.0
        while data := response.read1(READ):
            first, body = first or time.perf_counter() - began, body + data
        return Answer(first, time.perf_counter() - began, bytes(body) if response.status == 200 else None)
    finally:
        connection.close()


def send(address: str, requests: Sequence[Mapping[str, Any]], at_once: int) -> list[Answer]:
    """Send requests from ``at_once`` threads, and return the answers in the order of the requests."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda request: ask(address, request), requests))


@contextmanager
def started(*arguments: str, threads: int | None = None) -> Iterator[str]:
    """Start `ane serve`, and yield its address. End it after the block."""
    environment = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    process = subprocess.Popen(
        [sys.executable, "-m", "ane", "serve", "--port", "0", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        match = re.search(r"http://[\d.:]+", process.stdout.readline())
        if match is None:
            raise RuntimeError("ane serve did not start")
        yield match[0]
    finally:
        process.terminate()
        process.wait()


def measure(options: argparse.Namespace) -> BenchmarkResult:
    rows: list[BenchRow] = []
    serve = (
        "--models",
        ",".join(options.models),
        "--lanes",
        str(options.lanes),
        "--requests",
        str(max(256, options.requests)),
    )
    with started(*serve, threads=options.threads) as address:
        for model in options.models:
            requests = requests_of(model, options.requests)
            alone = send(address, requests[: len(TEXTS)], 1)  # loads the model
            rounds = []
            for _ in range(options.rounds):
                for name, at_once in (("all at once", len(requests)), ("one at a time", 1)):
                    began = time.perf_counter()
                    answers = send(address, requests, at_once)
                    rounds.append((name, time.perf_counter() - began, answers))
            rows += [
                rounds_row(name, model, [measured[1:] for measured in rounds if measured[0] == name], alone)
                for name in ("all at once", "one at a time")
            ]
    return BenchmarkResult(rows, {"requests": options.requests, "lanes": options.lanes, "threads": options.threads})


def rounds_row(
    name: str, model: str, rounds: Sequence[tuple[float, list[Answer]]], alone: Sequence[Answer]
) -> BenchRow:
    """Make the row for the answers and seconds of all rounds. ``alone`` has the answer to each text when sent alone."""
    first = [[answer.first for answer in answers] for _, answers in rounds]
    sound = sum(len(answer.sound or b"") for answer in rounds[0][1]) / 2 / PCM_RATE
    pairs = [
        (answer.sound, alone[number % len(TEXTS)].sound)
        for _, answers in rounds
        for number, answer in enumerate(answers)
    ]
    return BenchRow(
        name,
        f"{len(first[0])} requests",
        "s",
        {"model": model},
        Spread.of([seconds for seconds, _ in rounds]),
        {
            "first_sound_p50_s": float(np.median(np.percentile(first, 50, axis=1))),
            "first_sound_p95_s": float(np.median(np.percentile(first, 95, axis=1))),
            "sound_seconds_per_s": float(np.median([sound / seconds for seconds, _ in rounds])),
            "lost": float(sum(not ours for ours, _ in pairs)),
            "bytes_as_alone": sum(ours == theirs for ours, theirs in pairs) / len(pairs),
        },
    )


def add_options(add: Callable[..., Any]) -> None:
    add("--requests", type=positive, default=200, metavar="N", help="number of requests (default: 200)")
    add("--lanes", type=positive, default=32, metavar="N", help="number of the decoder's lanes (default: 32)")
    add("--models", type=comma_separated, default=list(MODELS), metavar="A,B", help=f"models, from {', '.join(MODELS)}")


BENCHMARK = Benchmark(
    measure,
    "time that `ane serve` takes for many requests at once",
    add_options,
    quick="--rounds 1 --requests 3 --models heart",
    uses=("threads", "rounds"),
)
