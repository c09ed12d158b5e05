"""KittenTTS: chunks computed in parallel, against one after the other, and the cost of the commands.

No published graph is used: a graph of KittenTTS's interface with 15 million random parameters is written, without
random nodes, so that every run must return the same samples. Nearly all of its parameters are of convolutions at the
rate of the ids; two thirds of its multiplications are at 60 times that rate, as in a vocoder. The phonemes are the
letters of the text. The competitors take turns in every round, in one process.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ane.bench.measure import RepeatedCall, measure_in_rounds, timed
from ane.bench.records import BenchRow
from ane.commands.arguments import positive
from ane.models.kitten import open_kitten
from ane.models.kitten.settings import KittenSettings
from ane.system.errors import UserError
from ane.system.machine import usable_cores
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult
from benchmarks.memory import run_ane, run_command

SENTENCE = "The train to the north leaves at nine, and the slow one over the bridge a little later, says the board"
VOICE = "expr-voice-5-m"
RATE_FACTOR, SAMPLES = 60, 600      # positions of the vocoder part, and samples, for each id
EQUAL_RUNS = 10
# name → workers, threads of each; None: ONNX Runtime's choice, which is all cores
COMPETITORS: dict[str, tuple[int, int | None]] = {
    "one after the other, 1 thread": (1, 1), "one after the other, all cores": (1, None),
    "2 workers of 1 thread": (2, 1)}
SPEAK = """
import sys
from ane.models.kitten import open_kitten
open_kitten(sys.argv[1], phonemizer=lambda text: text, workers=int(sys.argv[2]), threads=1).speak(sys.argv[3])
"""


def write_model(folder: Path, width: int, layers: int, inner: int) -> int:
    """Write config.json, model.onnx and voices.npz; returns the number of the graph's parameters."""
    from onnx import save

    values = np.random.default_rng(0)
    np.savez(folder / "voices.npz", **{VOICE: values.standard_normal((400, 256)).astype(np.float32)})
    model = kitten_graph(width, layers, inner)
    save(model, folder / "model.onnx")
    (folder / "config.json").write_text(
        json.dumps({"type": "ONNX2", "model_file": "model.onnx", "voices": "voices.npz"}), encoding="utf-8")
    return sum(int(np.prod(weight.dims)) for weight in model.graph.initializer)


