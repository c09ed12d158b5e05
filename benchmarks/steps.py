"""Measure how long torch on the CPU takes for a step of the decoder, by the number of lanes.

The value is milliseconds per step. A reading runs ten steps on all lanes, or as many as fit in a second. The lanes
already have a prefix of 80 positions and 80 codes, which are 3.7 s of speech. `weights_gb_per_s` is the size of the
decoder's weights, which every step reads once, divided by the time of a step.

With --busy, other programs run at the same time. The benchmark `embedded` explains `chosen` and `2 threads`.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ane.bench.records import BenchRow
from ane.commands.arguments import counts
from benchmarks.embedded import Reading, add_busy_options, rows_in_conditions
from benchmarks.harness import Benchmark, BenchmarkResult, chosen_competitors, model_name

PREFIX, CODES, STEPS, LONGEST_READING = 80, 80, 10, 1.0  # positions, codes, steps per reading, seconds per reading
WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}


def measure(options: argparse.Namespace) -> BenchmarkResult:
    model, competitors = chosen_competitors(options)
    layers = sum(tensor.numel() for key, tensor in model.tensors("autoregressive").items() if ".h." in key)
    rows: list[BenchRow] = []
    for competitor in (each for each in competitors if each.engine == "torch"):
        backend = competitor.backend(model, options.threads)
        for lanes in options.lanes:
            call = steps_call(backend, lanes, layers * WEIGHT_BYTES.get(competitor.precision, 4))
            rows += rows_in_conditions(
                options, backend, competitor.name, {(f"step of {lanes} lanes", "ms"): call}, {"lanes": lanes}
            )
    return BenchmarkResult(rows, {"model": model_name(options), "threads": options.threads, "rounds": options.rounds})


def steps_call(backend: Any, lanes: int, weight_bytes: int) -> Reading:
    rng, width = np.random.default_rng(0), backend.embeddings()["code"].shape[1]
    decoder = backend.decoder(lanes, CODES + STEPS, 1, PREFIX)
    decoder.prefill(rng.standard_normal((PREFIX, width), dtype=np.float32))
    decoder.step(rng.standard_normal((lanes, CODES, width), dtype=np.float32), np.zeros(lanes, np.int64))
    columns = rng.standard_normal((lanes, 1, width), dtype=np.float32)

    def read() -> dict[str, float | None]:
        decoder.governor = backend.governor
        started, step, took = time.perf_counter(), 0, 0.0
        while step < STEPS and took < LONGEST_READING:
            decoder.step(columns, np.full(lanes, CODES + step))
            step, took = step + 1, time.perf_counter() - started
        took /= step
        return {"value": 1000 * took, "codes_per_s": lanes / took, "weights_gb_per_s": weight_bytes / took / 1e9}

    return read


def add_options(add: Callable[..., Any]) -> None:
    add("--lanes", type=counts, default=[1, 16, 32], metavar="N,…", help="numbers of lanes (default: 1,16,32)")
    add_busy_options(add)


BENCHMARK = Benchmark(
    measure, "time of a decoder step, by lanes and other programs", add_options, "--lanes 1,2 --fixed 1 --rounds 1"
)
