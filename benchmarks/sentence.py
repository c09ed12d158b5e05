"""A whole sentence, from a process that does not run yet to its sound: this package's and upstream's, same files.

    python -m benchmarks.checkpoints /tmp/official --no-stop
    python -m benchmarks.sentence --checkpoints /tmp/official --upstream-python ~/upstream-env/bin/python --threads 1,2

Every reading is of a new process, so that cold start and peak memory are its own; what it is asked for is its first
sentence. All contestants take turns in every round. Random weights never end by themselves: both sides sample
--max-codes for every candidate, no more and no fewer, and a reading of another length is refused. Upstream's preset
``ultra_fast`` is its fastest. It samples all candidates of a sentence in one batch, where it is fastest too, with its
kv-cache. Its models are all loaded before it is ready, and so are ours; "in turn" are ours as `ane say` does it, each
loaded when its step comes and let go after it: less memory, and loading them counts as work on the sentence.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track

from ane.backends.torch.backend import PRECISIONS
from ane.system.errors import UserError
from benchmarks import report
from benchmarks.report import Figures, Shown
from benchmarks.speaking import Speaking, model_flags, model_name
from benchmarks.upstream import UpstreamSpeaker, add_output_option, add_upstream_options, counts

TEXT = "The train leaves at nine."
BATCH = 16          # candidates that upstream samples at a time


@dataclass(frozen=True)
class Case:
    """What is asked of both sides.

    Attributes:
        flags: of `ane say`.
        candidates, steps: what upstream is asked for; ``same`` says whether the flags ask for the same.
    """

    name: str
    flags: tuple[str, ...]
    candidates: int
    steps: int = 30
    same: bool = True


ULTRA_FAST = Case("ultra_fast: 16 candidates, 30 steps", ("--preset", "ultra_fast"), 16)
CASES = {
    "one": Case("1 candidate, 30 steps", ("--preset", "ultra_fast", "--candidates", "1"), 1),
    "ultra_fast": ULTRA_FAST,
    "default": Case("default preset", (), ULTRA_FAST.candidates, same=False),        # against upstream's fastest
    "1x10": Case("quick: 1 candidate, few steps", ("--preset", "1x10"), ULTRA_FAST.candidates, same=False),
}


@dataclass
class Contestant:
    """One side with one number of threads, in one case."""

    precision: str | None       # None: upstream
    threads: int
    case: Case
    in_turn: bool = False       # ours: each network is loaded when its step comes, and let go after it
    readings: list[dict] = field(default_factory=list)
    cold_starts: list[float] = field(default_factory=list)
    peaks: list[float | None] = field(default_factory=list)

    @property
    def upstream(self) -> bool:
        return self.precision is None

    @property
    def side(self) -> str:
        return "upstream fp32" if self.upstream else f"ours {self.precision}{', in turn' * self.in_turn}"

    @property
    def figures(self) -> Figures:
        return Figures.of(self.readings, self.cold_starts, self.peaks)

    @property
    def took(self) -> report.Spread:
        """Seconds for the sentence once there is a process that takes it."""
        return report.Spread.of([reading["took"] for reading in self.readings])

    def matches(self, other: "Contestant") -> bool:
        """Whether ``other``, upstream, is what this one is held against."""
        asked = (self.case.candidates, self.case.steps)
        return other.upstream and other.threads == self.threads and (other.case.candidates, other.case.steps) == asked


def contestants(options: argparse.Namespace) -> list[Contestant]:
    """Both sides in every case with every number of threads; upstream once for cases that ask the same of it."""
    cases, found = [CASES[name] for name in options.cases], []
    for threads in options.threads:
        if options.upstream_python:
            asked = {(case.candidates, case.steps): case if case.same else ULTRA_FAST for case in cases}
            found += [Contestant(None, threads, case) for case in asked.values()]
        found += [Contestant(precision, threads, case, in_turn)
                  for case in cases for precision in options.precisions for in_turn in (False, True)]
    return found


def read(each: Contestant, options: argparse.Namespace, seed: int) -> None:
    """Start a process, let it say the sentence, end it. UserError: it did not sample what it was to."""
    if each.upstream:
        process = UpstreamSpeaker(options.upstream_python, options.checkpoints, each.threads)
    else:
        process = Speaking(model_flags(options), each.precision, each.threads, keep=not each.in_turn,
                           ready_for=None if each.in_turn else flags_of(each.case, options))
    with process:
        if each.upstream:
            steps = options.steps or each.case.steps
            reading = process.ask({"text": options.text, "candidates": each.case.candidates, "steps": steps,
                                   "batch": min(BATCH, each.case.candidates), "guided": False,
                                   "codes": options.max_codes, "seed": seed})
        else:
            reading = process.say(options.text, flags_of(each.case, options), seed)
    if options.checkpoints and reading["codes"] % options.max_codes:
        raise UserError(f"{each.side} sampled {reading['codes']} codes, no multiple of {options.max_codes}: these "
                        "weights end by themselves; make some that do not with python -m benchmarks.checkpoints "
                        "DIR --no-stop")
    each.readings.append(reading)
    each.cold_starts.append(process.cold_start)
    each.peaks.append(process.peak_gb)


def flags_of(case: Case, options: argparse.Namespace) -> list[str]:
    steps = ["--steps", str(options.steps)] if options.steps else []
    return [*case.flags, *steps, "--max-codes", str(options.max_codes)]


def rows(found: Sequence[Contestant]) -> list[dict]:
    """A row for each contestant; the ratios are of the medians that stand in the rows."""
    results = []
    for each in found:
        figures, took = each.figures, each.took
        row = {"name": each.side, "case": each.case.name, "threads": each.threads, "took_s": took,
               "audio_s": report.Spread.of([reading["seconds"] for reading in each.readings]),
               "codes": each.readings[0]["codes"], **report.shared(figures)}
        other = next((one for one in found if one is not each and each.matches(one) and not each.upstream), None)
        if other:
            row["times_upstream"] = other.took.median / took.median
            row["times_upstream_cold"] = ((other.took.median + other.figures.cold_start_s.median)
                                          / (took.median + figures.cold_start_s.median))
            if figures.peak_rss_gb:
                row["share_of_upstream_peak"] = figures.peak_rss_gb.median / other.figures.peak_rss_gb.median
        results.append(row)
    return results


def show(results: Sequence[dict], options: argparse.Namespace) -> list[Shown]:
    """The figures, and the stages of each in a table of their own."""
    columns = ("case", "side", "threads", "cold start s", "until its sound s", "real-time factor", "tokens/s",
               "peak GB", "× upstream", "with cold start", "of its peak")
    first = report.print_table(
        f"A sentence, {options.max_codes} codes a candidate, {options.rounds} rounds, a new process each"
        f"{f'; {options.steps} steps in all cases' if options.steps else ''}", columns,
        [(r["case"], r["name"], r["threads"], r["cold_start_s"], r["took_s"], r["real_time_factor"],
          r["tokens_per_s"], r["peak_rss_gb"], ratio(r, "times_upstream"), ratio(r, "times_upstream_cold"),
          f"{r['share_of_upstream_peak']:.0%}" if "share_of_upstream_peak" in r else None) for r in results])
    stages = list(dict.fromkeys(stage for r in results for stage in r["stage_ms"]))
    second = report.print_table("Milliseconds of each stage", ("case", "side", "threads", *stages), [
        (r["case"], r["name"], r["threads"], *(r["stage_ms"].get(stage) for stage in stages)) for r in results])
    return [first, second]


def ratio(row: dict, key: str) -> str | None:
    return report.figure(row[key]) if key in row else None


def stacked(results: Sequence[dict]) -> dict[str, dict[str, float]]:
    """Seconds of cold start and of each stage, a bar for each row."""
    return {f"{r['case']}, {r['name']}, {r['threads']} thr.": {
        "cold start": r["cold_start_s"].median,
        **{stage: spread.median / 1000 for stage, spread in r["stage_ms"].items()}} for r in results}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sentence", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--checkpoints", type=Path, metavar="DIR", help="official files, for both sides")
    add("--bundle", metavar="NAME|PATH", help="what ours speaks with in place of them (default without: the demo)")
    add_upstream_options(parser)
    add("--cases", type=lambda text: text.split(","), default=["one", "ultra_fast", "default"], metavar="NAME,..",
        help=f"of {', '.join(CASES)} (default one,ultra_fast,default)")
    add("--precisions", type=lambda text: text.split(","), default=["bf16", "int8"],
        help=f"of {', '.join(PRECISIONS)} (default bf16,int8)")
    add("--threads", type=counts, default=[1, 2], help="of either side (default 1,2)")
    add("--rounds", type=int, default=3, help="readings of each figure (default 3)")
    add("--max-codes", type=int, default=86, help="codes of every candidate (default 86: 4 s)")
    add("--steps", type=int, help="diffusion steps of both sides (default: the case's)")
    add("--text", default=TEXT, help=f"default: {TEXT}")
    add_output_option(parser)
    return parser


def check(options: argparse.Namespace) -> None:
    """Raises UserError for options that do not fit each other."""
    for flag, known in (("cases", CASES), ("precisions", PRECISIONS)):
        unknown = [name for name in getattr(options, flag) if name not in known]
        if unknown:
            raise UserError(f"--{flag} {unknown[0]}: there are {', '.join(known)}")
    if options.upstream_python and not options.checkpoints:
        raise UserError("--upstream-python needs --checkpoints: upstream reads official files alone")
    if options.steps == 1 and options.upstream_python:
        raise UserError("--steps 1: upstream needs at least 2")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    check(options)
    output = options.output or report.default_output("sentence")
    found = contestants(options)
    for number in range(options.rounds):
        for each in track(found, f"round {number + 1}", console=Console(stderr=True), transient=True):
            read(each, options, number)
    results = rows(found)
    tables = show(results, options)
    settings = {"text": options.text, "max_codes": options.max_codes, "steps": options.steps,
                "rounds": options.rounds, "threads": options.threads, "model": model_name(options),
                "upstream_batch": BATCH}
    report.publish(output, "sentence", settings, results, tables,
                   {"": lambda path: report.bars(path, "A sentence from cold", "seconds", stacked(results))})


if __name__ == "__main__":
    report.run(main)
