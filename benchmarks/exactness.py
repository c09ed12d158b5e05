"""Counts readings that differ between numbers of lanes and threads, and texts that sound otherwise among neighbours.

- `readings`: held-out sentences in two voices, a seed each, decoded on several numbers of lanes and threads. Codes and
  the bits of all hidden states are compared with those of 16 lanes and one thread.
- `company`: texts decoded, diffused and vocoded alone, and in the lanes of all others, in another order. The bytes of
  their 16-bit sound are compared, by both vocoders, HiFi-GAN also as a stream in other pieces.
- `step`: with --against REVISION, a decoder step and the same step by that revision's files, in turn. The ratio is the
  median over the pairs.

With --add, the rows are added to those that the output has: a long run can be made in parts, of the same commit.
"""

import argparse
import hashlib
import importlib.util
import itertools
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ane.backends.torch import decoder as current_decoder
from ane.backends.torch import linear as current_linear
from ane.backends.torch.backend import TorchBackend
from ane.bench.records import BenchRow, Spread
from ane.bundles import Model, open_model
from ane.bundles.weights import skeleton
from ane.commands.arguments import comma_separated, counts, natural, positive
from ane.models.tortoise.candidate import Candidate, Prompt
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.decoding import decode
from ane.models.tortoise.diffusion import spectrograms
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.sampling import InverseCdfSampler, Sampling
from ane.models.tortoise.settings import PRESETS
from ane.models.tortoise.vocoding import HifiganSound, UnivnetSound, joined
from ane.models.vocoders.streaming import VocodingWindow
from ane.system.errors import UserError
from ane.text.tokenizer import Tokenizer
from ane.voices import Voice, load_voice
from benchmarks.harness import Benchmark, BenchmarkResult, earlier_rows, joined_rows, model_name
from training.text import held_out_sentences

CHANGED = ("decoder", "linear")         # modules of ane/backends/torch that a step is made of
REFERENCE_LANES = 16
PREFIX, LENGTH, LAYERS = 100, 60, 6     # of a measured step: positions of its prefix and of its lanes, and layers
STEPS = ((1, 1), (2, 1), (5, 1), (8, 1), (16, 1), (4, 4), (16, 16))     # lanes, prefixes
SIZES = {"embedded": UnifiedVoiceConfig(layers=7, model_dim=192, heads=4, number_mel_codes=1026, start_mel_token=1024,
                                        stop_mel_token=1025),
         "official": UnifiedVoiceConfig(layers=LAYERS)}


class Readings:
    """Held-out sentences in the voices of a model, each with a seed of its own."""

    def __init__(self, model: Model, count: int):
        self.config = model.config("autoregressive")
        tokenizer = Tokenizer(model.tokenizer)
        voices = [load_voice(path, path.stem) for path in sorted(model.voices.glob("*.safetensors"))]
        pairs = itertools.product(held_out_sentences(), voices)
        self.chosen: list[tuple[Voice, Sequence[int]]] = [
            (voice, text_tokens(tokenizer.encode(text), self.config))
            for text, voice in itertools.islice(pairs, count)]
        self.sampling = Sampling(max_codes=min(200, self.config.max_mel_tokens - 1))

    def prompts(self, indices: Sequence[int]) -> list[Prompt]:
        return [Prompt(self.chosen[index][0].ar, self.chosen[index][1],
                       [InverseCdfSampler(Randomness(index).candidate(0, 0))]) for index in indices]

    def decoded(self, backend: TorchBackend, indices: Sequence[int], lanes: int) -> list[Candidate]:
        return [one for [one] in decode(backend, self.prompts(indices), self.config, self.sampling, lanes)]


def bits(candidate: Candidate) -> str:
    return hashlib.sha256(candidate.hidden.tobytes() + candidate.latents.tobytes()).hexdigest()


