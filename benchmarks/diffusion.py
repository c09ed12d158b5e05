"""The denoiser: a guided step, for several lengths and several utterances in a call; this package's and upstream's.

    python -m benchmarks.checkpoints /tmp/official
    python -m benchmarks.diffusion --checkpoints /tmp/official --upstream-python ~/upstream-env/bin/python --threads 1

All contestants take turns in every round, so what else the machine does meets them alike; a ratio is taken within its
round. A guided step is the network with conditioning and without: one call here, two at upstream, one utterance a time.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.progress import track

from ane.backends.torch.backend import TorchBackend
from ane.bundles import Model, add_model_arguments, open_model
from ane.models.tortoise.diffusion import MELS, frame_count
from benchmarks import report
from benchmarks.report import Figures, Shown, Spread
from benchmarks.upstream import Upstream, add_contest_options, counts, hold_together

TIMESTEP = 2000
UPSTREAM = "upstream fp32"


@dataclass(frozen=True)
class Settings:
    rounds: int
    threads: int
    device: str


@dataclass
class Contestant:
    """``step`` takes a guided step of all ``utterances``, ``frames`` each, and gives its milliseconds."""

    name: str
    frames: int
    utterances: int
    step: Callable[[], float]
    snr_db: float | None = None             # against this package in float32, of the same noisy mels
    readings: list[float] = field(default_factory=list)


def contestants(model: Model, precision: str, options: argparse.Namespace) -> list[Contestant]:
    """This package's denoiser in one precision: every length, every number of utterances."""
    backend = TorchBackend(model, options.device, precision, options.threads, keep=True)
    return [contestant(backend, precision, frames, utterances)
            for frames in options.frames for utterances in options.utterances]


def contestant(backend: TorchBackend, precision: str, frames: int, utterances: int) -> Contestant:
    latents, voice, noisy = inputs(backend.model, frames, utterances)
    denoiser = backend.batched_denoiser(latents, voice, [frames] * utterances)

    def step() -> float:
        start = time.perf_counter()
        denoiser(noisy, TIMESTEP, guided=True)      # gives arrays of the host: an accelerator has finished
        return 1000 * (time.perf_counter() - start)

    return Contestant(f"ours {precision}", frames, utterances, step)


def inputs(model: Model, frames: int, utterances: int) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """The same random latents, voice latent and noisy mels for every contestant."""
    rng, config = np.random.default_rng(0), model.config("diffusion")
    codes = next(count for count in range(1, frames + 1) if frame_count(count) >= frames)
    voice = rng.standard_normal((1, 2 * config.model_channels), dtype=np.float32)
    latents = [rng.standard_normal((1, codes, config.in_latent_channels), dtype=np.float32) for _ in range(utterances)]
    return latents, voice, [rng.standard_normal((1, MELS, frames), dtype=np.float32) for _ in range(utterances)]


def fidelity(model: Model, options: argparse.Namespace) -> dict[tuple[str, int], float]:
    """Signal-to-noise ratio in dB of a precision at a length against float32, one utterance, both rows."""
    said = {}
    for precision in {"fp32", *options.precisions}:
        backend = TorchBackend(model, options.device, precision, options.threads, keep=True)
        for frames in options.frames:
            latents, voice, noisy = inputs(model, frames, 1)
            said[precision, frames] = backend.denoiser(latents[0], voice, frames)(noisy[0], TIMESTEP, True)
    return {(precision, frames): snr(said["fp32", frames], output)
            for (precision, frames), output in said.items() if precision != "fp32"}


def snr(signal: np.ndarray, other: np.ndarray) -> float:
    """10 log10(Σ signal² / Σ error²)."""
    signal, other = signal.astype(np.float64), other.astype(np.float64)
    return float(10 * np.log10(np.square(signal).sum() / np.square(signal - other).sum()))


def measure(each_of: Sequence[Contestant], rounds: int) -> None:
    """Fill every contestant's readings, one a round; a first round warms up and is lost."""
    for number in track(range(rounds + 1), "rounds", console=Console(stderr=True), transient=True):
        for each in each_of:
            reading = each.step()
            if number:
                each.readings.append(reading)


def summary(each: Contestant, reference: Contestant | None) -> dict:
    """The figures of one contestant, each a median over the rounds with its spread."""
    step_ms = Spread.of(each.readings)
    result = {"name": each.name, "frames": each.frames, "utterances": each.utterances,
              "step_ms": step_ms, "snr_db": each.snr_db, **report.shared(Figures(stage_ms={"step": step_ms})),
              "frame_us": Spread.of([1000 * reading / each.frames / each.utterances for reading in each.readings])}
    if reference:
        result["times_upstream"] = Spread.of([each.utterances * theirs / reading for theirs, reading
                                              in zip(reference.readings, each.readings, strict=True)])
    return result


def show(results: Sequence[dict], settings: Settings) -> Shown:
    title = (f"A guided step, {settings.rounds} rounds, {settings.threads} thread{'s' * (settings.threads > 1)} "
             f"on {settings.device}")
    columns = ("denoiser", "frames", "utterances", "step ms", "µs a frame", "× upstream", "SNR dB")
    return report.print_table(title, columns, [
        (r["name"], r["frames"], r["utterances"], r["step_ms"], r["frame_us"], r.get("times_upstream"),
         None if r["snr_db"] is None else f"{r['snr_db']:.1f}") for r in results])


def plotted(results: Sequence[dict]) -> dict[str, dict[float, Spread]]:
    """Microseconds a frame over frames, a curve for each name and number of utterances."""
    curves: dict[str, dict[float, Spread]] = {}
    for result in results:
        together = f", {result['utterances']} utterances" if result["utterances"] > 1 else ""
        curves.setdefault(result["name"] + together, {})[result["frames"]] = result["frame_us"]
    return curves


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diffusion", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    add_contest_options(parser)
    parser.add_argument("--frames", type=counts, default=[200, 400, 800], help="default 200,400,800")
    parser.add_argument("--utterances", type=counts, default=[1, 2, 4], help="in one call (default 1,2,4)")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    hold_together(options)
    settings = Settings(options.rounds, options.threads, options.device)
    output = options.output or report.default_output("diffusion")
    model = open_model(bundle=options.bundle, checkpoints=options.checkpoints)
    machine, ratios = report.machine(), fidelity(model, options)
    with ExitStack() as stack:
        field_of = [each for precision in options.precisions for each in contestants(model, precision, options)]
        references = []
        if options.upstream_python:
            upstream = stack.enter_context(Upstream(
                options.upstream_python, options.checkpoints, file="diffusion_decoder.pth", threads=options.threads,
                heads=model.config("diffusion").num_heads, device=options.device))
            references = [Contestant(UPSTREAM, frames, 1, lambda frames=frames: upstream.denoise(frames)["step_ms"])
                          for frames in options.frames]
        for each in field_of:
            each.snr_db = ratios.get((each.name.removeprefix("ours "), each.frames))
        measure(references + field_of, options.rounds)
    by_length = {each.frames: each for each in references}
    results = [summary(each, by_length.get(each.frames)) for each in references + field_of]
    shown = show(results, settings)
    report.publish(
        output, "diffusion", settings, results, [shown],
        {"": lambda path: report.plot(path, "A guided denoising step", ("frames", "microseconds a frame"),
                                      plotted(results))},
        machine=machine, network=model.config("diffusion"))


if __name__ == "__main__":
    report.run(main)
