"""`ane bench`: measure the backends of this machine, and print the fastest settings as flags of `ane say`."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ane.bundles import add_model_arguments
from ane.commands.arguments import counts, path
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bench.choosing import RefusedSettings
    from ane.bench.records import BenchRow
    from ane.bench.sessions import SpokenSentence
    from ane.bench.tuning import Tuning
    from ane.commands.bench_run import BenchRun

DESCRIPTION = """
Measure the time of each function and of a sentence on the backends of this machine, side by side in one table. Choose
the fastest settings, among packages whose parity reaches its threshold, and print them as flags of `ane say`. On a
Mac, Core ML is measured on CPU_ONLY, CPU_AND_GPU and CPU_AND_NE.
"""


def register(commands: argparse._SubParsersAction) -> None:
    from ane.backends import NAMES
    from ane.bundles.packages import COMPUTE_UNITS
    from ane.commands.convert import comma_separated
    from ane.commands.speech_options import positive
    from ane.models.tortoise.settings import DEFAULT_PRESET, PRESETS

    parser = commands.add_parser("bench", help="measure this machine and print the fastest settings",
                                 description=DESCRIPTION)
    add_model_arguments(parser)
    add = parser.add_argument_group("what is measured").add_argument
    add("--backend", type=comma_separated, metavar="NAME,…",
        help=f"backends, of {', '.join(NAMES[1:])} (default: torch, and onnx and coreml where there are packages)")
    add("--compute-units", type=comma_separated, metavar="COMPUTE_UNITS,…",
        help=f"of {', '.join(COMPUTE_UNITS)} (default: the first three)")
    add("--precision", type=comma_separated, metavar="P,…",
        help="precisions of Core ML packages, and int8 of torch on the CPU (default: all)")
    add("--networks", type=comma_separated, metavar="NETWORK,…", help="measure only these, and choose nothing")
    add("--all", action="store_true", dest="every",
        help="every function of the packages, not only those that the sentence uses")
    add("--threads", type=counts, metavar="N,…", help="CPU threads to try (default: 1, 2, 4, … all cores)")
    add("--lanes", type=counts, default=(1, 4, 8, 16), metavar="N,…",
        help="lanes to try, where packages do not fix them (default: 1,4,8,16)")
    add("--runs", type=positive, default=20, metavar="N", help="calls of each function (default: 20)")
    add("--no-speech", action="store_true", help="measure functions only; the sum of their times decides")
    add("--text", help="the sentence to speak")
    add("--preset", choices=PRESETS, help=f"how to speak it (default: the model's, or {DEFAULT_PRESET})")
    add("-v", "--voice", metavar="VOICE", help="voice to speak it with (default: the model's own)")
    add("--placement", action="store_true", help="ask Core ML where it would run each function (Mac; takes longer)")
    add = parser.add_argument_group("output").add_argument
    add("-o", "--output", "--json", metavar="FILE", help="write all figures as JSON; - is standard output")
    add("--plot", metavar="FILE.png", type=path, help="plot the functions' medians (needs the extra plots)")
    parser.add_argument("--compare", metavar="FILE", nargs="+", type=path,
                        help="print reports of `ane doctor --report` or `ane bench -o` side by side; measure nothing")
    parser.set_defaults(handler=bench)


def bench(args: argparse.Namespace) -> int:
    """Measure, choose and report; or compare earlier reports."""
    if args.compare:
        return compare(args)
    from ane.bench.machine import describe_machine
    from ane.bench.report import plot
    from ane.commands.bench_run import choose, measure_functions, prepare

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    check_arguments(args)
    run = prepare(args, console)
    machine = describe_machine()
    rows = measure_functions(run)
    spoken, chosen, refused = choose(run, rows)
    chosen = chosen and replace(chosen, measured=chosen.measured | {"date": machine["date"][:10], "preset": run.preset})
    if args.plot:
        plot(args.plot, f"{run.subject.name} on {machine['chip']}", rows)
    report(run, machine, rows, spoken, refused, chosen)
    return 0


def check_arguments(args: argparse.Namespace) -> None:
    """Raise UserError, before anything is measured, for flags that would fail later."""
    from ane.bench.report import check_plot
    from ane.bundles.packages import COMPUTE_UNITS
    from ane.system.files import check_output_file

    if args.plot:
        check_plot(args.plot)
    if args.output:
        check_output_file(args.output)
    for units in args.compute_units or ():
        if units not in COMPUTE_UNITS:
            raise UserError(f"--compute-units must be one of {', '.join(COMPUTE_UNITS)}, got {units}")


def report(run: "BenchRun", machine: dict[str, Any], rows: "list[BenchRow]", spoken: "Sequence[SpokenSentence]",
           refused: "Sequence[RefusedSettings]", chosen: "Tuning | None") -> None:
    """Write the JSON if asked for, and print the tables unless the JSON went to standard output."""
    from ane.bench.report import document, print_rows
    from ane.bench.workload import SEED
    from ane.system.files import write_json

    sentences = [sentence.row for sentence in spoken]
    if run.args.output:
        packages = [package.path for package in getattr(run.subject, "packages", None) or ()]
        settings = {"text": run.text, "preset": run.preset, "seed": SEED, "runs": run.args.runs}
        bundle = {"name": run.subject.name, "identity": run.subject.identity, "packages": packages}
        write_json(run.args.output, document(
            "ane bench", settings, [*rows, *sentences], run.notes, machine=machine, bundle=bundle,
            refused=[asdict(each) for each in refused], chosen=chosen and asdict(chosen)))
    if run.args.output == "-":
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{run.subject.name} on {machine['chip']}, {machine['os']}, {machine['date']}")
    print_rows("Functions", rows)
    if spoken:
        print_rows("The sentence", sentences)
    for line in (*run.notes, *(f"Not chosen: {each.what}: {each.why}" for each in refused)):
        console.print(line)
    if chosen is None:
        console.print("No settings can be chosen.")
        return
    console.print(f"Fastest: {chosen}.")
    console.print(f"Use it with: ane say {chosen.flags}")


def compare(args: argparse.Namespace) -> int:
    """Print reports side by side, and plot the functions of all with --plot. Raises UserError for another file."""
    from ane.bench.machine_report import comparison, read_report, rows_to_plot
    from ane.bench.report import check_plot, plot, print_table
    from ane.system.files import check_output_file, write_json

    if args.plot:
        check_plot(args.plot)
    if args.output:
        check_output_file(args.output)
    reports = [read_report(file) for file in args.compare]
    headings, cells = comparison(reports)
    if args.plot:
        plot(args.plot, "Functions on each machine", rows_to_plot(reports))
    if args.output:
        write_json(args.output, {"headings": headings, "rows": cells})
    if args.output != "-":
        print_table("Reports side by side", headings, cells)
    return 0
