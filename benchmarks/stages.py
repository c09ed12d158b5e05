"""`decode`, `diffusion` and `vocoders`: the time of a decoder step, a denoising step and a vocoder.

Competitors take turns in every round. A call runs one stage on host arrays, so copies to the device and back count. A
decoder step decodes one code of every lane, without sampling, after a prefix of 44 positions and half of a sentence's
86 codes. A guided denoising step runs the network with and without conditioning; upstream makes two calls, one
utterance at a time. SNR is that of a prediction against torch in fp32.

With one thread, "core_ms" is the time that a call kept a core busy: other programs change it less than its duration.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ane.audio.mel import HOP
from ane.backends.base import Backend
from ane.bench.measure import RepeatedCall, measure_in_rounds, repeated
from ane.bench.records import BenchRow, compare
from ane.bench.stage_calls import CODES, TIMESTEP, SentenceSizes, StageCalls
from ane.bundles import Model
from ane.commands.arguments import counts, positive
from ane.models.tortoise.settings import SAMPLE_RATE
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from benchmarks.competitors import Competitor, chosen_competitors, of_upstream
from benchmarks.harness import Benchmark, BenchmarkResult, model_name
from benchmarks.upstream import UpstreamProcess

WORK = SentenceSizes(CODES, frames=400)
Reading = Callable[[], dict[str, Any]]
StageCase = tuple[str, dict[str, int], Reading]         # what, settings, a reading of it


def decoder_cases(backend: Backend, options: argparse.Namespace) -> Iterator[StageCase]:
    calls = StageCalls(backend, WORK)
    yield "prefill", {}, reading(calls.prefill(), options)
    for lanes in options.lanes:
        yield "decoder step", {"lanes": lanes}, reading(calls.step(lanes), options, lanes=lanes)


def diffusion_cases(backend: Backend, options: argparse.Namespace) -> Iterator[StageCase]:
    for frames in options.frames:
        calls = StageCalls(backend, replace(WORK, frames=frames))
        for utterances in options.utterances:
            yield ("guided denoising step", {"frames": frames, "utterances": utterances},
                   reading(calls.denoise(True, utterances), options))


def vocoder_cases(backend: Backend, options: argparse.Namespace) -> Iterator[StageCase]:
    for frames in options.frames:
        calls = StageCalls(backend, replace(WORK, frames=frames))
        for network in ("univnet", "hifigan"):
            yield (network, {"frames": frames},
                   reading(calls.vocoder(network), options, seconds=frames * HOP / SAMPLE_RATE))


def reading(call: Callable[[], object], options: argparse.Namespace, lanes: int | None = None,
            seconds: float | None = None) -> Reading:
    """The median of some calls, in ms, with codes a second of all lanes, or seconds of work a second of audio."""
    def read() -> dict[str, Any]:
        before = time.process_time()
        times = sorted(repeated(call, options.calls))
        core = {} if options.threads > 1 else {"core_ms": 1000 * (time.process_time() - before) / len(times)}
        value = times[len(times) // 2]
        rate = {} if lanes is None else {"tokens_per_s": lanes / value}
        sound = {} if seconds is None else {"real_time_factor": value / seconds}
        return {"value": 1000 * value, **core, **rate, **sound}

    return read


def upstream_cases(part: str, process: UpstreamProcess, options: argparse.Namespace) -> Iterator[StageCase]:
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
        for lanes in options.lanes:
            yield "decoder step", {"lanes": lanes}, lambda lanes=lanes: step(lanes)
    else:
        for frames in options.frames:
            for utterances in options.utterances:
                yield ("guided denoising step", {"frames": frames, "utterances": utterances},
                       lambda frames=frames, utterances=utterances: denoise(frames, utterances))


CASES = {"decoder": decoder_cases, "diffusion": diffusion_cases, "vocoders": vocoder_cases}


def measure_part(part: str, options: argparse.Namespace) -> BenchmarkResult:
    model, competitors = chosen_competitors(options)
    calls: list[RepeatedCall] = []
    with ExitStack() as stack:
        for competitor in competitors:
            try:
                cases = list(cases_of(part, competitor, model, options, stack))
            except UserError as error:      # a row with the error
                calls.append(RepeatedCall(BenchRow(competitor.name, part, error=str(error)), failing(error)))
                continue
            calls += [RepeatedCall(BenchRow(competitor.name, what, settings=settings), read)
                      for what, settings, read in cases]
        rows = measure_in_rounds(calls, options.rounds)
    if part == "diffusion":
        rows = with_accuracy(rows, model, competitors, options)
    settings = {"model": model_name(options), "threads": options.threads, "calls": options.calls,
                "rounds": options.rounds}
    return BenchmarkResult(compare(rows, of_upstream, "times_upstream"), settings)


def cases_of(part: str, competitor: Competitor, model: Model, options: argparse.Namespace,
             stack: ExitStack) -> Iterator[StageCase]:
    """The calls of a competitor; none of upstream's vocoders. Raises UserError when it cannot run."""
    if competitor.engine != "upstream":
        yield from CASES[part](competitor.backend(model, options.threads), options)
    elif part != "vocoders":
        heads = model.config("autoregressive").heads if part == "decoder" else model.config("diffusion").num_heads
        process = UpstreamProcess(options.upstream_python, options.checkpoints, part, options.threads, heads)
        yield from upstream_cases(part, stack.enter_context(process), options)


