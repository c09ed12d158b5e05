"""`sentence`, `stream` and `scale`: speech synthesis, measured in separate processes.

- `sentence`: one sentence, by a new process for every reading, so that cold start and peak memory are measured too.
  Networks are loaded before the sentence is sent, upstream's too. Random weights never predict the stop code: all
  competitors then sample --max-codes for every candidate.
- `stream`: time to first audio, and work a second of audio, of texts of several lengths, in one process with its
  networks loaded.
- `scale`: work a second of audio, and peak memory, as chunks and lanes grow; and chunks in lanes compared with the same
  chunks one by one. Every reading is by a new process, which speaks one chunk first.

A chunk is a sentence of about five seconds. The voice is the model's own, or random latents.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from ane.bench.measure import RepeatedCall, measure_in_rounds
from ane.bench.records import BenchRow, compare
from ane.bench.sessions import WorkerProcess
from ane.bench.tuning import Tuning
from ane.bench.worker import TimedRequest, WorkerModel
from ane.bundles import Model
from ane.commands.arguments import comma_separated, counts, positive
from ane.models.tortoise.settings import PRESETS
from ane.system.errors import UserError
from benchmarks.competitors import Competitor, chosen_competitors, opened_model
from benchmarks.harness import Benchmark, BenchmarkPlot, BenchmarkResult, model_name
from benchmarks.upstream import UpstreamProcess

KNOWN = ("upstream", "torch", "onnx", "coreml", "mil")
SECONDS_PER_CHUNK = 5
UPSTREAM_BATCH = 16         # candidates that upstream samples at a time
SENTENCES = (       # 60 to 70 characters each, a chunk: four to five seconds of speech
    "The train to the old harbour leaves at nine and comes back at noon.",
    "She put the letter into the drawer and never spoke of it again.",
    "A small boat lay on the sand, its sail torn by the winter storms.",
    "Nobody in the village could remember when the bridge was built.",
    "He counted the steps to the tower twice, and lost his way both times.",
    "In the morning the garden was white, and not a bird was singing.",
)


def text_of_chunks(number: int) -> str:
    """A text of ``number`` chunks; it must be split at |."""
    return " | ".join(SENTENCES[index % len(SENTENCES)] for index in range(number))


def start_worker(competitor: Competitor, model: Model, threads: int,
                 prepare: TimedRequest | None = None) -> tuple[WorkerProcess, float]:
    """A process that has opened the model, and its cold start: seconds until it accepts a request."""
    started, process = time.perf_counter(), WorkerProcess(threads)
    try:
        tuning = Tuning(competitor.spec, competitor.precision, threads=threads)
        process.ask({"open": asdict(WorkerModel.of(model, tuning, keep=True))})
        if prepare is not None:
            process.ask({"prepare": asdict(prepare)})
    except BaseException:
        process.close()
        raise
    return process, time.perf_counter() - started


def speech_figures(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of successive requests: seconds of work and of audio, and rates derived from them."""
    elapsed, audio = (sum(answer[name] for answer in answers) for name in ("elapsed", "seconds"))
    stages: dict[str, float] = {}
    for answer in answers:
        for stage, seconds in answer["stages"].items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    first = answers[0].get("first_audio")
    return {"took_s": elapsed, "audio_s": audio, "real_time_factor": elapsed / audio,
            **({} if first is None else {"first_audio_s": first}),
            "tokens_per_s": sum(answer["codes"] for answer in answers) / stages["decode"],
            **{f"{stage}_s": seconds for stage, seconds in stages.items()}}


@dataclass(frozen=True)
class SentenceCase:
    """A request: ``candidates`` and ``steps`` for upstream, ``preset`` for this package."""

    candidates: int
    steps: int
    preset: str = "ultra_fast"


CASES = {"one": SentenceCase(1, 30), "ultra_fast": SentenceCase(16, 30), "fastest": SentenceCase(16, 30, "fastest")}


