"""`ane bench`: measure the backends of this machine, and print the fastest settings as flags of `ane say`."""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ane.bundles import Model, add_model_arguments, open_model
from ane.commands.arguments import comma_separated, counts, path, positive
from ane.commands.messages import output_console, plain_table, print_rows
from ane.commands.packages import with_packages
from ane.speech.settings import check_option
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bench.choosing import Measured, RefusedSettings, SpokenSentence
    from ane.bench.records import BenchRow
    from ane.bench.worker import FunctionRequest, WorkerModel
    from ane.bundles.packages import PackageRecord

DESCRIPTION = """
Measure the time of each function and of a sentence on the backends of this machine, side by side in one table. The
settings that speak the sentence fastest, among packages whose parity reaches its threshold, are printed as flags of
`ane say`. On a Mac, Core ML is measured on CPU_ONLY, CPU_AND_GPU and CPU_AND_NE.
"""
SENTENCE = "The train leaves at nine, and it will not wait for anyone."


def register(commands: argparse._SubParsersAction) -> None:
    from ane.backends import NAMES
    from ane.bundles.packages import COMPUTE_UNITS
    from ane.models.tortoise.settings import PRESETS

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
    add("--threads", type=counts, metavar="N,…", help="CPU threads to try (default: 1, 2, 4, … all cores)")
    add("--lanes", type=counts, default=(1, 4, 8, 16), metavar="N,…",
        help="lanes to try, where packages do not fix them (default: 1,4,8,16)")
    add("--runs", type=positive, default=20, metavar="N", help="calls of each function (default: 20)")
    add("--no-speech", action="store_true", help="measure functions only, and choose nothing")
    add("--text", help="the sentence to speak")
    add("--preset", choices=PRESETS, help="how to speak it (default: the model's)")
    add("-v", "--voice", metavar="VOICE", help="voice to speak it with (default: the model's own)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write all figures as JSON; - is standard output")
    parser.add_argument("--compare", metavar="FILE", nargs="+", type=path,
                        help="print reports of `ane doctor --report` or `ane bench -o` side by side; measure nothing")
    parser.set_defaults(handler=bench, former={
        "--json": "use -o FILE", "--plot": "write the figures with -o FILE and plot them with a program of your choice",
        "--placement": "`ane plan` asks Core ML where it would run each function"})


@dataclass
class BenchRun:
    """What one run of `ane bench` measures.

    Attributes:
        args: the flags. console: for progress.
        subject: the model as `ane say` opens it here. models: by backend, the model that it needs.
        preset, text: how the sentence is spoken.
    """

    args: argparse.Namespace
    console: Console
    subject: Model
    models: dict[str, Model]
    preset: str | None
    text: str
    spoken: "list[SpokenSentence]" = field(default_factory=list)
    refused: "list[RefusedSettings]" = field(default_factory=list)
    rows: "list[BenchRow]" = field(default_factory=list)

    def measure(self) -> None:
        """Measure the functions, and speak the sentence."""
        self.spoken, self.refused = speak_sentence(self, measure_functions(self))

    @property
    def all_rows(self) -> "list[BenchRow]":
        return [*self.rows, *(sentence.row for sentence in self.spoken)]

    @property
    def notes(self) -> list[str]:
        from ane.bench.records import noise_note

        noise = noise_note(self.all_rows)
        return [*([noise] if noise else []), *(f"Not chosen: {each.what}: {each.why}" for each in self.refused)]


def bench(args: argparse.Namespace) -> int:
    """Measure, choose and report; or compare earlier reports."""
    from ane.bundles.packages import COMPUTE_UNITS
    from ane.system.files import check_output_file

    if args.output:
        check_output_file(args.output)
    if args.compare:
        return compare(args)
    for units in args.compute_units or ():
        if units not in COMPUTE_UNITS:
            raise UserError(f"--compute-units must be one of {', '.join(COMPUTE_UNITS)}, got {units}")
    run = prepare(args, Console(stderr=True, highlight=False, soft_wrap=True))
    run.measure()
    report(run)
    return 0


