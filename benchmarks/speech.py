"""Measure speech synthesis in separate processes, with two benchmarks: `sentence` and `stream`.

- `sentence` measures one sentence. A new process speaks it for every reading, so that the reading also has the cold
start and the peak memory. All competitors, including upstream, load their networks before they get the sentence. With
random weights that never predict the stop code, all competitors sample exactly --max-codes codes per candidate.
- `stream` measures the time to the first audio, and the work per second of audio, for texts of several lengths. One
process loads the networks and speaks all texts. A chunk is a sentence of about five seconds.

The voice is the model's default voice. Models without voices speak with random latents.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ane.bench.measure import RepeatedCall, measure_in_rounds
from ane.bench.records import BenchRow, compare
from ane.bench.sessions import WorkerProcess
from ane.bench.worker import TimedRequest, Tuning, WorkerModel
from ane.bundles import Bundle
from ane.commands.arguments import comma_separated, counts, natural, positive
from ane.models.tortoise.settings import PRESETS
from ane.system.errors import UserError
from ane.system.json_process import JsonProcess
from benchmarks.harness import (
    Benchmark,
    BenchmarkResult,
    Competitor,
    busy_programs,
    check_names,
    chosen_competitors,
    model_name,
)

SECONDS_PER_CHUNK = 5
UPSTREAM_BATCH = 16  # number of candidates that upstream samples at once
UPSTREAM_FILES = ("autoregressive.pth", "diffusion_decoder.pth", "clvp2.pth", "vocoder.pth")
SENTENCES = (  # a sentence is one chunk: 60 to 70 characters, and four to five seconds of speech
    "The train to the old harbour leaves at nine and comes back at noon.",
    "She put the letter into the drawer and never spoke of it again.",
    "A small boat lay on the sand, its sail torn by the winter storms.",
    "Nobody in the village could remember when the bridge was built.",
    "He counted the steps to the tower twice, and lost his way both times.",
    "In the morning the garden was white, and not a bird was singing.",
)


@dataclass(frozen=True)
class SentenceCase:
    """A case of the benchmark `sentence`. upstream takes ``candidates`` and ``steps``, and this package ``preset``."""

    candidates: int
    steps: int
    preset: str = "ultra_fast"


CASES = {"one": SentenceCase(1, 30), "ultra_fast": SentenceCase(16, 30), "fastest": SentenceCase(16, 30, "fastest")}


def text_of_chunks(number: int) -> str:
    """Make a text with ``number`` sentences, one per chunk. The worker splits the text at "|"."""
    return " | ".join(SENTENCES[index % len(SENTENCES)] for index in range(number))


def start_worker(
    competitor: Competitor, model: Bundle, threads: int, prepare: TimedRequest | None = None
) -> tuple[WorkerProcess, float]:
    """Start a process, and open the model in it. Return the process, and the seconds until it accepts a request."""
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


def speech_figures(answer: dict[str, Any]) -> dict[str, Any]:
    """Convert a worker's answer to the figures of a row: seconds of work, seconds of audio, and rates."""
    first = answer.get("first_audio")
    return {
        "took_s": answer["elapsed"],
        "audio_s": answer["seconds"],
        "real_time_factor": answer["elapsed"] / answer["seconds"],
        **({} if first is None else {"first_audio_s": first}),
        "tokens_per_s": answer["codes"] / answer["stages"]["decode"],
        **{f"{stage}_s": seconds for stage, seconds in answer["stages"].items()},
    }


def measure_sentence(options: argparse.Namespace) -> BenchmarkResult:
    check_names("--cases", options.cases, CASES)
    model, competitors = chosen_competitors(options)
    calls = [
        RepeatedCall(
            BenchRow(competitor.name, "sentence", "s", {"case": name}),
            partial(sentence_reading, competitor, CASES[name], model, options),
        )
        for name in options.cases
        for competitor in competitors
    ]
    with busy_programs(options.busy):
        rows = measure_in_rounds(calls, options.rounds, warm_up=False)
    settings = {
        "model": model_name(options),
        "text": options.text,
        "max_codes": options.max_codes,
        "threads": options.threads,
        "rounds": options.rounds,
        "busy": options.busy,
    }
    return BenchmarkResult(compare(rows, lambda row: row.competitor.startswith("upstream"), "times_upstream"), settings)


