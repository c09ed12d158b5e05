"""`decode`, `diffusion` and `backends`: the time of a decoder step, a denoising step and a vocoder.

Competitors take turns in every round. A call runs one stage on host arrays, so copies to the device and back count. A
decoder step decodes one code of every lane, without sampling, after a prefix of 44 positions and half of a sentence's
86 codes. A guided denoising step runs the network with and without conditioning; upstream makes two calls, one
utterance at a time.

With one thread, "core_ms" is the time that a call kept a core busy: other programs change it less than its duration.

Shares are relative to what the machine reached in the same rounds: its memory bandwidth, for weights, keys and values
read once, and its throughput of large matrix products in that precision, or in fp32 where that is faster.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ane.audio.mel import HOP
from ane.backends.base import Backend
from ane.bench.measure import RepeatedCall, measure_in_rounds, repeated
from ane.bench.records import BenchRow, compare
from ane.bench.stage_calls import TIMESTEP, StageCalls
from ane.bench.workload import CODES, SentenceWork
from ane.bundles import Model
from ane.commands.arguments import comma_separated, counts, positive
from ane.models.tortoise.networks.univnet import SILENT_FRAMES
from ane.models.tortoise.settings import SAMPLE_RATE
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from benchmarks.competitors import Competitor, chosen_competitors, opened_model
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult, model_name
from benchmarks.peaks import MachinePeaks, Operations
from benchmarks.upstream import UpstreamProcess

NETWORKS = {"decoder": ("autoregressive",), "diffusion": ("diffusion",), "vocoders": ("univnet", "hifigan")}
KNOWN = ("upstream", "eager", "torch", "onnx", "coreml", "mil")
WORK = SentenceWork(candidates=1, steps=1, guided=True, frames=400, capacity=CODES)
Reading = Callable[[], dict[str, Any]]


class StageContest:
    """The calls of one part of a benchmark, and the work of each call.

    Attributes:
        work: for each call its competitor, operations of a call, and GB that it reads (None: not counted).
    """

    def __init__(self, options: argparse.Namespace, model: Model, stack: ExitStack):
        self.options, self.model, self.stack = options, model, stack
        self.operations = Operations(model)
        self.calls: list[RepeatedCall] = []
        self.work: list[tuple[Competitor, int | None, float | None]] = []

    def enter(self, part: str, competitor: Competitor) -> None:
        """Add a competitor's calls; one that cannot run gets a row with its error."""
        if competitor.engine == "upstream":
            self.enter_upstream(part, competitor)
            return
        try:
            backend = competitor.backend(self.model, self.options.threads)
            packages = getattr(backend, "packages", None)
            missing = [name for name in NETWORKS[part] if packages is not None and name not in packages]
            if missing:
                raise UserError(f"the bundle has no package of {missing[0]} for {competitor.engine}")
            for what, settings, reading, operations, gigabytes in getattr(self, part)(competitor, backend):
                self.add(competitor, what, settings, reading, operations, gigabytes)
        except UserError as error:
            message = str(error)

            def fail() -> dict[str, Any]:
                raise UserError(message)

            self.add(competitor, part, {}, fail)

    def add(self, competitor: Competitor, what: str, settings: dict[str, int], reading: Reading,
            operations: int | None = None, gigabytes: float | None = None) -> None:
        self.calls.append(RepeatedCall(BenchRow(competitor.name, what, settings=settings), reading))
        self.work.append((competitor, operations, gigabytes))

    def decoder(self, competitor: Competitor, backend: Backend) -> Iterator[tuple]:
        calls, prefix = StageCalls(backend, WORK), WORK.prefix
        yield "prefill", {}, self.reading(calls.prefill()), self.operations.prefill(prefix), None
        for lanes in self.options.lanes:
            yield ("decoder step", {"lanes": lanes}, self.reading(calls.step(lanes), lanes),
                   self.operations.step(lanes, prefix + CODES // 2),
                   competitor.step_gigabytes(backend, lanes, prefix, CODES // 2))

    def diffusion(self, competitor: Competitor, backend: Backend) -> Iterator[tuple]:
        for frames in self.options.frames:
            calls = StageCalls(backend, replace(WORK, frames=frames))
            for utterances in self.options.utterances:
                yield ("guided denoising step", {"frames": frames, "utterances": utterances},
                       self.reading(calls.denoise(True, utterances)),
                       utterances * self.operations.denoise(2, frames), None)

    def vocoders(self, competitor: Competitor, backend: Backend) -> Iterator[tuple]:
        config = self.model.config("univnet")
        for frames in self.options.frames:
            calls, seconds = StageCalls(backend, replace(WORK, frames=frames)), frames * HOP / SAMPLE_RATE
            shapes = {"univnet": ((1, config.n_mel_channels, frames), (1, config.noise_dim, frames + SILENT_FRAMES)),
                      "hifigan": ((1, self.model.widths[0], frames), (1, self.model.widths[0]))}
            for network in NETWORKS["vocoders"]:
                yield (network, {"frames": frames}, self.reading(calls.vocoder(network), seconds=seconds),
                       self.operations.vocode(network, *shapes[network]), None)

    def reading(self, call: Callable[[], object], lanes: int | None = None, seconds: float | None = None) -> Reading:
        """The median of some calls, in ms, with codes a second of all lanes, or seconds of work a second of audio."""
        def read() -> dict[str, Any]:
            before = time.process_time()
            times = sorted(repeated(call, self.options.calls))
            core = {} if self.options.threads > 1 else {"core_ms": 1000 * (time.process_time() - before) / len(times)}
            value = times[len(times) // 2]
            rate = {} if lanes is None else {"tokens_per_s": lanes / value}
            sound = {} if seconds is None else {"real_time_factor": value / seconds}
            return {"value": 1000 * value, **core, **rate, **sound}

        return read

    def enter_upstream(self, part: str, competitor: Competitor) -> None:
        options = self.options
        if part == "vocoders":
            return
        heads = self.model.config("autoregressive").heads if part == "decoder" else (
            self.model.config("diffusion").num_heads)
        process = self.stack.enter_context(UpstreamProcess(
            options.upstream_python, options.checkpoints, part, options.threads, heads))

        def step(lanes: int) -> dict[str, Any]:
            answer = process.ask({"lanes": lanes, "prefix": WORK.prefix, "steps": options.calls})
            median = sorted(answer["step_ms"])[len(answer["step_ms"]) // 2]
            core = {} if options.threads > 1 else {"core_ms": answer["core_ms"]}
            return {"value": median, **core, "tokens_per_s": 1000 * lanes / median, "prefill_ms": answer["prefill_ms"]}

        def denoise(frames: int, utterances: int) -> dict[str, Any]:
            answers = [process.ask({"frames": frames}) for _ in range(utterances)]
            core = {} if options.threads > 1 else {"core_ms": sum(answer["core_ms"] for answer in answers)}
            return {"value": sum(answer["step_ms"] for answer in answers), **core}

        if part == "decoder":
            for lanes in options.upstream_lanes or options.lanes:
                self.add(competitor, "decoder step", {"lanes": lanes}, lambda lanes=lanes: step(lanes))
        else:
            for frames in options.frames:
                for utterances in options.utterances:
                    self.add(competitor, "guided denoising step", {"frames": frames, "utterances": utterances},
                             lambda frames=frames, utterances=utterances: denoise(frames, utterances))

    def measure(self, peaks: MachinePeaks) -> list[BenchRow]:
        """The rows, with shares of the peaks measured in the same rounds."""
        rows = measure_in_rounds(self.calls, self.options.rounds, before_round=peaks.read)
        return [row if row.value is None else replace(row, figures={
            **row.figures, **peaks.shares(competitor.processor, competitor.precision, operations, gigabytes,
                                           row.value.median)})
            for row, (competitor, operations, gigabytes) in zip(rows, self.work, strict=True)]


def measure(options: argparse.Namespace) -> BenchmarkResult:
    for name in ("lanes", "frames", "utterances", "upstream_lanes"):
        setattr(options, name, getattr(options, name, None) or [])
    unknown = [part for part in options.only if part not in NETWORKS]
    if unknown:
        raise UserError(f"--only {unknown[0]}: there are {', '.join(NETWORKS)}")
    competitors = chosen_competitors(options, KNOWN)
    networks = [network for part in options.only for network in NETWORKS[part]]
    rows: list[BenchRow] = []
    with opened_model(options, competitors, networks) as model:
        peaks = MachinePeaks(sorted({each.processor for each in competitors}),
                        sorted({each.precision for each in competitors}))
        for part in options.only:
            with ExitStack() as stack:
                contest = StageContest(options, model, stack)
                for competitor in competitors:
                    contest.enter(part, competitor)
                rows += contest.measure(peaks)
            if part == "diffusion":
                rows = with_accuracy(rows, model, competitors, options)
    rows = compare(rows, lambda row: row.competitor.startswith("upstream"), "times_upstream")
    rows = compare(rows, lambda row: row.competitor.startswith("eager") and row.competitor.endswith("fp32"),
                   "times_eager_fp32")
    settings = {"model": model_name(options), "threads": options.threads, "calls": options.calls,
                "rounds": options.rounds}
    plots = [plot for part, plot in PLOTS.items() if part in options.only]
    return BenchmarkResult(rows, settings, peaks.notes(), plots, peaks.document())


PLOTS = {"decoder": BenchmarkPlot("Decoder step", "decoder step", "lanes", "-decoder"),
         "diffusion": BenchmarkPlot("Guided denoising step", "guided denoising step", "frames", "-diffusion"),
         "vocoders": BenchmarkPlot("UnivNet", "univnet", "frames", "-univnet")}


def with_accuracy(rows: Sequence[BenchRow], model: Model, competitors: Sequence[Competitor],
                  options: argparse.Namespace) -> list[BenchRow]:
    """Denoising rows with the signal-to-noise ratio of a prediction against torch in fp32, in dB."""
    import numpy as np

    rng, config, found = np.random.default_rng(0), model.config("diffusion"), {}
    latents = rng.standard_normal((1, 43, config.in_latent_channels), dtype=np.float32)
    voice = rng.standard_normal((1, 2 * config.model_channels), dtype=np.float32)
    noisy = rng.standard_normal((1, 100, 200), dtype=np.float32)

    def prediction(competitor: Competitor) -> np.ndarray:
        return competitor.backend(model, options.threads).denoiser([latents], voice, [200])([noisy], TIMESTEP, True)[0]

    exact = prediction(Competitor("torch", "cpu", "fp32"))
    measured = {row.competitor for row in rows if row.what == "guided denoising step" and row.value}
    for competitor in competitors:
        if competitor.name in measured and competitor.engine != "upstream" and competitor.precision != "fp32":
            found[competitor.name] = snr_db(exact, prediction(competitor))
    return [replace(row, figures={**row.figures, "snr_db": found[row.competitor]})
            if row.what == "guided denoising step" and row.competitor in found else row for row in rows]


def add_part_options(*parts: str) -> Callable[[Callable[..., Any]], None]:
    def add_options(add: Callable[..., Any]) -> None:
        if "decoder" in parts:
            add("--lanes", type=counts, default=[1, 4, 8, 16, 32], metavar="N,…", help="(default: 1,4,8,16,32)")
            add("--upstream-lanes", type=counts, metavar="N,…", help="of upstream (default: as --lanes)")
        if "diffusion" in parts or "vocoders" in parts:
            add("--frames", type=counts, default=[200, 400, 800], metavar="N,…", help="(default: 200,400,800)")
        if "diffusion" in parts:
            add("--utterances", type=counts, default=[1], metavar="N,…", help="denoised in one call (default: 1)")
        add("--calls", type=positive, default=10, metavar="N",
            help="calls of a round, of which the median counts (default: 10)")
        add("--only", type=comma_separated, default=list(parts), metavar="PART,…", help=f"of {', '.join(parts)}")

    return add_options


QUICK = {"decoder": "--lanes 1,2 ", "diffusion": "--utterances 1,2 "}
BENCHMARKS = {
    name: Benchmark(measure, text, add_part_options(*parts), "".join(QUICK.get(part, "") for part in parts)
                    + ("--frames 40 " if name != "decode" else "") + "--precision fp32,int8 --calls 2 --rounds 1")
    for name, text, parts in (
        ("decode", "a step of the decoder", ("decoder",)),
        ("diffusion", "a guided step of the denoiser", ("diffusion",)),
        ("backends", "decoder, denoiser and vocoders on every engine", ("decoder", "diffusion", "vocoders")))}
