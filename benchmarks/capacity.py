"""How many workers a book needs: chunk times measured on this machine, and estimates for up to 1,000 workers.

Measured: the seconds that one worker takes for each chunk of a text, those that the process with the job takes to keep
a sound, and those to load the model. Estimated, by a simulation that draws from these: workers take the next chunk as
they become free; some are slow, some fail, lose their chunk and start again; one process keeps all sounds, one at a
time. Nothing was run on more workers than one, and the network is taken to cost nothing.
"""

import argparse
import heapq
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ane
from ane.bench.records import BenchRow, Spread
from ane.books.narration import Narration, sound_of
from ane.books.plan import Silences, SpeechIdentity, plan_book
from ane.books.reading import read_document
from ane.books.speakers import TortoiseSpeaker
from ane.books.store import JobStore
from ane.commands.arguments import positive
from ane.models.tortoise.settings import Settings
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult, model_name
from benchmarks.server import TEXTS

SPOKEN, FAILED, FREE = "spoken", "failed", "free"
WORKERS = (1, 3, 10, 30, 100, 200, 300, 500, 700, 1000)


@dataclass(frozen=True)
class MeasuredChunks:
    """Seconds for each chunk: to speak it, of its sound, to keep it; and to load the model."""

    speak: Sequence[float]
    sound: Sequence[float]
    keep: Sequence[float]
    load: float


@dataclass(frozen=True)
class Trouble:
    """What goes wrong in a simulated cluster.

    Attributes:
        slow_share: of the workers, which take ``slow_factor`` times as long.
        hours_between_failures: of a worker, on average; its chunk is lost, and it loads the model again.
    """

    slow_share: float = 0.0
    slow_factor: float = 1.0
    hours_between_failures: float = np.inf


SCENARIOS = {"without trouble": Trouble(), "5% of the workers 3 times slower, each fails once a day":
             Trouble(0.05, 3.0, 24.0)}


@dataclass(frozen=True)
class SimulatedJob:
    """Seconds until all chunks are kept, seconds of sound, and chunks that were spoken again."""

    seconds: float
    sound: float
    repeated: int


def measure_chunks(bundle: str | None, preset: str, count: int) -> MeasuredChunks:
    """Speak a text of ``count`` paragraphs as `ane read` does, with one thread."""
    began = time.perf_counter()
    synthesizer = ane.load(bundle, threads=1, keep=True)
    speaker = TortoiseSpeaker(synthesizer, synthesizer.prepare(), Settings.of(preset, synthesizer.model.settings))
    load = time.perf_counter() - began
    chance = random.Random(0)
    text = "\n\n".join(" ".join(chance.sample(TEXTS, chance.randint(1, 4))) for _ in range(count))
    speak, sound, keep = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder) / "book.txt"
        book.write_text(text, encoding="utf-8")
        identity = SpeechIdentity(speaker.model, speaker.voice, speaker.settings, 1)
        plan = plan_book(read_document(book), identity, Silences(), speaker.lengths, speaker.respell)
        store = JobStore(Path(folder) / "job")
        store.adopt(plan)
        narration = Narration(store, plan, lambda done, total, left: None)
        for claimed in narration.chunks():
            assert claimed is not None          # nobody else works on it
            times = [time.perf_counter()]
            chunk = sound_of(speaker, claimed, len(plan.chunks))
            times.append(time.perf_counter())
            narration.keep(claimed, chunk, speaker.sample_rate, times[1] - times[0])
            times.append(time.perf_counter())
            speak.append(times[1] - times[0])
            keep.append(times[2] - times[1])
            sound.append(len(chunk.audio) / speaker.sample_rate)
        store.close()
    return MeasuredChunks(speak, sound, keep, load)


