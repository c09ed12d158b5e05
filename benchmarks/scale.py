"""Whether cost grows no faster than the work: a second of audio, and the peak of memory, as chunks and lanes grow.

    python -m benchmarks.scale                      the embedded voice
    python -m benchmarks.scale --checkpoints /tmp/official --precision bf16 --threads 2 --chunks 1,4,16

A text of more and more chunks, its steps in turn and side by side; then a text of some chunks on more and more lanes.
Every reading of these is of a new process, so that peaks of memory are their own; it says a chunk to warm up, and keeps
its networks, so that loading them is no part of any cost. At last four chunks in lanes beside the same four one after
the other, and one chunk with lanes to spare beside one without: these take turns in one such process. A chunk is a
sentence of five seconds; of weights that never end by themselves --max-codes makes it so.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console
from rich.progress import track

from ane.bundles import add_model_arguments
from ane.models.tortoise.settings import PRESETS
from benchmarks import report
from benchmarks.report import Figures, Shown, Spread
from benchmarks.speaking import Speaking, add_speaking_options, model_flags, model_name, text_of
from benchmarks.stream import threads_named
from benchmarks.upstream import add_output_option, counts

CHUNKS, LANES, FOUR = "chunks", "lanes", "four"
LEAST = 8           # lanes when it is chunks that grow: the default of `ane say`


@dataclass
class Point:
    """An amount of work and a way to do it.

    Attributes:
        series: what grows: CHUNKS, LANES, or FOUR for those that are compared with each other.
        apart: chunk by chunk, each a request of its own.
        reference: what this one is held against, the first point of that name in its series (None: of its own name).
    """

    series: str
    name: str
    chunks: int
    lanes: int
    side_by_side: bool = False
    apart: bool = False
    reference: str | None = None
    readings: list[dict] = field(default_factory=list)
    cold_starts: list[float] = field(default_factory=list)
    peaks: list[float | None] = field(default_factory=list)

    def say(self, process: Speaking, options: argparse.Namespace) -> dict:
        flags = ["--preset", options.preset, "--max-codes", str(options.max_codes), "--lanes", str(self.lanes)]
        texts = text_of(self.chunks).split(" | ") if self.apart else [text_of(self.chunks)]
        return together([process.say(text, flags) for text in texts])

    def cost(self) -> float:
        """Seconds for a second of audio, the median."""
        return median(reading["took"] / reading["seconds"] for reading in self.readings)


def together(readings: Sequence[dict]) -> dict:
    """One reading of several requests that followed each other; the first sound is the first one's."""
    first, *others = readings
    total = dict(first, stages=dict(first["stages"]))
    for reading in others:
        for key in ("took", "seconds", "codes", "chunks"):
            total[key] += reading[key]
        for stage, seconds in reading["stages"].items():
            total["stages"][stage] = total["stages"].get(stage, 0.0) + seconds
    return total


def growing(options: argparse.Namespace) -> list[Point]:
    """The points that have a process each."""
    ways = {"steps in turn": False, "steps side by side": True}
    chunks = [Point(CHUNKS, name, count, LEAST, side, reference="steps in turn")
              for name, side in ways.items() for count in sorted(options.chunks) if count > 1 or not side]
    return chunks + [Point(LANES, f"{options.lane_chunks} chunks", options.lane_chunks, lanes)
                     for lanes in sorted(options.lanes)]


def compared() -> list[Point]:
    """The points that take turns in one process."""
    return [Point(FOUR, "one by one", 4, 1, apart=True), Point(FOUR, "in lanes", 4, 4, reference="one by one"),
            Point(FOUR, "one, 1 lane", 1, 1), Point(FOUR, "one, 8 lanes", 1, 8, reference="one, 1 lane")]