def failing(error: UserError) -> Reading:
    def fail() -> dict[str, Any]:
        raise error

    return fail


def with_accuracy(rows: list[BenchRow], model: Model, competitors: list[Competitor],
                  options: argparse.Namespace) -> list[BenchRow]:
    """Denoising rows with the signal-to-noise ratio of a prediction against torch in fp32, in dB."""
    rng, config = np.random.default_rng(0), model.config("diffusion")
    latents = rng.standard_normal((1, 43, config.in_latent_channels), dtype=np.float32)
    voice = rng.standard_normal((1, 2 * config.model_channels), dtype=np.float32)
    noisy = rng.standard_normal((1, 100, 200), dtype=np.float32)

    def prediction(competitor: Competitor) -> np.ndarray:
        return competitor.backend(model, options.threads).denoiser([latents], voice, [200])([noisy], TIMESTEP, True)[0]

    exact, measured = prediction(Competitor("torch:cpu", "fp32")), {row.competitor for row in rows if row.value}
    found = {competitor.name: snr_db(exact, prediction(competitor)) for competitor in competitors
             if competitor.name in measured and competitor.engine != "upstream" and competitor.precision != "fp32"}
    return [replace(row, figures={**row.figures, "snr_db": found[row.competitor]}) if row.competitor in found else row
            for row in rows]


def part_options(part: str) -> Callable[[Callable[..., Any]], None]:
    def add_options(add: Callable[..., Any]) -> None:
        if part == "decoder":
            add("--lanes", type=counts, default=[1, 4, 8, 16, 32], metavar="N,…", help="(default: 1,4,8,16,32)")
        else:
            add("--frames", type=counts, default=[200, 400, 800], metavar="N,…", help="(default: 200,400,800)")
        if part == "diffusion":
            add("--utterances", type=counts, default=[1], metavar="N,…", help="denoised in one call (default: 1)")
        add("--calls", type=positive, default=10, metavar="N",
            help="calls of a round, of which the median counts (default: 10)")

    return add_options


SHORT = "--precision fp32,int8 --calls 2 --rounds 1"
BENCHMARKS = {
    name: Benchmark(partial(measure_part, part), text, part_options(part), f"{quick} {SHORT}")
    for name, part, text, quick in (
        ("decode", "decoder", "a step of the decoder", "--lanes 1,2"),
        ("diffusion", "diffusion", "a guided step of the denoiser", "--utterances 1,2 --frames 40"),
        ("vocoders", "vocoders", "both vocoders", "--frames 40"))}
