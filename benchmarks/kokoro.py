"""Kokoro beside kokoro-onnx, its published runner: the sound of both for the same phonemes, sample by sample.

Both run the same weights (``benchmarks.packages``: Kokoro-82M v1.0 in int8) on ONNX Runtime, on one core by default,
and speak the first held-out sentences in turns. Ours reads the text; the published runner is given the phonemes that
ours found, since its own come from espeak-ng, which it imports and which is not needed here. All else is as by default:
the row of the voice table, the batch, the trimming of silence. The speed is seconds of speech made in a second.
"""

import argparse
import sys
import time
from collections.abc import Callable
from ctypes.util import find_library
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ane.backends import load_backend
from ane.bench.records import BenchRow, Spread
from ane.commands.arguments import comma_separated, positive
from ane.models.kokoro.model_files import VOCABULARY, KokoroModel, find_model
from ane.models.kokoro.synthesizer import KokoroSynthesizer
from ane.models.styletts.speaker import SAMPLE_RATE
from ane.speech.request import Run
from benchmarks.harness import Benchmark, BenchmarkResult
from benchmarks.packages import kokoro_graph, package_folder
from training.text import held_out_sentences

CHARACTERS = {number: character for character, number in VOCABULARY.items()}


def kokoro_files() -> KokoroModel:
    """The graph, and the tables of all voices."""
    return find_model(kokoro_graph(), package_folder("kokoro-js") / "package" / "voices")


def published_runner(model: KokoroModel, threads: int, folder: Path) -> Any:
    """``kokoro_onnx.Kokoro`` with the tables of the model as the archive that it reads."""
    import onnxruntime

    library = find_library("c")             # it loads the library of espeak-ng, and never calls it here
    stand_ins: dict[str, dict[str, Any]] = {
        "espeakng_loader": {"get_data_path": lambda: "", "get_library_path": lambda: library},
        "phonemizer": {}, "phonemizer.backend": {}, "phonemizer.backend.espeak": {},
        "phonemizer.backend.espeak.wrapper": {"EspeakWrapper": SimpleNamespace(
            set_data_path=lambda path: None, set_library=lambda path: None)}}
    for name, members in stand_ins.items():
        vars(sys.modules.setdefault(name, ModuleType(name))).update(members)
    sys.path.insert(0, str(package_folder("kokoro-onnx")))
    from kokoro_onnx import Kokoro

    tables: dict[str, Any] = {name: table[:, None] for name, table in model.read_voices().tables.items()}
    np.savez(folder / "voices.npz", **tables)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model.graph), options, providers=["CPUExecutionProvider"])
    return Kokoro.from_session(session, str(folder / "voices.npz"))


def measure(options: argparse.Namespace) -> BenchmarkResult:
    model = kokoro_files()
    ours = KokoroSynthesizer(model, load_backend("onnx:cpu", model, threads=options.threads))
    sentences = held_out_sentences()[:options.sentences]
    ours.speak("Ready?")
    rows = []
    with TemporaryDirectory() as folder:
        theirs = published_runner(model, options.threads, Path(folder))
        for voice in options.voices:
            seconds: dict[str, list[float]] = {"ane": [], "kokoro-onnx": []}
            largest, equal, lengths = 0.0, 0, 0
            for text in sentences:
                [chunk] = ours.chunks(ours.request(text, voice), Run())
                phonemes = "".join(CHARACTERS[number] for number in chunk.input_ids[0, 1:-1].tolist())
                own, spent = timed(partial(ours.speak, text, voice))
                seconds["ane"].append(len(own := own.audio) / SAMPLE_RATE / spent)
                (found, _), spent = timed(partial(theirs.create, phonemes, voice, is_phonemes=True))
                seconds["kokoro-onnx"].append(len(found) / SAMPLE_RATE / spent)
                lengths += len(own) == len(found)
                equal += np.array_equal(own, found)
                if len(own) == len(found):
                    largest = max(largest, float(np.abs(own - found).max()))
            figures = {"sentences": len(sentences), "equal": equal, "same_length": lengths, "difference": largest}
            for system, rates in seconds.items():
                rows.append(BenchRow(system, "speed", "× real time", {"voice": voice}, Spread.of(rates),
                                     figures if system == "ane" else {}))
    return BenchmarkResult(rows, {"threads": options.threads, "sentences": len(sentences)})


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    return call(), time.perf_counter() - started


def add_options(add: Callable[..., Any]) -> None:
    add("--voices", type=comma_separated, default=["af_heart", "af_bella", "am_michael", "bf_emma"],
        metavar="NAME,…", help="(default: af_heart, af_bella, am_michael, bf_emma)")
    add("--sentences", type=positive, default=12, metavar="N", help="the first N (default: %(default)s)")
    add("--threads", type=positive, default=1, metavar="N", help="CPU threads of each (default: %(default)s)")


BENCHMARK = Benchmark(measure, "Kokoro beside its published runner, sample by sample", add_options, None, uses=())