def kitten_graph(width: int, layers: int, inner: int) -> Any:
    """Ids to ``width`` channels, ``layers`` convolutions of 5, then 3 of 7 on ``inner`` channels at the higher rate."""
    from onnx import TensorProto, helper, numpy_helper

    values, weights = np.random.default_rng(1), []

    def weight(name: str, *shape: int) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        weights.append(numpy_helper.from_array((values.standard_normal(shape) * scale).astype(np.float32), name))
        return name

    def constant(name: str, content: list[float], dtype: type) -> str:
        weights.append(numpy_helper.from_array(np.array(content, dtype), name))
        return name

    node, last = helper.make_node, "x"
    nodes = [node("Gather", [weight("embedding", 178, width), "input_ids"], ["embedded"]),        # (1, T, C)
             node("MatMul", ["style", weight("styling", 256, width)], ["styled"]),
             node("Add", ["embedded", "styled"], ["conditioned"]), node("Div", ["conditioned", "speed"], ["paced"]),
             node("Transpose", ["paced"], ["x"], perm=[0, 2, 1])]                                 # (1, C, T)

    def convolutions(part: str, count: int, channels: int, kernel: int) -> None:
        nonlocal last
        for layer in range(count):
            name = f"{part}{layer}"
            nodes.extend([node("Conv", [last, weight(f"{name}.weight", channels, channels, kernel)], [f"{name}.conv"],
                               pads=[kernel // 2, kernel // 2]),
                          node("Tanh", [f"{name}.conv"], [name])])
            last = name

    convolutions("acoustic", layers, width, 5)
    nodes += [node("Conv", [last, weight("narrow", inner, width, 1)], ["narrowed"]),
              node("Resize", ["narrowed", "", constant("scales", [1, 1, RATE_FACTOR], np.float32)], ["raised"],
                   mode="nearest")]                                                               # (1, inner, 60·T)
    last = "raised"
    convolutions("vocoder", 3, inner, 7)
    nodes += [node("Conv", [last, weight("output", SAMPLES // RATE_FACTOR, inner, 1)], ["columns"]),
              node("Transpose", ["columns"], ["rows"], perm=[0, 2, 1]), node("Tanh", ["rows"], ["bounded"]),
              node("Reshape", ["bounded", constant("flat", [-1], np.int64)], ["waveform"])]
    inputs = [helper.make_tensor_value_info(*each) for each in (
        ("input_ids", TensorProto.INT64, [1, "T"]), ("style", TensorProto.FLOAT, [1, 256]),
        ("speed", TensorProto.FLOAT, [1]))]
    graph = helper.make_graph(nodes, "kitten", inputs,
                              [helper.make_tensor_value_info("waveform", TensorProto.FLOAT, ["S"])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def measure(options: argparse.Namespace) -> BenchmarkResult:
    """Rows of each competitor by chunks, and of the commands. Raises UserError when two runs differ in a sample."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "model"
        folder.mkdir()
        parameters = write_model(folder, options.width, options.layers, options.inner)
        calls = [RepeatedCall(BenchRow(name, "speech", "s", {"chunks": chunks}), call)
                 for chunks in options.chunks for name, call in speech_calls(folder, chunks)]
        rows = measure_in_rounds(calls, options.rounds)
        rows += process_rows(folder, Path(directory) / "bundle")
        size = (folder / "model.onnx").stat().st_size
    settings = {"parameters": parameters, "graph_bytes": size, "cores": usable_cores(), "rounds": options.rounds}
    notes = [f"All runs of a text returned the same samples, of {EQUAL_RUNS} with 2 workers too. The graph's weights "
             "are random and the phonemes are letters; no published graph was measured."]
    return BenchmarkResult(rows, settings, notes, [BenchmarkPlot("Seconds for a text", "speech", "chunks")])


def speech_calls(folder: Path, chunks: int) -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    """Each competitor with the call that speaks a text of that many chunks, after runs that must all be equal."""
    text = f"{SENTENCE}. " * chunks
    synthesizers = {name: open_kitten(folder, lambda text: text, *shares) for name, shares in COMPETITORS.items()}
    speak = {name: partial(synthesizer.speak, text, settings=KittenSettings(published=True))
             for name, synthesizer in synthesizers.items()}
    expected = speak["one after the other, 1 thread"]()
    if len(expected.chunks) != chunks:
        raise UserError(f"the text has {len(expected.chunks)} chunks, not {chunks}")
    for _ in range(EQUAL_RUNS):
        if not np.array_equal(speak["2 workers of 1 thread"]().audio, expected.audio):
            raise UserError(f"two runs of {chunks} chunks differ")

    def read(call: Callable[[], Any]) -> dict[str, Any]:
        speech, seconds = timed(call)
        if len(speech.audio) != len(expected.audio):
            raise UserError(f"{len(speech.audio)} samples instead of {len(expected.audio)}")
        return {"value": seconds, "audio_s": speech.seconds}

    return [(name, partial(read, call)) for name, call in speak.items()]


def process_rows(folder: Path, bundle: Path) -> list[BenchRow]:
    """The cost of `ane import`, and of processes that load a bundle and speak a sentence or 15.

    Their peak is left out: Linux counts the resident set of this process, which starts them, in it. ``private_gb`` is
    their own.
    """
    rows = [run_ane("import", str(folder), "-o", str(bundle)).row("ane import")]
    for chunks in (1, 15):
        cost = run_command(sys.executable, "-c", SPEAK, str(bundle), "2", f"{SENTENCE}. " * chunks)
        rows.append(cost.row("load and speak, 2 workers", sentences=chunks))
    return [replace(row, peak_bytes=None) for row in rows]


def add_options(add: Callable[..., Any]) -> None:
    add("--chunks", type=positive, nargs="+", default=[5, 15], metavar="N", help="(default: 5 15)")
    for name, size, what in (("width", 512, "channels at the rate of the ids"), ("layers", 11, "convolutions of these"),
                             ("inner", 160, "channels at the higher rate")):
        add(f"--{name}", type=positive, default=size, metavar="N", help=f"{what} (default: {size})")


BENCHMARK = Benchmark(measure, "KittenTTS: chunks in parallel", add_options,
                      quick="--chunks 2 --width 8 --layers 1 --inner 8 --rounds 1", uses=("rounds",))
