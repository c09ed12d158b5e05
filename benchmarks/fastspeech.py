"""Speed of FastSpeech from symbol ids to mel, beside NVIDIA's own class on the same torch and the same weights.

Contestants take turns in every round, in one process, on the CPU, in fp32 where no other precision is named. A reading
is one call: the value is its time in ms, ``audio_s_per_s`` the seconds of audio in the mel for each second of it,
``times_one_line`` this rate over the competitor's own rate for one line. Every line is the same text of 128 characters,
as in NVIDIA's perf_infer.py; neither the text's preparation nor the vocoder is measured.

Without --bundle, a model of random weights that speaks at a natural pace is imported and converted to ONNX first.
NVIDIA's class takes part with --nvidia DIR, the folder CUDA-Optimized/FastSpeech of NVIDIA/DeepLearningExamples. Its
imports need unidecode and PyYAML (pip install unidecode pyyaml).
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ane.backends import load_backend
from ane.bench.measure import RepeatedCall, measure_in_rounds, timed
from ane.bench.records import BenchRow, compare
from ane.bundles import Model, open_model
from ane.commands.arguments import comma_separated, counts
from ane.models.fastspeech.chunks import split_into_symbols
from ane.models.fastspeech.networks.acoustic import FastSpeech, FastSpeechConfig
from ane.models.fastspeech.networks.layers import position_table
from ane.models.fastspeech.settings import FastSpeechSettings
from ane.models.fastspeech.stages import HOP, SAMPLE_RATE
from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer
from ane.models.fastspeech.text import text_to_ids
from ane.speech.request import Run
from ane.system.errors import UserError
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult, model_name
from benchmarks.memory import run_ane

TEXT = ("The old harbour was quiet in the early morning, and the boats lay side by side while the first gulls circled "
        "above the market hall.")[:128]
FRAMES_PER_SYMBOL = 6.0         # about 14 symbols a second
SIZES = {"default": FastSpeechConfig(), "short": FastSpeechConfig(
    max_seq_len=1024, d_model=64, phoneme_side_n_layer=1, mel_side_n_layer=1, phoneme_side_conv1d_filter_size=64,
    mel_side_conv1d_filter_size=64, phoneme_side_head=1, mel_side_head=1, duration_predictor_filter_size=32)}
NVIDIA = "NVIDIA's class fp32"
Reading = Callable[[], dict[str, float]]


def measure(options: argparse.Namespace) -> BenchmarkResult:
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        model = open_model(options.bundle) if options.bundle else random_model(SIZES[options.size], Path(folder))
        backends = {name: load_backend(spec, model, precision or "fp32", options.threads, keep=True)
                    for name in options.backends for spec, _, precision in [name.partition(" ")]}
        calls = []
        for lines in options.lines:
            if options.nvidia:
                calls.append(repeated_call(NVIDIA, lines, nvidia_reading(nvidia_class(options.nvidia), model, lines)))
            calls += [repeated_call(name, lines, our_reading(FastSpeechSynthesizer(model, backend), lines))
                      for name, backend in backends.items()]
        rows = measure_in_rounds(calls, options.rounds)
    rows = compare(rows, lambda row: row.competitor == NVIDIA, "times_nvidia")
    settings = {"model": model_name(options) if options.bundle else f"random {options.size}",
                "threads": options.threads, "symbols": len(text_to_ids(TEXT))}
    return BenchmarkResult(with_batch_gain(rows), settings, (), [BenchmarkPlot("FastSpeech, ids to mel", x="lines")])


def repeated_call(competitor: str, lines: int, reading: Reading) -> RepeatedCall:
    return RepeatedCall(BenchRow(competitor, "ids to mel", settings={"lines": lines}), reading)


def with_batch_gain(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """The rows with ``times_one_line``."""
    alone = {row.competitor: row.figures["audio_s_per_s"] for row in rows if row.settings["lines"] == 1 and row.value}
    return [replace(row, figures={**row.figures,
                                  "times_one_line": row.figures["audio_s_per_s"] / alone[row.competitor]})
            if row.value and row.competitor in alone else row for row in rows]


def figures(frames: int, seconds: float) -> dict[str, float]:
    return {"value": 1000 * seconds, "audio_s_per_s": frames * HOP / SAMPLE_RATE / seconds}


def our_reading(synthesizer: FastSpeechSynthesizer, lines: int) -> Reading:
    """All lines in one pass, with the rounding of durations and the alignment, which the host makes."""
    settings = FastSpeechSettings(split=None, batch=lines)
    chunks = split_into_symbols(TEXT, None, synthesizer.most_symbols) * lines

    def run() -> list[np.ndarray]:
        return list(synthesizer.mels(synthesizer.encode(chunks, settings, Run()), settings, Run()))

    def read() -> dict[str, float]:
        mels, seconds = timed(run)
        return figures(sum(mel.shape[1] for mel in mels), seconds)

    return read


def nvidia_class(folder: Path) -> Any:
    """The class in NVIDIA's folder. Raises UserError when it cannot be imported."""
    if not (folder / "fastspeech" / "model" / "fastspeech.py").is_file():
        raise UserError(f"--nvidia {folder}: no fastspeech/model/fastspeech.py there; give the folder "
                        "CUDA-Optimized/FastSpeech of NVIDIA/DeepLearningExamples")
    sys.path.insert(0, str(folder))
    try:
        from fastspeech.model.fastspeech import Fastspeech
    except ImportError as error:
        raise UserError(f"--nvidia {folder}: {error}; its imports need: pip install unidecode pyyaml") from error
    finally:
        sys.path.remove(str(folder))
    return Fastspeech