def compare_readings(model: Model, options: argparse.Namespace) -> Iterator[BenchRow]:
    """A row for each precision, number of threads and of lanes: how many readings differ from 16 lanes, one thread."""
    readings = Readings(model, options.readings)
    everything = range(len(readings.chosen))
    for precision in options.precision:
        backend, first = TorchBackend(model, "cpu", precision, keep=True), None
        for threads, lanes in ((1, REFERENCE_LANES), *itertools.product(options.thread_counts, options.lanes)):
            torch.set_num_threads(threads)
            found = [(one.codes, bits(one)) for one in readings.decoded(backend, everything, lanes)]
            if first is None:
                first = found
                continue
            codes = sum(one[0] != other[0] for one, other in zip(found, first, strict=True))
            differing = sum(one != other for one, other in zip(found, first, strict=True))
            print(f"{precision}, {threads} threads, {lanes} lanes: {codes} readings with other codes, {differing} with "
                  f"other bits, of {len(found)}", flush=True)
            yield BenchRow(f"torch:cpu {precision}", "readings", "differing", {"threads": threads, "lanes": lanes},
                           Spread.of([codes]), {"other_bits": differing, "readings": len(found)})


def sounds(model: Model, backend: TorchBackend, readings: Readings, indices: Sequence[int],
           candidates: Sequence[Candidate], piece: int) -> list[list[bytes]]:
    """The 16-bit sound of each reading by HiFi-GAN, by HiFi-GAN as a stream, and by diffusion and UnivNet."""
    found: list[tuple[int, list[np.ndarray]]] = []
    diffusion = PRESETS["1x10"].diffusion
    for voice in {id(readings.chosen[index][0]): readings.chosen[index][0] for index in indices}.values():
        own = [(index, one) for index, one in zip(indices, candidates, strict=True)
               if readings.chosen[index][0] is voice]
        mels = spectrograms(backend, [one.latents for _, one in own], voice.diffusion, diffusion,
                            [Randomness(index).diffusion(0, 0) for index, _ in own],
                            prediction=model.config("diffusion").prediction)
        for (index, one), mel in zip(own, mels, strict=True):
            stream = HifiganSound(backend, model.config("hifigan"), voice.ar, VocodingWindow())
            pieces = [sound for start in range(0, len(one.hidden), piece)
                      for sound in stream.feed(one.hidden[start:start + piece])]
            found.append((index, [
                joined(HifiganSound(backend, model.config("hifigan"), voice.ar), one.hidden),
                np.concatenate([*pieces, *stream.finish()]),
                joined(UnivnetSound(backend, model.config("univnet"), Randomness(index).vocoder(0, 0)), mel[0])]))
    return [[np.round(sound * 32767).astype(np.int16).tobytes() for sound in each]
            for _, each in sorted(found, key=lambda pair: pair[0])]


def compare_company(model: Model, options: argparse.Namespace) -> Iterator[BenchRow]:
    """A row for each precision: how many texts sound otherwise alone than among all others."""
    readings, indices = Readings(model, options.texts), list(range(options.texts))
    torch.set_num_threads(1)
    for precision in options.precision:
        backend = TorchBackend(model, "cpu", precision, keep=True)
        together = readings.decoded(backend, indices[::-1], max(options.lanes))[::-1]
        among = sounds(model, backend, readings, indices, together, piece=7)
        alone = [sounds(model, backend, readings, [index], readings.decoded(backend, [index], 1), piece=1)[0]
                 for index in indices]
        kinds = zip(*([one == other for one, other in zip(*pair, strict=True)]
                      for pair in zip(alone, among, strict=True)), strict=True)
        differing = dict(zip(("hifigan", "hifigan_stream", "univnet"), (kind.count(False) for kind in map(list, kinds)),
                             strict=True))
        print(f"{precision}, alone and among {len(indices)} texts: {differing}", flush=True)
        yield BenchRow(f"torch:cpu {precision}", "company", "differing", {"texts": len(indices)},
                       Spread.of([sum(differing.values())]), differing)


def module_of(revision: str, name: str) -> ModuleType:
    """A module of ane/backends/torch as it is in a revision of this repository. Raises UserError."""
    path = f"ane/backends/torch/{name}.py"
    shown = subprocess.run(["git", "show", f"{revision}:{path}"], capture_output=True, text=True,
                           cwd=Path(__file__).parent.parent)
    if shown.returncode:
        raise UserError(f"against={revision}: {shown.stderr.strip()}")
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(f"earlier_{name}", None))
    exec(compile(shown.stdout, path, "exec"), module.__dict__)
    return module