def sentence_reading(
    competitor: Competitor, case: SentenceCase, model: Bundle, options: argparse.Namespace
) -> dict[str, Any]:
    """Start a process, let it speak the sentence, and end it. "value" is the seconds that the sentence took."""
    steps = options.steps or case.steps
    if competitor.engine == "upstream":
        process = upstream_process(options)
        cold_start = process.cold_start
        request: Any = {
            "text": options.text,
            "candidates": case.candidates,
            "steps": steps,
            "batch": min(UPSTREAM_BATCH, case.candidates),
            "guided": False,
            "codes": options.max_codes,
            "seed": 0,
        }
    else:
        spoken = TimedRequest(
            options.text,
            case.preset,
            max_codes=options.max_codes,
            steps=steps,
            candidates=PRESETS[case.preset].candidates if case.candidates > 1 else 1,
        )
        process, cold_start = start_worker(competitor, model, options.threads, spoken)
        request = {"speak": asdict(spoken)}
    with process:
        answer = process.ask(request)
    if options.checkpoints and answer["codes"] % options.max_codes:
        raise UserError(
            f"{answer['codes']} codes were sampled, not a multiple of {options.max_codes}: compare with "
            "weights that never predict the stop code (python -m benchmarks checkpoints DIR --no-stop)"
        )
    figures = speech_figures(answer)
    return {"value": figures.pop("took_s"), "cold_start_s": cold_start, **figures, "peak_bytes": process.peak_bytes}


def upstream_process(options: argparse.Namespace) -> JsonProcess:
    """Start ``upstream_worker.py`` in upstream's environment. Raises UserError if an official file is missing."""
    for file in UPSTREAM_FILES:
        if not (options.checkpoints / file).is_file():
            raise UserError(f"{options.checkpoints} has no {file}: upstream loads official checkpoints")
    script = Path(__file__).with_name("upstream_worker.py")
    return JsonProcess(
        [str(options.upstream_python), str(script), str(options.checkpoints), "--threads", str(options.threads)],
        {"OMP_NUM_THREADS": str(options.threads)},
        "make its environment as docs/benchmarks.md says",
    )


def measure_stream(options: argparse.Namespace) -> BenchmarkResult:
    model, competitors = chosen_competitors(options)
    calls: list[RepeatedCall] = []
    with ExitStack() as stack:
        for competitor in competitors:
            if competitor.engine == "upstream":
                continue  # upstream does not stream
            process = stack.enter_context(start_worker(competitor, model, options.threads)[0])
            for preset in options.presets:
                for seconds in sorted(options.seconds):
                    chunks = max(1, round(seconds / SECONDS_PER_CHUNK))
                    request = TimedRequest(text_of_chunks(chunks), preset, stream=True, max_codes=options.max_codes)
                    row = BenchRow(competitor.name, f"stream, {preset}", "s to first audio", {"chunks": chunks})
                    calls.append(RepeatedCall(row, partial(stream_reading, process, request)))
        rows = measure_in_rounds(calls, options.rounds)
    return BenchmarkResult(
        rows,
        {
            "model": model_name(options),
            "max_codes": options.max_codes,
            "threads": options.threads,
            "rounds": options.rounds,
        },
    )


def stream_reading(process: WorkerProcess, request: TimedRequest) -> dict[str, Any]:
    answer = process.ask({"speak": asdict(request)})
    figures = speech_figures(answer)
    return {"value": figures.pop("first_audio_s"), **figures, "peak_bytes": answer["peak_bytes"]}


def sentence_options(add: Callable[..., Any]) -> None:
    add("--cases", type=comma_separated, default=list(CASES), metavar="NAME,…", help=f"cases ({','.join(CASES)})")
    add(
        "--steps",
        type=positive,
        metavar="N",
        help="number of diffusion steps for all competitors, at least 2 (default: the steps of the case)",
    )
    add("--text", default="The train leaves at nine.", help="sentence to speak (default: %(default)s)")
    add("--max-codes", type=positive, default=86, metavar="N", help="most codes of a chunk (default: %(default)s)")
    add("--busy", type=natural, default=0, metavar="N", help="number of other busy programs (default: 0)")


def stream_options(add: Callable[..., Any]) -> None:
    add(
        "--seconds",
        type=counts,
        default=[5, 10, 20, 40, 60],
        metavar="N,…",
        help="lengths of the texts in seconds of audio (default: 5,10,20,40,60)",
    )
    add("--presets", type=comma_separated, default=["fastest", "1x10"], metavar="P,…", help="presets (fastest,1x10)")
    add("--max-codes", type=positive, default=108, metavar="N", help="most codes of a chunk (default: %(default)s)")


BENCHMARKS = {
    "sentence": Benchmark(
        measure_sentence,
        "time, cold start and memory of a new process that speaks a sentence",
        sentence_options,
        "--cases one --max-codes 20 --steps 4 --rounds 1",
    ),
    "stream": Benchmark(
        measure_stream,
        "time to the first audio, and work per second of audio",
        stream_options,
        "--seconds 5,10 --presets fastest --max-codes 30 --rounds 1",
    ),
}