def nvidia_reading(theirs: Any, model: Model, lines: int) -> Reading:
    """The same of NVIDIA's class, with the model's weights."""
    config = model.config("fastspeech")
    network = theirs(
        config.max_seq_len, config.d_model, config.phoneme_side_n_layer, config.phoneme_side_head,
        config.phoneme_side_conv1d_filter_size, config.d_model, config.mel_side_n_layer, config.mel_side_head,
        config.mel_side_conv1d_filter_size, config.d_model, config.fft_conv1d_kernel, config.fft_conv1d_kernel // 2,
        config.duration_predictor_filter_size, 3, 0.1, config.n_mels).eval()
    network.load_state_dict({key: tensor.float() for key, tensor in with_positions(model).items()})
    ids = torch.tensor(text_to_ids(TEXT)).repeat(lines, 1)
    positions = torch.arange(1, ids.shape[1] + 1).repeat(lines, 1)

    @torch.no_grad()
    def run() -> torch.Tensor:
        return network(ids, positions)[1]

    def read() -> dict[str, float]:
        mask, seconds = timed(run)
        return figures(int(mask.sum()), seconds)

    return read


def with_positions(model: Model) -> dict[str, torch.Tensor]:
    """The state dict in NVIDIA's layout, with its tables of positions."""
    config = model.config("fastspeech")
    return dict(model.tensors("fastspeech")) | position_tables(config)


def position_tables(config: FastSpeechConfig) -> dict[str, torch.Tensor]:
    table = torch.cat([torch.zeros(1, config.d_model), position_table(config.max_seq_len, config.d_model)])
    return {f"{side}.position.weight": table for side in ("phoneme_side", "mel_side")}


def random_model(config: FastSpeechConfig, folder: Path) -> Model:
    """A bundle of random weights, with ONNX packages in fp32."""
    torch.manual_seed(0)
    state = FastSpeech(config).state_dict() | position_tables(config)
    last = "length_regulator.duration_predictor.linear_layer"
    state[f"{last}.weight"] *= 0.1
    state[f"{last}.bias"].fill_(float(np.log1p(FRAMES_PER_SYMBOL)))
    torch.save({"step": 0, "model": {f"module.{key}": tensor for key, tensor in state.items()}}, folder / "random.pt")
    run_ane("import", str(folder / "random.pt"), "-o", str(folder / "bundle"))
    run_ane("convert", str(folder / "bundle"), "--to", "onnx", "-o", str(folder / "onnx"))
    return open_model(str(folder / "onnx"))


def unavailable(options: argparse.Namespace) -> str | None:
    if options.bundle and open_model(options.bundle).family.name != "fastspeech":
        return f"--bundle {options.bundle} is not a FastSpeech model"
    return None


def add_options(add: Callable[..., Any]) -> None:
    add("--size", choices=tuple(SIZES), default="default", help="of the random model (default: NVIDIA's)")
    add("--nvidia", type=Path, metavar="DIR",
        help="NVIDIA's folder CUDA-Optimized/FastSpeech, for a comparison with its class")
    add("--backends", type=comma_separated, default=["torch:cpu", "onnx:cpu"], metavar="B,…",
        help="our competitors: a backend, and a precision other than fp32 after a space (default: torch:cpu, onnx:cpu)")
    add("--lines", type=counts, default=(1, 8), metavar="N,…", help="lines spoken in one pass (default: 1,8)")


BENCHMARK = Benchmark(measure, "FastSpeech beside NVIDIA's class", add_options, "--size short --rounds 1", unavailable,
                      uses=("threads", "rounds"))
