"""Bytes that a step of the decoder moves on a Mac, at the official size, by lanes and codes.

The host's own code decodes, on functions that compute nothing and count: what is handed over as float32 and converted,
what a program reads and writes of the kv-cache, weights and values that do not stay on the chip (the parts of `ane
plan`'s formula, ``converters.proof.cost``). Programs of one and of two layers are counted; the rest is the same for
every layer. A figure is the mean of the last 64 steps before that number of codes, with the calls that store columns in
a state; a second table has the mean of the very last ones, as many as there are between two stores, which all take the
bucket of that number of codes. Milliseconds are estimates of that formula, not measurements.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ane.backends.mil.package import Package
from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.packaged.functions import PackageFunction
from ane.bench.records import BenchRow, Spread
from ane.bundles.weights import skeleton
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from benchmarks.harness import Benchmark, BenchmarkResult
from converters.coreml.graph import CoreMLGraph, Style
from converters.decoder_graphs import RECENT, cached_steps, slot_buckets, stores
from converters.neural_engine import CHIPS
from converters.proof.cost import DISPATCH, cost, roofline
from converters.tortoise.autoregressive import decoder_graphs
from converters.tortoise.functions import UPSTREAM_CODES, pool_slots

OFFICIAL = UnifiedVoiceConfig()
PREFIX, LANES, CODES = 100, (1, 8, 16), (50, 150, 300, 500)
WINDOW = 64             # a multiple of the steps between two stores
UNCOUNTED = ("calls", "flops", "integers", "copied by the host")     # no bytes that the formula counts
SHOWN = ("M1", "M2", "M3", "M4")
Counts = Counter        # bytes by part, "calls" and "flops"


class CountedFunction:
    """A function as ``CoreMLRuntime`` loads it, with buffers; it counts and returns zeros."""

    def __init__(self, package: Path, counts: Counts, function: str | None = None):
        self.counts, program = counts, Package(package).function(function)
        counted = cost(Package(package), function)
        self.moved = Counts({
            "weights": counted.unique, "cache read": counted.cache_read, "cache written": counted.cache_written,
            "rewritten": counted.rewritten, "handed over": counted.converted, "large": 2 * counted.large,
            "calls": 1, "flops": counted.flops,
            "integers": sum(4 * type.size for type in program.inputs.values() if type.dtype == "int32")})
        self.buffers = {name: np.zeros(type.shape, np.int32 if type.dtype == "int32" else np.float32)
                        for name, type in program.inputs.items()}
        self.outputs = {name: np.zeros(type.shape, np.float32) for name, type in program.outputs.items()}

    def predict(self, inputs: Mapping[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]:
        self.counts.update(self.moved)
        self.counts["copied by the host"] += 2 * sum(
            array.nbytes for name, array in inputs.items() if array is not self.buffers[name])
        return self.outputs

    def make_state(self) -> None:
        return None


def decoder_functions(config: UnifiedVoiceConfig, folder: Path, counts: Counts) -> list[PackageFunction]:
    """The steps and stores of a decoder with the buckets of the official one."""
    network = skeleton(NETWORKS["autoregressive"], config)
    network.load_state_dict({key: torch.randn(value.shape) for key, value in network.state_dict().items()},
                            assign=True)
    pools = {lanes: slot_buckets(pool_slots(OFFICIAL, lanes, UPSTREAM_CODES), OFFICIAL.decoder_shape)
             for lanes in (1, 16)}
    graphs = decoder_graphs(network.eval(), 1.0)
    return [counted(graph, folder, counts) for graph in (
        *cached_steps(graphs, pools, "io"), *cached_steps(graphs, pools, "state"), *stores(graphs, pools))]


def counted(graph: CoreMLGraph, folder: Path, counts: Counts) -> PackageFunction:
    path = folder / f"{graph.name}.mlpackage"
    graph.build(Style()).save(str(path))
    function = PackageFunction(None, path, graph.name, graph.bucket, "ALL", graph.kind)
    function._loaded = CountedFunction(path, counts)
    return function


def decode(functions: Sequence[PackageFunction], kind: str, lanes: int, config: UnifiedVoiceConfig, counts: Counts,
           codes: Sequence[int]) -> dict[tuple[int, int], Counts]:
    """Mean counts of the last steps until all lanes have so many codes, by codes and ``windows``."""
    shape = config.decoder_shape
    decoder = PackagedDecoder([], [one for one in functions if one.kind == kind],
                              [one for one in functions if one.kind == "store"], lanes, UPSTREAM_CODES,
                              (shape.layers, shape.heads, shape.head_width), 1.0, np.float16)
    decoder.prefill(np.ones((PREFIX, shape.width), np.float32))
    column, before, found = np.ones((lanes, 1, shape.width), np.float32), {}, {}
    for position in range(max(codes)):
        before[position] = Counts(counts)
        decoder.step(column, np.full(lanes, position))
        for window in windows(lanes) if position + 1 in codes else ():
            steps = min(window, position + 1)
            start = before[position + 1 - steps]
            found[position + 1, window] = Counts({name: (counts[name] - start[name]) / steps for name in counts})
    return found


def windows(lanes: int) -> tuple[int, int]:
    """Steps that a figure is the mean of."""
    return WINDOW, RECENT // lanes


def measure(options: argparse.Namespace) -> BenchmarkResult:
    counted_layers: dict[int, dict[tuple[str, int, int, int], Counts]] = {}
    for layers in (1, 2):
        config = replace(OFFICIAL, layers=layers)
        with tempfile.TemporaryDirectory() as folder:
            counts = Counts()
            functions = decoder_functions(config, Path(folder), counts)
            counted_layers[layers] = {
                (cache, lanes, *of): found for cache, kind in (("io", "step"), ("state", "state"))
                for lanes in options.lanes for of, found in decode(functions, kind, lanes, config, counts,
                                                                   options.codes).items()}
    rows, cells, last = [], [], []
    for (cache, lanes, codes, window), one in counted_layers[1].items():
        two, more = counted_layers[2][cache, lanes, codes, window], OFFICIAL.layers - 1
        whole = {name: one[name] + more * (two[name] - one[name]) for name in two}
        moved = sum(value for name, value in whole.items() if name not in UNCOUNTED)
        times = {chip: 1000 * (roofline(moved, whole["flops"], CHIPS[chip], 0)[0] + whole["calls"] * DISPATCH)
                 for chip in SHOWN}
        (cells if window == WINDOW else last).append([
            cache, str(lanes), str(codes), f"{moved / 1e6:.0f}", f"{whole['handed over'] / 1e6:.0f}",
            *(f"{times[chip]:.1f}" for chip in SHOWN)])
        figures = {f"{name.replace(' ', '_')}_MB": round(value / 1e6, 1) for name, value in whole.items()
                   if name not in ("calls", "flops", "integers")} | {"calls": round(whole["calls"], 3)} | {
                   f"{chip}_ms": round(time, 1) for chip, time in times.items()}
        rows.append(BenchRow(cache, "step", "MB", {"lanes": lanes, "codes": codes, "steps": window},
                             Spread.of([round(moved / 1e6, 1)]), figures))
    columns = ["cache", "lanes", "codes", "MB a step", "of which handed over", *(f"{chip}, ms" for chip in SHOWN)]
    return BenchmarkResult(rows, {"prefix": PREFIX, "capacity": UPSTREAM_CODES},
                           more={"tables": [{"columns": columns, "rows": part} for part in (cells, last)]})


def add_options(add: Callable[..., Any]) -> None:
    from ane.commands.arguments import counts

    add("--lanes", type=counts, default=LANES, metavar="N,…", help="(default: 1,8,16)")
    add("--codes", type=counts, default=CODES, metavar="N,…", help="(default: 50,150,300,500)")


BENCHMARK = Benchmark(measure, "bytes that a decoder step moves on a Mac", add_options, "--lanes 1 --codes 10", uses=())