def measure(points: Sequence[Point], four: Sequence[Point], options: argparse.Namespace) -> str:
    """Fill the readings of all points, one a round, and return the engine's name."""
    for number in range(options.rounds):
        for point in track(points, f"round {number + 1}", console=Console(stderr=True), transient=True):
            with Speaking(model_flags(options), options.precision, options.threads, keep=True,
                          side_by_side=point.side_by_side) as process:
                Point(point.series, "warm", 1, point.lanes).say(process, options)
                point.readings.append(point.say(process, options))
            point.cold_starts.append(process.cold_start)
            point.peaks.append(process.peak_gb)
    with Speaking(model_flags(options), options.precision, options.threads, keep=True) as process:
        for number in track(range(options.rounds + 1), "lanes", console=Console(stderr=True), transient=True):
            for point in four:
                reading = point.say(process, options)
                if number:
                    point.readings.append(reading)
        return process.ready["backend"]


def summary(points: Sequence[Point]) -> list[dict]:
    """A row for each point; a ratio above 1 says that a second of audio costs less than at the reference."""
    results = []
    for point in points:
        wanted = point.reference or point.name
        reference = next(other for other in points if other.series == point.series and other.name == wanted)
        results.append({
            "name": point.name, "series": point.series, "chunks": point.chunks, "lanes": point.lanes,
            "took_s": Spread.of([reading["took"] for reading in point.readings]),
            "audio_s": Spread.of([reading["seconds"] for reading in point.readings]),
            "times_the_reference": reference.cost() / point.cost(),
            **report.shared(Figures.of(point.readings, point.cold_starts, point.peaks))})
    return results


def show(results: Sequence[dict], options: argparse.Namespace) -> list[Shown]:
    headings = {CHUNKS: f"More chunks, {LEAST} lanes", LANES: "More lanes", FOUR: "Four chunks and one"}
    columns = ("way", "chunks", "lanes", "seconds", "audio s", "cost of a second s", "× as fast as the first",
               "tokens/s", "peak GB")
    return [report.print_table(
        f"{heading}: {options.preset}, {options.rounds} rounds, {threads_named(options.threads)}",
        (*columns[:6], "× as fast as the one above" if series == FOUR else columns[6], *columns[7:]),
        [(r["name"], r["chunks"], r["lanes"], r["took_s"], report.figure(r["audio_s"].median), r["real_time_factor"],
          report.figure(r["times_the_reference"]), r["tokens_per_s"], r["peak_rss_gb"])
         for r in results if r["series"] == series]) for series, heading in headings.items()]


def plots(results: Sequence[dict]) -> dict[str, report.Draw]:
    drawn = {"": (CHUNKS, "real_time_factor", "Cost as the text grows", "seconds for a second of audio"),
             "-lanes": (LANES, "real_time_factor", "Cost as lanes grow", "seconds for a second of audio"),
             "-memory": (CHUNKS, "peak_rss_gb", "Peak of memory as the text grows", "GB")}
    return {ending: lambda path, series=series, y=y, title=title, label=label: report.plot(
        path, title, (series, label), report.curves([row for row in results if row["series"] == series], series, y))
        for ending, (series, y, title, label) in drawn.items()}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    add_speaking_options(parser)
    add = parser.add_argument
    add("--chunks", type=counts, default=[1, 2, 4, 8, 16, 32, 64], help="of a text (default 1,2,4,8,16,32,64)")
    add("--lanes", type=counts, default=[1, 2, 4, 8, 16, 32], help="default 1,2,4,8,16,32")
    add("--lane-chunks", type=int, default=32, help="of the text on those lanes (default 32)")
    add("--preset", choices=PRESETS, default="fastest", help="default fastest")
    add("--rounds", type=int, default=3, help="readings of each figure (default 3)")
    add_output_option(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    output = options.output or report.default_output("scale")
    points, four = growing(options), compared()
    backend = measure(points, four, options)
    results = summary([*points, *four])
    tables = show(results, options)
    settings = {"model": model_name(options), "backend": backend, "preset": options.preset, "threads": options.threads,
                "max_codes": options.max_codes, "rounds": options.rounds}
    report.publish(output, "scale", settings, results, tables, plots(results))


if __name__ == "__main__":
    report.run(main)