def simulate(measured: MeasuredChunks, chunks: int, workers: int, trouble: Trouble, seed: int) -> SimulatedJob:
    """A job of ``chunks``, each with the times of a measured one that is drawn with replacement."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(measured.speak), size=chunks)
    slow = np.where(rng.random(workers) < trouble.slow_share, trouble.slow_factor, 1.0)
    between = 3600 * trouble.hours_between_failures

    def lifetime() -> float:
        return rng.exponential(between) if np.isfinite(between) else np.inf

    fails = [measured.load + lifetime() for _ in range(workers)]
    waiting = list(range(chunks - 1, -1, -1))
    # time, worker, what happens then, and to which chunk
    events: list[tuple[float, int, str, int]] = [(measured.load, worker, FREE, -1) for worker in range(workers)]
    idle: list[int] = []
    kept_until, repeated, left = 0.0, 0, chunks
    while left:
        now, worker, what, chunk = heapq.heappop(events)
        if what == SPOKEN:
            kept_until = max(kept_until, now) + measured.keep[drawn[chunk]]
            left -= 1
            heapq.heappush(events, (kept_until, worker, FREE, -1))       # it gets its next chunk from that process, too
        elif what == FAILED:
            waiting.append(chunk)
            repeated += 1
            fails[worker] = now + measured.load + lifetime()
            heapq.heappush(events, (now + measured.load, worker, FREE, -1))
            for other in idle:
                heapq.heappush(events, (now, other, FREE, -1))
            idle.clear()
        elif not waiting:
            idle.append(worker)
        else:
            chunk = waiting.pop()
            end = now + measured.speak[drawn[chunk]] * slow[worker]
            failed = max(now, fails[worker])
            heapq.heappush(events, (end, worker, SPOKEN, chunk) if end <= failed else (failed, worker, FAILED, chunk))
    return SimulatedJob(kept_until, float(np.asarray(measured.sound)[drawn].sum()), repeated)


def measure(options: argparse.Namespace) -> BenchmarkResult:
    found = measure_chunks(options.bundle, options.preset, options.paragraphs)
    rate = sum(found.sound) / sum(found.speak)
    rows = [BenchRow("a worker", "speak a chunk", "s", {}, Spread.of(found.speak)),
            BenchRow("a worker", "sound of a chunk", "s", {}, Spread.of(found.sound)),
            BenchRow("the process with the job", "keep a chunk", "s", {}, Spread.of(found.keep))]
    for name, trouble in SCENARIOS.items():
        for workers in WORKERS:
            jobs = [simulate(found, options.job_chunks, workers, trouble, seed) for seed in range(options.rounds)]
            rates = [job.sound / job.seconds for job in jobs]
            rows.append(BenchRow(f"estimate, {name}", "job", "hours of sound an hour", {"workers": workers},
                                 Spread.of(rates), {
                "job_hours": float(np.median([job.seconds for job in jobs])) / 3600,
                "worker_hours_per_hour_of_sound": float(np.median([workers / each for each in rates])),
                "efficiency": float(np.median(rates)) / rate / workers,
                "chunks_spoken_again": float(np.median([job.repeated for job in jobs]))}))
    notes = [f"measured: one worker, one thread: {rate:.2f} hours of sound an hour; the model loads in "
             f"{found.load:.1f} s",
             f"estimated: all rows with workers; jobs of {options.job_chunks} chunks, "
             f"{options.job_chunks * np.mean(found.sound) / 3600:.0f} hours of sound"]
    settings = {"model": model_name(options), "preset": options.preset, "paragraphs": options.paragraphs,
                "job_chunks": options.job_chunks, "threads": 1}
    return BenchmarkResult(rows, settings, notes,
                           [BenchmarkPlot("Estimated rate of a job on a cluster", "job", "workers")],
                           {"chunk_seconds": [round(each, 4) for each in found.speak]})


def add_options(add: Callable[..., Any]) -> None:
    add("--preset", default="fastest", metavar="NAME", help="(default: fastest)")
    add("--paragraphs", type=positive, default=60, metavar="N", help="that are spoken to measure (default: 60)")
    add("--job-chunks", type=positive, default=50_000, metavar="N", help="of the simulated job (default: 50000)")


BENCHMARK = Benchmark(measure, "chunk times of `ane read`, and estimates for up to 1,000 workers", add_options,
                      quick="--paragraphs 2 --job-chunks 20 --rounds 1", uses=("rounds",))
