"""Autoregressive decoding: prefill, a step, tokens per second, for several lanes; this package's and upstream's.

    python -m benchmarks.checkpoints /tmp/official
    python -m benchmarks.decode --checkpoints /tmp/official --upstream-python ~/upstream-env/bin/python --threads 1

All contestants take turns in every round, so what else the machine does meets them alike; a ratio is taken within its
round. A step is one call of the network for all lanes, without sampling, on both sides.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from rich.console import Console
from rich.progress import track

from ane.backends.base import Backend
from ane.backends.torch.backend import PRECISIONS, TorchBackend
from ane.bundles import Model, add_model_arguments, open_model
from benchmarks import report
from benchmarks.peaks import Bandwidth, cached, decoder_weights, timed
from benchmarks.report import Figures, Shown, Spread
from benchmarks.upstream import Upstream, add_contest_options, counts, hold_together

UPSTREAM = "upstream fp32"      # in its kv-cache mode: what ratios are taken against


@dataclass(frozen=True)
class Settings:
    prefix: int         # positions before the first code
    steps: int          # codes decoded in a round
    rounds: int
    threads: int
    device: str


@dataclass(frozen=True)
class Reading:
    """One round of one contestant, in milliseconds."""

    prefill_ms: float
    step_ms: float          # median over the round's steps


@dataclass
class Contestant:
    name: str
    lanes: int
    gigabytes: float                        # weights and cache that one step must read
    decode: Callable[[], Reading]
    readings: list[Reading] = field(default_factory=list)


def contestant(backend: TorchBackend, precision: str, lanes: int, settings: Settings) -> Contestant:
    positions = settings.prefix + lanes * settings.steps / 2
    read = gigabytes(backend.model, precision, positions, settings.device)
    return Contestant(f"ours {precision}", lanes, read, decoding(backend, lanes, settings))


def decoding(backend: Backend, lanes: int, settings: Settings) -> Callable[[], Reading]:
    """This package's decoder with ``lanes`` lanes on one prefix, fed random codes."""
    decoder, tables = backend.decoder(lanes, settings.steps), backend.embeddings()
    generator = np.random.default_rng(0)
    text = generator.integers(len(tables["text"]), size=settings.prefix)
    codes = generator.integers(len(tables["code"]), size=(settings.steps, lanes))
    prefix = tables["text"][text] + tables["text_position"][:settings.prefix]
    columns = tables["code"][codes] + tables["code_position"][1:settings.steps + 1, None]      # (steps, lanes, D)

    def decode() -> Reading:
        prefill = timed(lambda: decoder.prefill(prefix))
        steps = [timed(lambda t=t: decoder.step(columns[t][:, None], np.full(lanes, t, dtype=np.int64)))
                 for t in range(settings.steps)]
        return Reading(prefill, median(steps))

    return decode


def upstream_contestant(upstream: Upstream, model: Model, lanes: int, settings: Settings) -> Contestant:
    """Upstream's kv-cache mode; every lane has its own copy of the prefix there."""

    def decode() -> Reading:
        reply = upstream.decode(lanes, settings.prefix, settings.steps)
        return Reading(reply["prefill_ms"], median(reply["step_ms"]))

    positions = lanes * (settings.prefix + settings.steps / 2)
    return Contestant(UPSTREAM, lanes, gigabytes(model, "fp32", positions), decode)


def gigabytes(model: Model, precision: str, positions: float, device: str = "cpu") -> float:
    """What a step reads at least once: all weights but the look-up tables, and keys and values of ``positions``.

    On the CPU those are kept in float32, whatever the weights are.
    """
    bytes_cached = 4 if device == "cpu" else PRECISIONS[precision]
    return (decoder_weights(model) * PRECISIONS[precision] + cached(model, positions) * bytes_cached) / 1e9


def measure(contestants: Sequence[Contestant], bandwidth: Bandwidth, rounds: int) -> list[float]:
    """Fill every contestant's readings, one a round, and return the bandwidths; a first round warms up and is lost."""
    bandwidths = []
    for number in track(range(rounds + 1), "rounds", console=Console(stderr=True), transient=True):
        gb_s = bandwidth.reading()
        readings = [each.decode() for each in contestants]
        if number:
            bandwidths.append(gb_s)
            for each, reading in zip(contestants, readings, strict=True):
                each.readings.append(reading)
    return bandwidths


def rates_of(contestant: Contestant) -> list[float]:
    """Tokens per second in all its lanes, round by round."""
    return [1000 * contestant.lanes / reading.step_ms for reading in contestant.readings]


