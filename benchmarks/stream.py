"""How soon speech begins, and what it costs to go on: first sound and cost of a second, of short and long texts.

    python -m benchmarks.stream                     the embedded voice
    python -m benchmarks.stream --checkpoints /tmp/official --precision bf16 --threads 2

Texts are of sentences that are chunks of five seconds each: of weights that never end by themselves --max-codes makes
them so, the embedded voice speaks its own length. Streams of all lengths take turns in every round, on both ways to
sound: HiFi-GAN (``fastest``) and diffusion. The process stays, its networks loaded, as those of a program that speaks
often; its peak of memory is of all its texts.
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import track

from ane.bundles import add_model_arguments
from ane.models.tortoise.settings import PRESETS
from benchmarks import report
from benchmarks.report import Figures, Shown
from benchmarks.speaking import Speaking, add_speaking_options, model_flags, model_name, text_of
from benchmarks.upstream import add_output_option, counts

SECONDS_A_CHUNK = 5


@dataclass
class Course:
    """A text of some length on one way to sound."""

    preset: str
    seconds: int        # asked for
    process: Speaking
    readings: list[dict] = field(default_factory=list)

    @property
    def chunks(self) -> int:
        return max(1, round(self.seconds / SECONDS_A_CHUNK))

    def read(self, max_codes: int, seed: int) -> dict:
        return self.process.say(text_of(self.chunks), ["--preset", self.preset, "--max-codes", str(max_codes)], seed,
                                stream=True)


def measure(courses: Sequence[Course], rounds: int, max_codes: int) -> None:
    """Fill every course's readings, one a round; each preset's shortest text warms its process up and is lost."""
    for preset in dict.fromkeys(course.preset for course in courses):
        min((course for course in courses if course.preset == preset), key=lambda one: one.chunks).read(max_codes, 0)
    for number in track(range(rounds), "rounds", console=Console(stderr=True), transient=True):
        for course in courses:
            course.readings.append(course.read(max_codes, number + 1))


def summary(courses: Sequence[Course]) -> list[dict]:
    """A row for each course, once its process has ended; its cost is held against that of the shortest text."""
    results: list[dict] = []
    for course in courses:
        process = course.process
        figures = Figures.of(course.readings, [process.cold_start], [process.peak_gb])
        shortest = next((row for row in results if row["name"] == course.preset), None)
        cost = figures.real_time_factor.median
        results.append({"name": course.preset, "asked_s": course.seconds, "chunks": course.readings[0]["chunks"],
                        "audio_s": report.Spread.of([reading["seconds"] for reading in course.readings]),
                        "times_the_shortest": cost / (shortest["real_time_factor"].median if shortest else cost),
                        **report.shared(figures)})
    return results


def show(results: Sequence[dict], options: argparse.Namespace) -> Shown:
    columns = ("preset", "asked s", "chunks", "audio s", "first sound p50 s", "p95 s", "cost of a second s",
               "× the shortest", "tokens/s", "peak GB")
    title = f"Streams, {options.rounds} rounds, {threads_named(options.threads)}"
    return report.print_table(title, columns, [
        (r["name"], r["asked_s"], r["chunks"], report.figure(r["audio_s"].median),
         report.figure(r["first_audio_s"].p50), report.figure(r["first_audio_s"].p95), r["real_time_factor"],
         report.figure(r["times_the_shortest"]), r["tokens_per_s"], r["peak_rss_gb"]) for r in results])


def threads_named(threads: int | None) -> str:
    return "the engine's own threads" if threads is None else f"{threads} thread{'s' * (threads > 1)}"


def first_sounds(results: Sequence[dict]) -> dict[str, dict[float, report.Spread]]:
    """Half and 19 of 20 of the first sounds over seconds of audio: a bar from p50 to p95."""
    curves: dict[str, dict[float, report.Spread]] = {}
    for r in results:
        first = r["first_audio_s"]
        curves.setdefault(r["name"], {})[r["audio_s"].median] = report.Spread(first.p50, first.p50, first.p95,
                                                                             first.readings)
    return curves


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    add_speaking_options(parser)
    add = parser.add_argument
    add("--seconds", type=counts, default=[5, 10, 20, 40, 60], help="of audio (default 5,10,20,40,60)")
    add("--presets", type=lambda text: text.split(","), default=["fastest", "1x10"],
        help=f"of {', '.join(PRESETS)} (default fastest,quick)")
    add("--rounds", type=int, default=5, help="readings of each figure (default 5)")
    add_output_option(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    output = options.output or report.default_output("stream")
    with ExitStack() as stack:
        courses = []
        for preset in options.presets:
            process = stack.enter_context(Speaking(model_flags(options), options.precision, options.threads, keep=True))
            courses += [Course(preset, seconds, process) for seconds in sorted(options.seconds)]
        backend = courses[0].process.ready["backend"]
        measure(courses, options.rounds, options.max_codes)
    results = summary(courses)
    shown = show(results, options)
    settings = {"model": model_name(options), "backend": backend, "threads": options.threads,
                "max_codes": options.max_codes, "rounds": options.rounds}
    report.publish(output, "stream", settings, results, [shown], {
        "": lambda path: report.plot(path, "First sound, p50 to p95", ("seconds of audio", "seconds"),
                                     first_sounds(results)),
        "-cost": lambda path: report.plot(path, "Cost of a second of audio", ("seconds of audio", "seconds"),
                                          report.curves(results, "audio_s", "real_time_factor"))})


if __name__ == "__main__":
    report.run(main)