def measure_sentence(options: argparse.Namespace) -> BenchmarkResult:
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        raise UserError(f"--cases {unknown[0]}: there are {', '.join(CASES)}")
    competitors, calls = chosen_competitors(options, KNOWN), []
    with opened_model(options, competitors) as model:
        for name in options.cases:
            for competitor in competitors:
                row = BenchRow(competitor.name, "sentence", "s", {"case": name})
                calls.append(RepeatedCall(row, sentence_call(competitor, CASES[name], model, options)))
        rows = measure_in_rounds(calls, options.rounds, warm_up=False)
    rows = compare(rows, lambda row: row.competitor.startswith("upstream"), "times_upstream")
    settings = {"model": model_name(options), "text": options.text, "max_codes": options.max_codes,
                "threads": options.threads, "rounds": options.rounds}
    return BenchmarkResult(rows, settings, (), [BenchmarkPlot("A sentence, networks loaded")])


def sentence_call(competitor: Competitor, case: SentenceCase, model: Model,
                  options: argparse.Namespace) -> Callable[[], dict[str, Any]]:
    """A reading: start a process, let it speak the sentence, end it; "value" is the seconds of the sentence."""
    steps = options.steps or case.steps

    def read() -> dict[str, Any]:
        if competitor.engine == "upstream":
            process = UpstreamProcess(options.upstream_python, options.checkpoints, "speech", options.threads)
            cold_start = process.cold_start
            request: Any = {"text": options.text, "candidates": case.candidates, "steps": steps,
                            "batch": min(UPSTREAM_BATCH, case.candidates), "guided": False, "codes": options.max_codes,
                            "seed": 0}
        else:
            spoken = TimedRequest(options.text, case.preset, max_codes=options.max_codes, steps=steps,
                                   candidates=PRESETS[case.preset].candidates if case.candidates > 1 else 1)
            process, cold_start = start_worker(competitor, model, options.threads, spoken)
            request = {"speak": asdict(spoken)}
        with process:
            answer = process.ask(request)
        if options.checkpoints and answer["codes"] % options.max_codes:
            raise UserError(f"{answer['codes']} codes were sampled, no multiple of {options.max_codes}: compare with "
                            "weights that never predict the stop code (python -m benchmarks checkpoints DIR --no-stop)")
        figures = speech_figures([answer])
        return {"value": figures.pop("took_s"), "cold_start_s": cold_start, **figures, "peak_bytes": process.peak_bytes}

    return read


def measure_stream(options: argparse.Namespace) -> BenchmarkResult:
    competitors, calls = chosen_competitors(options, KNOWN[1:]), []
    with opened_model(options, competitors) as model, ExitStack() as stack:
        for competitor in competitors:
            process = stack.enter_context(start_worker(competitor, model, options.threads)[0])
            for preset in options.presets:
                for seconds in sorted(options.seconds):
                    chunks = max(1, round(seconds / SECONDS_PER_CHUNK))
                    request = TimedRequest(text_of_chunks(chunks), preset, stream=True, max_codes=options.max_codes)
                    row = BenchRow(competitor.name, f"stream, {preset}", "s to first audio", {"chunks": chunks})
                    calls.append(RepeatedCall(row, partial(stream_reading, process, request)))
        rows = measure_in_rounds(calls, options.rounds)
    settings = {"model": model_name(options), "max_codes": options.max_codes, "threads": options.threads,
                "rounds": options.rounds}
    return BenchmarkResult(rows, settings, (), [BenchmarkPlot("Time to first audio", x="chunks")])


def stream_reading(process: WorkerProcess, request: TimedRequest) -> dict[str, Any]:
    answer = process.ask({"speak": asdict(request)})
    figures = speech_figures([answer])
    return {"value": figures.pop("first_audio_s"), **figures, "peak_bytes": answer["peak_bytes"]}


