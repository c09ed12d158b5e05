"""Measure how TensorRT runs a FastSpeech model, with the options of NVIDIA's example.

Each row of the result has other options. Its value is the time in milliseconds for a batch of texts, from symbols to
mels. A text has 128 symbols and 768 frames, or fewer if the model has fewer positions. TensorRT first builds an engine
for the options. So a row also has the seconds of three earlier calls: the first call, which builds the engine, the
first call of a second backend, which finds the engine in the cache, and a call with ``rebuild_engines``. A backend
other than onnx:tensorrt has only the first row.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ane.backends import load_backend
from ane.backends.base import Backend
from ane.bench.records import BenchRow, Spread
from ane.bundles import open_model
from benchmarks.harness import Benchmark, BenchmarkResult, model_name

SYMBOLS, FRAMES = 128, 768
OPTIONS: dict[str, tuple[int, dict[str, Any]]] = {  # row → number of texts in a batch, and options of the engine
    "usual ranges": (1, {}),
    "fp16": (1, {"engine_fp16": True}),
    "NVIDIA's ranges": (1, {"engine_symbols": (32, 64, 96, 128), "engine_frames": (256, 512, 768, 1024)}),
    "batch of 8": (8, {"engine_batch": 8}),
    "workspace of 1 GB": (1, {"engine_workspace": 1.0}),
}


def measure(options: argparse.Namespace) -> BenchmarkResult:
    model, rows, built = open_model(options.bundle), list[BenchRow](), options.backend == "onnx:tensorrt"
    positions = model.config("fastspeech").max_seq_len
    symbols = min(SYMBOLS, positions)
    frames = min(FRAMES, positions) // symbols * symbols
    for what, (batch, engines) in OPTIONS.items() if built else [*OPTIONS.items()][:1]:
        forced = {**engines, "rebuild_engines": True} if built else engines
        first, cached, rebuilt = (
            load_backend(options.backend, model, keep=True, **engine_options)
            for engine_options in (engines, engines, forced)
        )
        call = partial(seconds, batch=batch, symbols=symbols, frames=frames)
        figures = {"first_s": call(first), "cached_s": call(cached), "rebuilt_s": call(rebuilt)}
        values = [1000 * call(cached) for _ in range(options.rounds)]
        rows.append(BenchRow(options.backend, what, "ms", {"batch": batch}, Spread.of(values), figures))
    return BenchmarkResult(
        rows, {"model": model_name(options), "symbols": symbols, "frames": frames, "rounds": options.rounds}
    )


def seconds(backend: Backend, batch: int, symbols: int, frames: int) -> float:
    """Measure the seconds of one call from symbols to mels. Every symbol gets the same number of frames."""
    started = time.perf_counter()
    ids = np.arange(batch * symbols).reshape(batch, symbols) % 100 + 1
    states = backend.run("text", ids=ids, mask=np.ones((batch, symbols), np.float32))[..., :-1]
    alignment = np.repeat(np.eye(symbols, dtype=np.float32), frames // symbols, axis=1)
    backend.run(
        "mel",
        states=np.ascontiguousarray(states),
        alignment=np.repeat(alignment[None], batch, axis=0),
        mask=np.ones((batch, frames), np.float32),
    )
    return time.perf_counter() - started


def add_options(add: Callable[..., Any]) -> None:
    add("--backend", default="onnx:tensorrt", metavar="NAME", help="backend (default: onnx:tensorrt)")


BENCHMARK = Benchmark(
    measure,
    "building, caching and running TensorRT's engines of a FastSpeech model",
    add_options,
    None,
    ("bundle", "rounds"),
)