def ratios(each: Contestant, upstream: Sequence[Contestant]) -> dict[str, Spread]:
    """Rates beside upstream's with one lane and with its best number of them, and its longest prefill beside ours."""
    if not upstream:
        return {}
    best = max(upstream, key=lambda other: Spread.of(rates_of(other)).median)
    widest = max(upstream, key=lambda other: other.lanes)
    beside = {"times_upstream_best": (best, rates_of), "times_upstream_prefill": (
        widest, lambda one: [1 / reading.prefill_ms for reading in one.readings])}
    one_lane = next((other for other in upstream if other.lanes == 1), None)
    if one_lane:
        beside["times_upstream_one_lane"] = one_lane, rates_of
    return {name: Spread.of([a / b for a, b in zip(rate(each), rate(other), strict=True)])
            for name, (other, rate) in beside.items()}


def summary(each: Contestant, upstream: Sequence[Contestant], bandwidths: Sequence[float]) -> dict:
    """The figures of one contestant, each a median over the rounds with its spread."""
    rates = rates_of(each)
    prefill_ms = Spread.of([reading.prefill_ms for reading in each.readings])
    step_ms = Spread.of([reading.step_ms for reading in each.readings])
    return {
        "name": each.name,
        "lanes": each.lanes,
        "prefill_ms": prefill_ms,
        "step_ms": step_ms,
        **report.shared(Figures(tokens_per_s=Spread.of(rates), stage_ms={"prefill": prefill_ms, "step": step_ms})),
        "share_of_bandwidth": Spread.of([1000 * each.gigabytes / reading.step_ms / gb_s
                                         for reading, gb_s in zip(each.readings, bandwidths, strict=True)]),
        **ratios(each, upstream),
    }


def show(results: Sequence[dict], bandwidth: Spread, settings: Settings) -> Shown:
    title = (f"Decoding after a prefix of {settings.prefix}, {settings.steps} steps, {settings.rounds} rounds, "
             f"{settings.threads} thread{'s' * (settings.threads > 1)} on {settings.device}; "
             f"memory read at {report.figure(bandwidth.median)} GB/s")
    columns = ("decoder", "lanes", "prefill ms", "step ms", "tokens/s", "of bandwidth", "× upstream, 1 lane",
               "× its best", "× its longest prefill")
    return report.print_table(title, columns, [
        (r["name"], r["lanes"], r["prefill_ms"], r["step_ms"], r["tokens_per_s"],
         f"{r['share_of_bandwidth'].median:.0%}", *(r.get(f"times_upstream_{name}") for name in
                                                    ("one_lane", "best", "prefill"))) for r in results])


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    add_contest_options(parser)
    parser.add_argument("--lanes", type=counts, default=[1, 2, 4, 8, 16], help="default 1,2,4,8,16")
    parser.add_argument("--upstream-lanes", type=counts, default=[1], help="default 1")
    parser.add_argument("--prefix", type=int, default=44, help="positions before the first code (default 44)")
    parser.add_argument("--steps", type=int, default=24, help="codes decoded in a round (default 24)")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    hold_together(options)
    settings = Settings(options.prefix, options.steps, options.rounds, options.threads, options.device)
    output = options.output or report.default_output("decode")
    model = open_model(bundle=options.bundle, checkpoints=options.checkpoints)
    machine = report.machine()
    with ExitStack() as stack:
        contestants = []
        if options.upstream_python:
            upstream = stack.enter_context(Upstream(
                options.upstream_python, options.checkpoints, heads=model.config("autoregressive").heads,
                threads=options.threads, device=options.device))
            contestants += [upstream_contestant(upstream, model, lanes, settings) for lanes in options.upstream_lanes]
        for precision in options.precisions:
            backend = TorchBackend(model, options.device, precision, options.threads)
            contestants += [contestant(backend, precision, lanes, settings) for lanes in options.lanes]
        bandwidths = measure(contestants, Bandwidth(options.device), options.rounds)
    upstream = [each for each in contestants if each.name == UPSTREAM]
    results = [summary(each, upstream, bandwidths) for each in contestants]
    bandwidth = Spread.of(bandwidths)
    shown = show(results, bandwidth, settings)
    report.publish(
        output, "decode", settings, results, [shown],
        {"": lambda path: report.plot(path, "Decoding", ("lanes", "tokens per second"),
                                      report.curves(results, "lanes", "tokens_per_s"))},
        machine=machine, network=model.config("autoregressive"), bandwidth_gb_s=bandwidth)


if __name__ == "__main__":
    report.run(main)
