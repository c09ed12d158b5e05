"""Engines side by side, on the same weights in the same run: torch eager, torch as this package runs it, ONNX Runtime.

    python -m benchmarks.backends --onnx-bundle demo-onnx         the embedded voice, converted the first time
    python -m benchmarks.backends --bundle tortoise-onnx --precisions fp32,fp16 --only decoder,diffusion
    python -m benchmarks.backends --engines eager:cuda,torch:cuda,onnx:tensorrt --precisions fp32,fp16

Torch eager is what ``benchmarks.eager`` says; torch, on CUDA, plays its steps as graphs. All contestants take turns in
every round, so what else the machine does meets them alike. Calls are of stages, host to host: copies to the device and
back count. Readings are medians of their rounds' calls, and every ratio and share is of the medians in the rows shown:
× eager is against eager in the row's precision (int8 and int4: fp32) on its device, and × eager fp32 against fp32.

A step's share of the bandwidth is of what it must read once, weights and keys and values. Shares of the peak are of
products of large matrices in that precision, or in fp32 where those are faster; int8 and int4 have none here. In a
sentence precisions may sample different codes, so its ratio is of real-time factors.
"""

import argparse
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from ane.audio.mel import HOP
from ane.backends.torch.backend import DTYPES
from ane.backends.torch.memory import return_freed_memory
from ane.bundles import Model, add_model_arguments, open_model
from ane.commands.speech_options import positive
from ane.models.tortoise.networks.univnet import SILENT_FRAMES
from ane.models.tortoise.synthesizer import SAMPLE_RATE, Synthesizer
from ane.system.errors import UserError
from benchmarks import decode, report
from benchmarks.decode import decoding
from benchmarks.diffusion import TIMESTEP, inputs
from benchmarks.engines import ENGINES, KNOWN, Contestant, Engine, contestants, present, with_packages
from benchmarks.peaks import Limits, Work, timed
from benchmarks.report import Figures, Shown, Spread
from benchmarks.sentence import TEXT
from benchmarks.speaking import say, settings_of, voice_of
from benchmarks.upstream import add_output_option, counts

PARTS = {"decoder": ("autoregressive",), "diffusion": ("diffusion",), "vocoders": ("univnet", "hifigan"),
         "sentence": ("autoregressive", "diffusion", "univnet")}
MEASURES = {"decoder": "step_ms", "diffusion": "call_ms", "vocoders": "call_ms", "sentence": "real_time_factor"}
SIZES = ("part", "lanes", "frames", "batch", "vocoder")


@dataclass(frozen=True)
class Settings:
    only: Sequence[str]
    precisions: Sequence[str]
    lanes: Sequence[int]
    prefix: int
    steps: int
    frames: Sequence[int]
    sound: int
    max_codes: int
    rounds: int
    threads: int


@dataclass
class Entry:
    """A call of one contestant, measured once a round.

    Attributes:
        what: its sizes, by which it is compared with others of its part.
        take: gives its figures, of which ``main`` is milliseconds, or a sentence's reading.
        operations: of the call, and ``prefilled`` of a prefill; gigabytes: that it must read.
    """

    part: str
    engine: Engine
    precision: str
    what: dict[str, Any]
    take: Callable[[], dict[str, Any]]
    operations: int | None = None
    prefilled: int | None = None
    gigabytes: float | None = None
    readings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.engine.name} {self.precision}"


# The calls of each part

def decoder_entries(each: Contestant, work: Work, settings: Settings) -> Iterator[Entry]:
    asked = decode.Settings(settings.prefix, settings.steps, settings.rounds, settings.threads, each.engine.device)
    own = settings.steps / 2
    for lanes in settings.lanes:
        decoded = decoding(each.backend, lanes, asked)
        yield Entry("decoder", each.engine, each.precision, {"lanes": lanes}, lambda decoded=decoded: vars(decoded()),
                    work.step(lanes, settings.prefix + own), work.prefill(settings.prefix),
                    each.step_gigabytes(lanes, settings.prefix, own))


def diffusion_entries(each: Contestant, work: Work, settings: Settings) -> Iterator[Entry]:
    for frames in settings.frames:
        latents, voice, noisy = inputs(each.backend.model, frames, 1)
        denoiser = each.backend.denoiser(latents[0], voice, frames)
        for batch in (1, 2):
            yield Entry("diffusion", each.engine, each.precision, {"frames": frames, "batch": batch},
                        lambda denoiser=denoiser, x=noisy[0], guided=batch == 2: {
                            "call_ms": timed(lambda: denoiser(x, TIMESTEP, guided))}, work.denoise(batch, frames))


