"""Measure how long clients of `ane serve` wait for their first sound, while other clients read their sound slowly.

A client sends one request after another. A slow reader asks for a long text, reads one byte of its sound, and then
reads nothing until the measurement ends. The server computes some sound ahead for the slow readers, and then waits for
them. Only then the measurement begins. Every sound that a client gets is compared, byte for byte, with the sound of the
same request when no other client sends one.
"""

import argparse
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ane.bench.records import BenchRow, Spread
from ane.commands.arguments import comma_separated, positive
from benchmarks.harness import Benchmark, BenchmarkResult
from benchmarks.server import MODELS, TEXTS, Answer, ask, requests_of, send, started

RECEIVE_BUFFER = 4096  # size of the receive buffer of a slow reader's socket, in bytes


def measure(options: argparse.Namespace) -> BenchmarkResult:
    clients = [int(number) for number in options.clients]
    places = max(256, max(clients) + options.slow)
    serve = ("--models", ",".join(options.models), "--requests", str(places))
    rows: list[BenchRow] = []
    with started(*serve, threads=options.threads) as address:
        for model in options.models:
            alone = send(address, requests_of(model, len(TEXTS)), 1)  # loads the model
            for slow in dict.fromkeys((0, options.slow)):
                for number in clients:
                    with slow_readers(address, model, slow):
                        wait_until_quick(address, model, 2 * float(np.median([answer.first for answer in alone])))
                        rows.append(waiting(address, model, number, slow, options.requests, alone))
    return BenchmarkResult(rows, {"requests": options.requests, "slow_readers": options.slow})


@contextmanager
def slow_readers(address: str, model: str, count: int) -> Iterator[None]:
    """Within the block, keep ``count`` requests for long texts open, and read none of their sound."""
    host, port = urlsplit(address).hostname, urlsplit(address).port
    request = {"model": model, "input": " ".join(TEXTS * 3), "response_format": "pcm", **MODELS[model]}
    body = json.dumps(request).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with ExitStack() as stack:
        for _ in range(count):
            reader = stack.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            reader.connect((host, port))
            reader.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            reader.recv(1)  # waits until the server answers the request
        yield


def wait_until_quick(address: str, model: str, seconds: float) -> None:
    """Send requests until three in a row have their first sound within ``seconds``. Stop after a minute in any case."""
    end, quick, request = time.monotonic() + 60, 0, requests_of(model, 1)[0]
    while quick < 3 and time.monotonic() < end:
        quick = quick + 1 if ask(address, request).first < seconds else 0


def waiting(address: str, model: str, clients: int, slow: int, requests: int, alone: Sequence[Answer]) -> BenchRow:
    """Let every client send ``requests`` requests, one after another. Return a row with times to the first sound."""
    wanted = requests_of(model, len(TEXTS))

    def client(number: int) -> list[tuple[int, Answer]]:
        texts = [(number + turn) % len(TEXTS) for turn in range(requests)]
        return [(text, ask(address, wanted[text])) for text in texts]

    with ThreadPoolExecutor(clients) as pool:
        answers = [answer for answered in pool.map(client, range(clients)) for answer in answered]
    first = [answer.first for _, answer in answers]
    return BenchRow(
        f"{clients} clients",
        "first sound",
        "s",
        {"model": model, "slow_readers": slow},
        Spread.of(first),
        {
            "first_sound_p50_s": float(np.percentile(first, 50)),
            "first_sound_p95_s": float(np.percentile(first, 95)),
            "lost": float(sum(answer.sound is None for _, answer in answers)),
            "bytes_as_alone": sum(answer.sound == alone[text].sound for text, answer in answers) / len(answers),
        },
    )


def add_options(add: Callable[..., Any]) -> None:
    add("--clients", type=comma_separated, default=["1", "8", "30"], metavar="N,…", help="numbers of clients (1,8,30)")
    add("--requests", type=positive, default=10, metavar="N", help="requests per client (default: 10)")
    add("--slow", type=int, default=30, metavar="N", help="number of clients that read no sound (default: 30)")
    add("--models", type=comma_separated, default=list(MODELS), metavar="A,B", help=f"models, from {', '.join(MODELS)}")


BENCHMARK = Benchmark(
    measure,
    "time to the first sound from `ane serve`, while other clients read slowly",
    add_options,
    quick="--clients 2 --requests 1 --slow 2 --models heart",
    uses=("threads",),
)