def prepare(args: argparse.Namespace, console: Console) -> BenchRun:
    """Open the model for each backend. Raises UserError for an unknown backend or network."""
    from ane.models.tortoise.settings import default_preset

    model = open_model(args.bundle, args.checkpoints)
    for name in ("preset", "voice"):
        if getattr(args, name):
            check_option(model, name)
    subject = with_packages(model, "auto", console)
    core_ml = sys.platform == "darwin" and getattr(subject, "packages", None)
    usual = [*["coreml"] * bool(core_ml), *["onnx"] * bool(getattr(subject, "onnx_packages", None)), "torch"]
    models = dict(model_for(spec, model, subject, console) for spec in args.backend or usual)
    for network in args.networks or ():
        if network not in subject.networks:
            raise UserError(f"--networks {network}: {subject.name} has no such network; it has "
                            f"{', '.join(sorted(subject.networks))}")
    preset = args.preset or (default_preset(subject.settings) if model.presets else None)
    return BenchRun(args, console, subject, models, preset, args.text or SENTENCE)


def model_for(spec: str, model: Model, subject: Model, console: Console) -> tuple[str, Model]:
    """A backend with its device, and the model that it runs. Raises UserError for a model without its packages."""
    from ane.backends import PACKAGED, resolve

    engine, device = resolve(spec, subject)
    if engine in PACKAGED:
        from ane.backends.packaged.selection import select_packages

        packaged = with_packages(model, spec, console)
        select_packages(packaged, "auto")        # raises for a model without packages
        return spec, packaged
    if engine == "onnx":
        from ane.backends.onnx.providers import choose_onnx_device
        from ane.backends.packaged.selection import refuse_cpu_precision, select_onnx_packages

        chosen = choose_onnx_device(device)
        refuse_cpu_precision(select_onnx_packages(subject, "auto", chosen), chosen)
        return f"onnx:{chosen.name}", subject
    from ane.backends.torch.device import choose_device

    return f"torch:{choose_device(device)}", subject


def measure_functions(run: BenchRun) -> "list[Measured]":
    """The rows of every function by the settings they were measured with, in processes of their own."""
    from ane.bench.sessions import function_rows

    measured = []
    # compiled models go to a temporary folder: cached ones would make the first load fast, and would be replaced
    with run.console.status("measuring") as status, tempfile.TemporaryDirectory(prefix="ane-bench.") as compiled:
        for model, request in requests(run, compiled):
            status.update(f"measuring {request.tuning}")
            rows = []
            for row in function_rows(model, request):
                rows.append(row)
                status.update(f"measuring {request.tuning}: {row.settings['network']}, {row.what} is done")
            measured.append((request.tuning, rows))
            run.rows += rows
    return measured


def requests(run: BenchRun, compiled: str) -> "Iterator[tuple[WorkerModel, FunctionRequest]]":
    """Yield what one worker process measures: each backend with each of its compute units or numbers of threads."""
    from ane.bench.choosing import Tuning
    from ane.bench.worker import FunctionRequest, WorkerModel
    from ane.bundles.packages import COMPUTE_UNITS
    from ane.system.machine import usable_cores

    args = run.args
    networks, precisions = args.networks and tuple(args.networks), args.precision and tuple(args.precision)
    for spec, model in run.models.items():
        tunings = [Tuning(spec)]
        if spec == "coreml":
            tunings = [Tuning(spec, compute_units=units) for units in args.compute_units or COMPUTE_UNITS[:3]]
        elif spec in ("torch:cpu", "onnx:cpu"):
            int8 = ["int8"] if spec == "torch:cpu" and int8_networks(run) else []
            tunings = [Tuning(spec, precision, threads=threads)
                       for threads in args.threads or thread_counts(usable_cores()) for precision in ("auto", *int8)]
        for tuning in tunings:
            own = int8_networks(run) if tuning.precision == "int8" else networks
            yield WorkerModel.of(model, tuning), FunctionRequest(tuning, run.preset, args.lanes, args.runs, own,
                                                                 precisions, compiled)