def measure_scale(options: argparse.Namespace) -> BenchmarkResult:
    """Rows by chunks, by lanes, and of chunks one by one; "value" is seconds of work a second of audio."""
    competitors, calls = chosen_competitors(options, KNOWN[1:]), []
    cases = [("more chunks", chunks, 8, False) for chunks in sorted(options.chunks)]
    cases += [("more lanes", options.lane_chunks, lanes, False) for lanes in sorted(options.lanes)]
    cases += [("more lanes", options.lane_chunks, 1, True)]
    with opened_model(options, competitors) as model:
        for competitor in competitors:
            for what, chunks, lanes, one_by_one in cases:
                request = TimedRequest(preset=options.preset, max_codes=options.max_codes, lanes=lanes)
                texts = text_of_chunks(chunks).split(" | ") if one_by_one else [text_of_chunks(chunks)]
                row = BenchRow(competitor.name, "one by one" if one_by_one else what, "s a second",
                               {"chunks": chunks, "lanes": lanes})
                calls.append(RepeatedCall(row, scale_call(competitor, model, request, texts, options.threads)))
        rows = measure_in_rounds(calls, options.rounds, warm_up=False)
    settings = {"model": model_name(options), "preset": options.preset, "max_codes": options.max_codes,
                "threads": options.threads, "rounds": options.rounds}
    return BenchmarkResult(rows, settings, (), [
        BenchmarkPlot("Work a second of audio as the text grows", "more chunks", "chunks", "-chunks"),
        BenchmarkPlot("Work a second of audio as lanes grow", "more lanes", "lanes", "-lanes")])


def scale_call(competitor: Competitor, model: Model, request: TimedRequest, texts: Sequence[str],
               threads: int) -> Callable[[], dict[str, Any]]:
    def read() -> dict[str, Any]:
        process, cold_start = start_worker(competitor, model, threads)
        with process:
            process.ask({"speak": asdict(replace(request, text=SENTENCES[0]))})
            figures = speech_figures([process.ask({"speak": asdict(replace(request, text=text))}) for text in texts])
        return {"value": figures.pop("real_time_factor"), "cold_start_s": cold_start, **figures,
                "peak_bytes": process.peak_bytes}

    return read


def add_max_codes(add: Callable[..., Any], default: int) -> None:
    add("--max-codes", type=positive, default=default, metavar="N", help=f"most codes of a chunk (default: {default})")


def sentence_options(add: Callable[..., Any]) -> None:
    add("--cases", type=comma_separated, default=list(CASES), metavar="NAME,…", help=f"(default: {','.join(CASES)})")
    add("--steps", type=positive, metavar="N", help="diffusion steps of all, 2 or more (default: the case's)")
    add("--text", default="The train leaves at nine.", help="(default: %(default)s)")
    add_max_codes(add, 86)


def stream_options(add: Callable[..., Any]) -> None:
    add("--seconds", type=counts, default=[5, 10, 20, 40, 60], metavar="N,…", help="of audio (default: 5,10,20,40,60)")
    add("--presets", type=comma_separated, default=["fastest", "1x10"], metavar="P,…", help="(default: fastest,1x10)")
    add_max_codes(add, 108)


def scale_options(add: Callable[..., Any]) -> None:
    add("--chunks", type=counts, default=[1, 2, 4, 8, 16, 32, 64], metavar="N,…", help="(default: 1,2,4,8,16,32,64)")
    add("--lanes", type=counts, default=[1, 2, 4, 8, 16, 32], metavar="N,…", help="(default: 1,2,4,8,16,32)")
    add("--lane-chunks", type=positive, default=32, metavar="N", help="chunks that those lanes speak (default: 32)")
    add("--preset", choices=PRESETS, default="fastest", help="(default: fastest)")
    add_max_codes(add, 108)


BENCHMARKS = {
    "sentence": Benchmark(measure_sentence, "a sentence by a new process", sentence_options,
                          "--cases one --max-codes 20 --steps 4 --rounds 1"),
    "stream": Benchmark(measure_stream, "time to first audio and cost of a second", stream_options,
                        "--seconds 5,10 --presets fastest --max-codes 30 --rounds 1"),
    "scale": Benchmark(measure_scale, "cost and memory as chunks and lanes grow", scale_options,
                       "--chunks 2 --lanes 2 --lane-chunks 2 --max-codes 20 --rounds 1"),
}