def decoder_step(decoders: ModuleType, linears: ModuleType, config: UnifiedVoiceConfig, precision: str, lanes: int,
                 prefixes: int) -> Callable[[int], float]:
    """A function of the lanes' length that returns the seconds of a step, with random weights."""
    generator = torch.Generator().manual_seed(0)
    network = skeleton(NETWORKS["autoregressive"], config).eval().requires_grad_(False)
    network.load_state_dict({key: torch.randn(tensor.shape, generator=generator) * 0.02 + (tensor.ndim == 1)
                             for key, tensor in network.state_dict().items()}, assign=True)
    linears.prepack(network.requires_grad_(False), linears.prepacking(precision))
    decoder = decoders.TorchDecoder(network, lanes, 300, torch.device("cpu"), torch.float32, prefixes, PREFIX)
    rng = np.random.default_rng(0)
    for index in range(prefixes):
        decoder.prefill(rng.standard_normal((PREFIX, config.model_dim), dtype=np.float32), index)
    columns = rng.standard_normal((lanes, 1, config.model_dim), dtype=np.float32)

    def seconds(length: int) -> float:
        start = time.perf_counter()
        decoder.step(columns, np.full(lanes, length), 0, np.arange(lanes) % prefixes)
        return time.perf_counter() - start

    return seconds


def compare_steps(options: argparse.Namespace) -> Iterator[BenchRow]:
    """A row for each size, precision and number of lanes: a step now, and its ratio to the earlier revision's."""
    earlier = [module_of(options.against, name) for name in CHANGED]
    torch.set_num_threads(1)
    for size, precision, (lanes, prefixes) in itertools.product(SIZES, options.precision, STEPS):
        if precision == "auto":
            continue
        old, new = (decoder_step(*modules, SIZES[size], precision, lanes, prefixes)
                    for modules in (earlier, (current_decoder, current_linear)))
        pairs = [(old(LENGTH + turn), new(LENGTH + turn)) for turn in range(options.turns)][2:]
        ratio = statistics.median(after / before for before, after in pairs)
        print(f"{size}, {precision}, {lanes} lanes of {prefixes} prefixes: {ratio:.3f}", flush=True)
        yield BenchRow(f"torch:cpu {precision}", "step", "ms",
                       {"size": size, "threads": 1, "lanes": lanes, "prefixes": prefixes, "against": options.against},
                       Spread.of([after * 1e3 for _, after in pairs]), {"ratio": ratio})


def measure(options: argparse.Namespace) -> BenchmarkResult:
    if options.add and options.output is None:
        raise UserError("--add: name the file with -o")
    model, rows = open_model(options.bundle or "demo"), []
    earlier = earlier_rows(options.output, model_name(options)) if options.add else []
    if options.readings:
        rows += compare_readings(model, options)
    if options.texts:
        rows += compare_company(model, options)
    if options.against:
        rows += compare_steps(options)
    return BenchmarkResult(joined_rows(earlier, rows), {"model": model_name(options)})


def add_options(add: Callable[..., Any]) -> None:
    add("--precision", type=comma_separated, default=["auto", "fp32", "bf16", "int8"], metavar="P,…",
        help="(default: auto,fp32,bf16,int8)")
    add("--readings", type=natural, default=162, metavar="N", help="0: none (default: 162)")
    add("--texts", type=natural, default=60, metavar="N", help="spoken alone and among each other (default: 60)")
    add("--lanes", type=counts, default=[1, 2, 5, 8, 16], metavar="N,…", help="(default: 1,2,5,8,16)")
    add("--thread-counts", type=counts, default=[1, 2], metavar="N,…", help="(default: 1,2)")
    add("--against", metavar="REVISION", help="a commit whose decoder steps are measured too")
    add("--add", action="store_true", help="add the rows to those that the output has")
    add("--turns", type=positive, default=22, metavar="N", help="pairs of steps, two of them not counted (default: 22)")


BENCHMARK = Benchmark(measure, "readings that depend on lanes, threads or neighbours", add_options,
                      "--readings 4 --texts 2 --lanes 1,3 --thread-counts 1 --precision int8", uses=())