def int8_networks(run: BenchRun) -> tuple[str, ...]:
    """The networks that are measured in int8 on torch, where only they differ from the default precision."""
    from ane.bench.choosing import DECODER, DENOISER

    precisions, networks = run.args.precision, run.args.networks or run.subject.networks
    if DECODER not in networks or (precisions is not None and "int8" not in precisions):
        return ()
    return tuple(name for name in (DECODER, DENOISER) if name in networks)


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4, … and ``cores``."""
    return sorted({*(2 ** power for power in range(cores.bit_length()) if 2 ** power <= cores), cores})


def speak_sentence(run: BenchRun, measured: "list[Measured]") -> "tuple[list[SpokenSentence], list[RefusedSettings]]":
    """The sentence spoken with each of the settings, and those that are refused."""
    from ane.backends import resolve
    from ane.bench.choosing import Tuning, candidates
    from ane.bench.sessions import spoken_sentence
    from ane.bench.worker import TimedRequest, WorkerModel

    request = TimedRequest(run.text, run.preset, run.args.voice)
    sampled = getattr(request.settings(run.subject), "candidates", 1)
    tried, refused = candidates(run.subject, measured, sampled, has_parity)
    if run.args.no_speech or run.args.networks or not tried:
        return [], refused
    engine, _ = resolve("auto", run.subject)         # what `ane say` uses when nothing is chosen, to compare with
    default = [Tuning(spec) for spec in run.models if spec.startswith(engine)][:1]
    spoken = []
    with run.console.status("") as status:
        for tuning in dict.fromkeys([*default, *tried]):
            status.update(f"speaking the sentence: {tuning}")
            spoken.append(spoken_sentence(WorkerModel.of(run.subject, tuning),
                                          TimedRequest(run.text, run.preset, run.args.voice, lanes=tuning.lanes),
                                          str(tuning)))
    return spoken, refused


def has_parity(package: "PackageRecord") -> bool:
    """Whether every function of a Core ML package was compared at conversion and reached its threshold."""
    from converters.proof.parity import check_threshold

    try:
        for name, record in package.functions.items():
            if not record.parity:
                return False
            check_threshold(package, name, record)
    except UserError:
        return False
    return True


def report(run: BenchRun) -> None:
    """Write the JSON if asked for, and print the tables unless the JSON went to standard output."""
    from ane.bench.choosing import fastest
    from ane.bench.machine import describe_machine
    from ane.bench.records import NOISY, document
    from ane.bench.worker import SEED
    from ane.system.files import write_json

    machine, chosen = describe_machine(), fastest(run.spoken)
    if run.args.output:
        settings = {"text": run.text, "preset": run.preset, "seed": SEED, "runs": run.args.runs}
        bundle = {"name": run.subject.name, "identity": run.subject.identity,
                  "packages": [package.path for package in getattr(run.subject, "packages", None) or ()]}
        write_json(run.args.output, document(
            "ane bench", settings, run.all_rows, run.notes, machine=machine, bundle=bundle,
            refused=[asdict(each) for each in run.refused], chosen=chosen and asdict(chosen.tuning)))
    if run.args.output == "-":
        return
    console = output_console()
    console.print(f"{run.subject.name} on {machine['chip']}, {machine['os']}, {machine['date']}")
    for title, rows in (("Functions", run.rows), ("The sentence", [sentence.row for sentence in run.spoken])):
        if rows:
            print_rows(title, rows)
    for line in run.notes:
        console.print(line)
    if chosen is None:
        console.print("No settings can be chosen.")
        return
    value: Any = chosen.row.value
    doubt = f", but its times spread by {value.farthest:.0%}" if value.farthest > NOISY else ""
    console.print(f"Fastest: {chosen.tuning}{doubt}.")
    console.print(f"Use it with: ane say {chosen.tuning.flags}")


def compare(args: argparse.Namespace) -> int:
    """Print reports side by side. Raises UserError for another file."""
    from ane.bench.reports import comparison, read_report
    from ane.system.files import write_json

    headings, cells = comparison([read_report(file) for file in args.compare])
    if args.output:
        write_json(args.output, {"headings": headings, "rows": cells})
    if args.output != "-":
        output_console().print(plain_table("Reports side by side", *headings, rows=cells))
    return 0
