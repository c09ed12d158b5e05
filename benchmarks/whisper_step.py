"""Time of one step of Whisper's decoder, beside that of openai-whisper with its kv-cache hooks (PyTorchInference).

Competitors take turns in every round. A reading encodes nothing: each competitor gets the same random states of a
window of 30 seconds, computes the keys and values of its cross-attention, and a prefix of 4 tokens; then a token is
appended to every lane, again and again. The value is the median of these steps, from token ids to logits, without
sampling. openai-whisper runs in fp32 on the CPU, in the same process. It concatenates its cache at every step; ours is
written in place.

Without --bundle, a model of random weights is imported and converted to ONNX first. Needs openai-whisper
(pip install openai-whisper).
"""

import argparse
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from ane.backends import load_backend
from ane.backends.base import Backend
from ane.bench.measure import RepeatedCall, measure_in_rounds, timed
from ane.bench.records import BenchRow, compare
from ane.bundles import Model, open_model
from ane.commands.arguments import comma_separated, counts, positive
from ane.models.whisper.checkpoints import SIZES
from ane.models.whisper.networks import WHISPER_NETWORKS
from ane.system.errors import UserError
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult, model_name
from benchmarks.memory import run_ane

# width, heads and layers of the official models; "short" is for tests of this benchmark
WIDTHS = {"short": (64, 1, 1), "tiny": (384, 6, 4), "base": (512, 8, 6), "small": (768, 12, 12)}
PREFIX = 4
OPENAI = "openai-whisper fp32"
Reading = Callable[[], dict[str, float]]


def measure(options: argparse.Namespace) -> BenchmarkResult:
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        model = open_model(options.bundle) if options.bundle else random_model(options.size, Path(folder))
        states = np.random.default_rng(0).standard_normal(
            (model.config("decoder").n_audio_ctx, model.config("decoder").n_text_state), dtype=np.float32)
        calls = []
        for lanes in options.lanes:
            calls.append(repeated_call(OPENAI, lanes, openai_reading(model, states, lanes, options.steps)))
            for name in options.backends:
                spec, _, precision = name.partition(" ")
                backend = load_backend(spec, model, precision or "fp32", options.threads, keep=True)
                calls.append(repeated_call(name, lanes, our_reading(backend, model, states, lanes, options.steps)))
        rows = compare(measure_in_rounds(calls, options.rounds), lambda row: row.competitor == OPENAI,
                       "times_openai_whisper")
    settings = {"model": model_name(options) if options.bundle else f"random {options.size}",
                "threads": options.threads, "steps": options.steps}
    return BenchmarkResult(rows, settings, (), [BenchmarkPlot("A step of Whisper's decoder", x="lanes")])


def repeated_call(competitor: str, lanes: int, reading: Reading) -> RepeatedCall:
    return RepeatedCall(BenchRow(competitor, "whisper step", settings={"lanes": lanes}), reading)


def our_reading(backend: Backend, model: Model, states: np.ndarray, lanes: int, steps: int) -> Reading:
    """A reading of a backend: {"value": ms of a step, "start_ms": memory and prefix}."""
    tables, decoder = backend.embeddings(), backend.decoder(lanes, steps, 1, PREFIX)

    def columns(tokens: np.ndarray, first: int) -> np.ndarray:
        return (tables["token"][tokens] + tables["position"][first:first + tokens.shape[-1]]).astype(np.float32)

    def start() -> None:
        decoder.set_memory(states)
        decoder.prefill(columns(np.arange(PREFIX), 0))

    def read() -> dict[str, float]:
        _, begun = timed(start)
        times = [timed(lambda step=step: decoder.step(
            columns(np.full((lanes, 1), 100 + step), PREFIX + step), np.full(lanes, step)))[1] for step in range(steps)]
        return {"value": 1000 * median(times), "start_ms": 1000 * begun}

    return read


def openai_reading(model: Model, states: np.ndarray, lanes: int, steps: int) -> Reading:
    """The same of openai-whisper with the model's weights."""
    from whisper.decoding import PyTorchInference
    from whisper.model import ModelDimensions, Whisper

    sizes = {name: getattr(model.config(network), name) for network in WHISPER_NETWORKS for name in SIZES
             if hasattr(model.config(network), name)}
    theirs = Whisper(ModelDimensions(**sizes)).eval()
    theirs.load_state_dict({f"{network}.{key}": tensor.float() for network in WHISPER_NETWORKS
                            for key, tensor in model.tensors(network).items()})
    features = torch.from_numpy(states)[None].repeat(lanes, 1, 1)

    @torch.no_grad()
    def read() -> dict[str, float]:
        inference = PyTorchInference(theirs, PREFIX)
        tokens = torch.arange(PREFIX)[None].repeat(lanes, 1)
        _, begun = timed(lambda: inference.logits(tokens, features))
        times = []
        for step in range(steps):
            tokens = torch.cat((tokens, torch.full((lanes, 1), 100 + step)), dim=1)
            times.append(timed(lambda tokens=tokens: inference.logits(tokens, features))[1])
        inference.cleanup_caching()
        return {"value": 1000 * median(times), "start_ms": 1000 * begun}

    return read


def random_model(size: str, folder: Path) -> Model:
    """A bundle of random weights of an official size, with ONNX packages in fp32."""
    import whisper

    width, heads, layers = WIDTHS[size]
    sizes = {"n_mels": 80, "n_audio_ctx": 1500, "n_vocab": 51865, "n_text_ctx": 448} | {
        f"n_{part}_{name}": value for part in ("audio", "text")
        for name, value in (("state", width), ("head", heads), ("layer", layers))}
    torch.manual_seed(0)
    networks = {name: network.module(network.config.from_upstream(sizes)) for name, network in WHISPER_NETWORKS.items()}
    tensors = {f"{name}.{key}": torch.randn(tensor.shape) * 0.02 if "positional" in key else tensor
               for name, network in networks.items() for key, tensor in network.state_dict().items()}
    torch.save({"dims": sizes, "model_state_dict": tensors}, folder / "random.pt")
    shutil.copy(Path(whisper.__file__).parent / "assets" / "multilingual.tiktoken", folder)
    run_ane("import", str(folder / "random.pt"), "-o", str(folder / "bundle"))
    run_ane("convert", str(folder / "bundle"), "--to", "onnx", "-o", str(folder / "onnx"))
    return open_model(str(folder / "onnx"))


def unavailable(options: argparse.Namespace) -> str | None:
    if importlib.util.find_spec("whisper") is None:
        return "openai-whisper is not installed: pip install openai-whisper"
    if options.bundle and open_model(options.bundle).family.name != "whisper":
        raise UserError(f"--bundle {options.bundle} is not a Whisper model")
    return None


def add_options(add: Callable[..., Any]) -> None:
    add("--size", choices=tuple(WIDTHS), default="tiny", help="of the random model (default: tiny)")
    add("--backends", type=comma_separated, metavar="B,…",
        default=["torch:cpu", "torch:cpu fp16", "torch:cpu int8", "onnx:cpu"],
        help="our competitors: a backend, and a precision other than fp32 after a space (default: torch:cpu in "
             "fp32, fp16 and int8, onnx:cpu)")
    add("--lanes", type=counts, default=(1, 5), metavar="N,…", help="candidates of the window (default: 1,5)")
    add("--steps", type=positive, default=100, metavar="N", help="of a reading (default: 100)")


BENCHMARK = Benchmark(measure, "a step of Whisper's decoder beside openai-whisper's", add_options,
                      "--size short --steps 4 --rounds 1", unavailable, uses=("threads", "rounds"))
