"""`ane serve` under load for minutes: its memory over time, and the sound of seeded requests beside random neighbours.

Seeded requests are sent once alone. Then clients send them again and again, each time beside whatever the others send:
other formats, unseeded requests, event streams, clients that read slowly and clients that leave. Every complete answer
to a seeded request must have the bytes that it had alone.
"""

import argparse
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ane.bench.records import BenchRow, Spread
from ane.commands.arguments import positive
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult
from benchmarks.server import MODELS, TEXTS, started

INTERVAL = 10.0         # seconds between readings of the memory
WARM_SHARE = 0.1        # of the time, after which the memory counts: until then caches of the libraries fill
READ = 4096             # bytes that a client takes at a time


@dataclass
class LoadCounts:
    """What the clients saw. ``equal``, ``different``: indices of seeded requests by whether the bytes were as alone."""

    outcomes: Counter = field(default_factory=Counter)
    equal: Counter = field(default_factory=Counter)
    different: Counter = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, outcome: str) -> None:
        with self.lock:
            self.outcomes[outcome] += 1

    def compare(self, index: int, equal: bool) -> None:
        with self.lock:
            (self.equal if equal else self.different)[index] += 1


def seeded_requests(count: int) -> list[dict[str, Any]]:
    """Requests of one to three sentences, in turn for each of the models."""
    chance, names = random.Random(0), list(MODELS)
    return [{"model": name, "input": " ".join(chance.sample(TEXTS, chance.randint(1, 3))),
             "seed": chance.randrange(2 ** 31), "response_format": "pcm", **MODELS[name]}
            for name in (names[number % len(names)] for number in range(count))]


def ask(address: str, request: dict[str, Any], pause: float = 0.0, most: int | None = None) -> bytes | None:
    """The body of the answer. ``pause``: seconds between reads; ``most``: bytes after which the client leaves.

    None: the status was not 200.
    """
    connection = HTTPConnection(urlsplit(address).netloc, timeout=300)
    try:
        connection.request("POST", "/v1/audio/speech", json.dumps(request), {"Content-Type": "application/json"})
        response, body = connection.getresponse(), bytearray()
        while (most is None or len(body) < most) and (data := response.read(READ if pause or most else None)):
            body += data
            time.sleep(pause)
        return bytes(body) if response.status == 200 else None
    finally:
        connection.close()


def neighbour(chance: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """A random request that is not compared, and the arguments of ``ask`` for it."""
    name = chance.choice(list(MODELS))
    request = {"model": name, "input": " ".join(chance.sample(TEXTS, chance.randint(1, 4))), **MODELS[name],
               "response_format": chance.choice(["mp3", "opus", "aac", "flac", "wav", "pcm"]),
               "stream_format": chance.choice(["audio", "sse"])}
    if chance.random() < 0.3:
        return request, {"most": chance.randrange(1, 60_000)}
    return request, {"pause": 0.05} if chance.random() < 0.2 else {}


def run_client(address: str, seed: int, alone: list[tuple[dict[str, Any], bytes]], counts: LoadCounts,
               stopping: threading.Event) -> None:
    chance = random.Random(seed)
    order: list[int] = []
    while not stopping.is_set():
        try:
            if chance.random() < 0.5:
                request, reading = neighbour(chance)
                counts.add("other" if ask(address, request, **reading) is not None else "refused")
                continue
            order = order or chance.sample(range(len(alone)), len(alone))
            index = order.pop()
            found = ask(address, alone[index][0])
            counts.add("seeded" if found is not None else "refused")
            if found is not None:
                counts.compare(index, found == alone[index][1])
        except (OSError, HTTPException) as error:
            counts.add(f"failed: {type(error).__name__}")


def measure(options: argparse.Namespace) -> BenchmarkResult:
    requests, counts, stopping = seeded_requests(options.seeded), LoadCounts(), threading.Event()
    readings: list[tuple[float, float]] = []
    with started("ane", "serve", "--port", "0", "--models", ",".join(MODELS), "--threads", "1") as server:
        alone = [(request, ask(server.address, request) or b"") for request in requests]
        clients = [threading.Thread(target=run_client, args=(server.address, number, alone, counts, stopping))
                   for number in range(options.clients)]
        began = time.monotonic()
        for client in clients:
            client.start()
        while (minutes := (time.monotonic() - began) / 60) < options.minutes:
            readings.append((minutes, resident_mb(server.pid)))
            time.sleep(min(INTERVAL, max(0.0, 60 * (options.minutes - minutes))))
        stopping.set()
        for client in clients:
            client.join()
        at_rest = resident_mb(server.pid)
    rows = [BenchRow("ane serve", "memory", "MB", {"minutes": round(minute, 2)}, Spread.of([memory]))
            for minute, memory in readings]
    return BenchmarkResult(rows, {"clients": options.clients, "minutes": options.minutes, "seeded": options.seeded}, [
        memory_note(readings, at_rest), equality_note(counts, len(requests)),
        ", ".join(f"{number} {name}" for name, number in sorted(counts.outcomes.items())) + " requests"],
        [BenchmarkPlot(f"Memory of ane serve under {options.clients} clients", x="minutes")],
        {"equal": sum(counts.equal.values()), "different": sum(counts.different.values())})


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024 / 1e6


def memory_note(readings: list[tuple[float, float]], at_rest: float) -> str:
    """The trend of the memory, by least squares over the readings after ``WARM_SHARE`` of the time."""
    kept = np.array(readings[int(WARM_SHARE * len(readings)):])
    minutes, memory = kept.T
    slope = np.polyfit(minutes, memory, 1)[0] if len(kept) > 1 else 0.0
    return (f"memory: {memory[0]:.0f} MB at {minutes[0]:.1f} min, {memory[-1]:.0f} MB at the end, {memory.min():.0f} "
            f"to {memory.max():.0f} MB between, trend {slope:+.2f} MB a minute; "
            f"{at_rest:.0f} MB after the last request")


def equality_note(counts: LoadCounts, seeded: int) -> str:
    right = sum(1 for index in counts.equal if not counts.different[index])
    return (f"{right} of {seeded} seeded requests had the bytes that they had alone, in "
            f"{sum(counts.equal.values())} of {sum((counts.equal + counts.different).values())} answers")


def add_options(add: Callable[..., Any]) -> None:
    add("--minutes", type=float, default=10.0, metavar="N", help="of load (default: 10)")
    add("--clients", type=positive, default=16, metavar="N", help="at a time (default: 16)")
    add("--seeded", type=positive, default=100, metavar="N", help="requests that are compared (default: 100)")


BENCHMARK = Benchmark(
    measure, "`ane serve` for minutes: memory, and equal bytes beside random neighbours", add_options,
    quick="--minutes 0.05 --clients 2 --seeded 2",
    unavailable=lambda options: None if Path("/proc/self/status").exists() else "memory is read from /proc, on Linux",
    uses=())