def vocoder_entries(each: Contestant, network: str, work: Work, settings: Settings) -> Iterator[Entry]:
    config, frames, rng = each.backend.model.config(network), settings.sound, np.random.default_rng(0)
    if network == "univnet":
        shapes = {"mel": (1, config.n_mel_channels, frames), "noise": (1, config.noise_dim, frames + SILENT_FRAMES)}
    else:
        shapes = {"frames": (1, config.in_channels, frames), "conditioning": (1, config.cond_channels)}
    given = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    yield Entry("vocoders", each.engine, each.precision, {"vocoder": network, "frames": frames}, lambda: {
        "call_ms": timed(lambda: each.backend.run(network, **given))}, work.vocode(network, *shapes.values()))


def sentence_entries(each: Contestant, settings: Settings) -> Iterator[Entry]:
    model = each.backend.model
    synthesizer, voice = Synthesizer(model, each.backend), voice_of(model)
    flags = ["--preset", "ultra_fast", "--candidates", "1", "--max-codes", str(settings.max_codes)]
    asked, request = settings_of(flags, 1, model), {"text": TEXT, "seed": 0, "stream": False}
    yield Entry("sentence", each.engine, each.precision, {}, lambda: say(synthesizer, voice, asked, request))


def calls(part: str, network: str, each: Contestant, work: Work, settings: Settings) -> Iterator[Entry]:
    if part == "decoder":
        return decoder_entries(each, work, settings)
    if part == "diffusion":
        return diffusion_entries(each, work, settings)
    if part == "vocoders":
        return vocoder_entries(each, network, work, settings)
    return sentence_entries(each, settings)


def entries(part: str, engines: Sequence[Engine], model: Model, settings: Settings,
            left_out: dict[str, str]) -> list[Entry]:
    """All calls of a part; what an engine refuses goes to ``left_out``."""
    work, found = Work(model), []
    for networks in [PARTS[part]] if part == "sentence" else [(network,) for network in PARTS[part]]:
        missing = [network for network in networks if network not in model.networks]
        if missing:
            left_out[f"{part}, {missing[0]}"] = "the model has none"
            continue
        for each in contestants(engines, model, networks, settings.precisions, settings.threads, left_out):
            try:
                found += list(calls(part, networks[0], each, work, settings))
            except UserError as error:
                left_out[f"{each.engine.name} {each.precision}, {part}"] = str(error)
    return found


# Measuring

def measure(part: str, found: list[Entry], limits: Limits, rounds: int, left_out: dict[str, str]) -> list[Entry]:
    """Fill the readings, one a round in turns; a first round warms up and is lost, with those that fail in it."""
    for number in track(range(rounds + 1), part, console=Console(stderr=True), transient=True):
        limits.read(keep=number > 0)
        for entry in list(found):
            try:
                reading = entry.take()
            except UserError as error:
                if number:
                    raise
                left_out[", ".join([entry.name, part, *map(str, entry.what.values())])] = str(error)
                found.remove(entry)
                continue
            if number:
                entry.readings.append(reading)
    return found


def row(entry: Entry) -> dict[str, Any]:
    """The figures of one entry."""
    result = {"part": entry.part, "name": entry.name, "engine": entry.engine.name, "precision": entry.precision,
              **entry.what}
    if entry.part == "sentence":
        return result | report.shared(Figures.of(entry.readings)) | {
            "took_s": Spread.of([reading["took"] for reading in entry.readings]),
            "audio_s": Spread.of([reading["seconds"] for reading in entry.readings]),
            "codes": entry.readings[0]["codes"]}
    took = {key: Spread.of([reading[key] for reading in entry.readings]) for key in entry.readings[0]}
    stages = {key.removesuffix("_ms").replace("call", entry.what.get("vocoder", "denoise")): spread
              for key, spread in took.items()}
    rates = factors = None
    if entry.part == "decoder":
        rates = Spread.of([1000 * entry.what["lanes"] / reading["step_ms"] for reading in entry.readings])
    if entry.part == "vocoders":
        seconds = entry.what["frames"] * HOP / SAMPLE_RATE
        factors = Spread.of([reading["call_ms"] / 1000 / seconds for reading in entry.readings])
    return result | report.shared(Figures(real_time_factor=factors, tokens_per_s=rates, stage_ms=stages)) | took


def shares(entry: Entry, limits: Limits, figures: dict[str, Any]) -> dict[str, float | None]:
    """What a row's medians are of the medians of the limits."""
    device = entry.engine.device
    found = {name: limits.share_of_peak(device, entry.precision, operations, figures[key].median)
             for name, operations, key in (("share_of_peak", entry.operations, MEASURES[entry.part]),
                                           ("prefill_share_of_peak", entry.prefilled, "prefill_ms")) if operations}
    if entry.gigabytes:
        found["share_of_bandwidth"] = limits.share_of_bandwidth(device, entry.gigabytes, figures["step_ms"].median)
    return found


def measured(part: str, engines: Sequence[Engine], model: Model, settings: Settings, limits: Limits,
             left_out: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of a part; the engines, and what they hold, are gone afterwards."""
    found = measure(part, entries(part, engines, model, settings, left_out), limits, settings.rounds, left_out)
    rows = [figures | shares(entry, limits, figures) for entry, figures in zip(found, map(row, found), strict=True)]
    devices = {entry.engine.device for entry in found}
    del found
    gc.collect()
    for device in devices:
        return_freed_memory(torch.device(device))
    return rows


def compare(results: Sequence[dict[str, Any]]) -> None:
    """Give rows their ratios: the median of eager's row over their own, in the same part at the same sizes."""
    medians = {(*key_of(r), r["engine"], r["precision"]): r[MEASURES[r["part"]]].median for r in results}
    for r in results:
        own, eager = r[MEASURES[r["part"]]].median, f"eager:{ENGINES[r['engine']].device}"
        like = r["precision"] if r["precision"] in DTYPES else "fp32"
        for key, precision in (("times_eager", like), ("times_eager_fp32", "fp32")):
            theirs = medians.get((*key_of(r), eager, precision))
            r[key] = theirs / own if theirs else None


def key_of(r: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(r.get(size) for size in SIZES)


# Showing

def percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def ratios(r: dict[str, Any]) -> tuple[str | None, ...]:
    return tuple(None if r[key] is None else report.figure(r[key]) for key in ("times_eager", "times_eager_fp32"))


def show(results: Sequence[dict[str, Any]], limits: Limits, settings: Settings) -> list[Shown]:
    of = {part: [r for r in results if r["part"] == part] for part in PARTS}
    against = ("× eager", "× eager fp32")
    tables = [("What the devices can do", ("device", "what", "reading"), [
        *((device, "memory read, GB/s", Spread.of(readings)) for device, readings in limits.bandwidth.items()),
        *((device, f"products in {precision}, GFLOP/s", Spread.of(readings))
          for (device, precision), readings in limits.peak.items())])]
    tables += [(f"Decoding after a prefix of {settings.prefix}, {settings.steps} steps",
                ("engine", "lanes", "prefill ms", "of peak", "step ms", "tokens/s", "of bandwidth", "of peak",
                 *against),
                [(r["name"], r["lanes"], r["prefill_ms"], percent(r["prefill_share_of_peak"]), r["step_ms"],
                  r["tokens_per_s"], percent(r["share_of_bandwidth"]), percent(r["share_of_peak"]), *ratios(r))
                 for r in of["decoder"]])]
    tables += [("A denoising step; a batch of 2 is a guided one",
                ("engine", "frames", "batch", "ms", "of peak", *against),
                [(r["name"], r["frames"], r["batch"], r["call_ms"], percent(r["share_of_peak"]), *ratios(r))
                 for r in of["diffusion"]])]
    tables += [("Vocoders", ("engine", "vocoder", "frames", "ms", "real-time factor", "of peak", *against),
                [(r["name"], r["vocoder"], r["frames"], r["call_ms"], r["real_time_factor"],
                  percent(r["share_of_peak"]), *ratios(r)) for r in of["vocoders"]])]
    tables += [(f"A sentence, ultra_fast with 1 candidate, {settings.max_codes} codes at most",
                ("engine", "s", "of audio, s", "codes", "real-time factor", "tokens/s", *against),
                [(r["name"], r["took_s"], r["audio_s"], r["codes"], r["real_time_factor"], r["tokens_per_s"],
                  *ratios(r)) for r in of["sentence"]])]
    rounds = f"; {settings.rounds} rounds, {settings.threads} CPU thread{'s' * (settings.threads > 1)}"
    return [report.print_table(title + rounds, columns, rows) for title, columns, rows in tables if rows]


def plots(results: Sequence[dict[str, Any]]) -> dict[str, report.Draw]:
    """Tokens a second over lanes, a guided denoising step over frames, and the stages of the sentence."""
    def curves(part: str, x: str, y: str, batch: int | None = None) -> dict[str, dict[float, Spread]]:
        found: dict[str, dict[float, Spread]] = {}
        for r in results:
            if r["part"] == part and r.get("batch") == batch:
                found.setdefault(r["name"], {})[r[x]] = r[y]
        return found

    decoding, denoising = curves("decoder", "lanes", "tokens_per_s"), curves("diffusion", "frames", "call_ms", 2)
    spoken = {r["name"]: {stage: spread.median / 1000 / r["audio_s"].median for stage, spread in r["stage_ms"].items()}
              for r in results if r["part"] == "sentence"}
    drawn: dict[str, report.Draw] = {}
    if decoding:
        drawn["-decoder"] = lambda path: report.plot(path, "Decoding", ("lanes", "tokens per second"), decoding)
    if denoising:
        drawn["-denoiser"] = lambda path: report.plot(path, "A guided denoising step", ("frames", "ms"), denoising)
    if spoken:
        drawn["-sentence"] = lambda path: report.bars(path, "A sentence", "seconds of work for one of audio", spoken)
    return drawn


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backends", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    add, names = parser.add_argument, lambda text: text.split(",")
    add("--onnx-bundle", type=Path, metavar="DIR", help="where the model lies with ONNX packages, or is put when it is "
        "converted for this (default: a temporary folder; a --bundle that has some needs none)")
    add("--engines", type=names, metavar="NAME,..", help=f"of {', '.join(ENGINES)} (default: those that run here)")
    add("--only", type=names, default=list(PARTS), metavar="PART,..", help=f"of {', '.join(PARTS)}")
    add("--precisions", type=names, metavar="P,..", help=f"of {', '.join(KNOWN)}, each for the engines that have it "
        "(default fp32,bf16,int8; with a GPU fp32,fp16)")
    add("--lanes", type=counts, default=[1, 4, 8, 16, 32], help="default 1,4,8,16,32")
    add("--prefix", type=positive, default=44, help="positions before the first code (default 44)")
    add("--steps", type=positive, default=24, help="codes decoded in a round (default 24)")
    add("--frames", type=counts, default=[200, 400, 800], help="of the denoiser (default 200,400,800)")
    add("--sound", type=positive, default=400, help="frames that a vocoder renders (default 400: 4.3 s)")
    add("--max-codes", type=positive, default=86, help="of the sentence (default 86: 4 s)")
    add("--rounds", type=positive, default=5, help="readings of each figure (default 5)")
    add("--threads", type=positive, default=report.usable_cores(), help="of the CPU (default: all cores)")
    add_output_option(parser)
    return parser


def check(options: argparse.Namespace) -> None:
    """Raises UserError for a part or a precision that there is not, and for more threads than cores."""
    if options.threads > report.usable_cores():
        raise UserError(f"--threads {options.threads}: this machine has {report.usable_cores()} cores; more only wait")
    for flag, known in (("only", PARTS), ("precisions", KNOWN)):
        unknown = [name for name in getattr(options, flag) if name not in known]
        if unknown:
            raise UserError(f"--{flag} {unknown[0]}: there are {', '.join(known)}")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    engines, left_out = present(options.engines)
    devices = list(dict.fromkeys(engine.device for engine in engines))
    options.precisions = options.precisions or (["fp32", "fp16"] if "cuda" in devices else ["fp32", "bf16", "int8"])
    check(options)
    settings = Settings(options.only, options.precisions, options.lanes, options.prefix, options.steps, options.frames,
                        options.sound, options.max_codes, options.rounds, options.threads)
    output = options.output or report.default_output("backends")
    networks = list(dict.fromkeys(network for part in options.only for network in PARTS[part]))
    source = open_model(bundle=options.bundle, checkpoints=options.checkpoints)
    packaged = any(engine.kind == "onnx" for engine in engines)
    limits, results = Limits(devices, options.precisions), []
    with with_packages(source, packaged, options.onnx_bundle, options.precisions,
                       [network for network in networks if network in source.networks]) as model:
        machine = report.machine()
        for part in options.only:
            results += measured(part, engines, model, settings, limits, left_out)
    compare(results)
    tables = show(results, limits, settings)
    not_run = [(", ".join(what for what, reason in left_out.items() if reason == why), why)
               for why in dict.fromkeys(left_out.values())]
    for what, why in not_run:
        print(f"Not run: {what}: {why}")
    tables += [Shown("Not run", ("what", "why"), not_run)] if not_run else []
    report.publish(output, "backends", settings, results, tables, plots(results), machine=machine, model=model.name,
                   left_out=left_out, bandwidth_gb_s={name: Spread.of(each) for name, each in limits.bandwidth.items()},
                   peak_gflop_s={" ".join(key): Spread.of(each) for key, each in limits.peak.items()})


if __name__ == "__main__":
    report.run(main)
