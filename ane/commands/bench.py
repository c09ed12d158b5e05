"""`ane bench`: measure the backends of this machine, and print the fastest settings as flags of `ane say`."""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console

from ane.bundles import Bundle, add_model_arguments, open_model
from ane.commands.arguments import comma_separated, counts, positive
from ane.commands.file_flags import check_files
from ane.commands.messages import TerminalConsole, output_console, print_rows
from ane.commands.packages import with_packages
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bench.records import BenchRow
    from ane.bench.worker import FunctionRequest, Tuning, WorkerModel

DESCRIPTION = """
Measure the time of a sentence on the backends of this machine, and of each function of Core ML packages. The
settings that speak the sentence fastest are printed as flags of `ane say`, with the fastest engine of each phase. For
a bundle of yours the fastest engines are written down, and --backend auto uses them on this machine. On a Mac, Core ML
is measured on CPU_ONLY, CPU_AND_GPU and CPU_AND_NE; on a macOS whose Core ML is reported to crash on the GPU, without
CPU_AND_GPU.
"""
SENTENCE = "The train leaves at nine, and it will not wait for anyone."
RUNS = 20  # calls of each function of a package
PHASES = {"decode": "Decoding", "rank": "Ranking", "diffuse": "Diffusion", "vocode": "Vocoding"}
WORTH_TWO = 0.1  # share of the time that a second engine must save, since both take memory
CHECKERS = ("mil", "coreai")  # engines that run packages to check them, and are never chosen


def register(commands: argparse._SubParsersAction) -> None:
    from ane.backends import NAMES
    from ane.bundles.package_records import COMPUTE_UNITS
    from ane.models.tortoise.settings import PRESETS

    parser = commands.add_parser(
        "bench", help="measure this machine and print the fastest settings", description=DESCRIPTION
    )
    add_model_arguments(parser)
    add = parser.add_argument_group("what is measured").add_argument
    add(
        "--backend",
        type=comma_separated,
        metavar="NAME,…",
        help=f"backends, of {', '.join(NAMES[1:])} (default: torch, onnx and coreml where there are packages, and on "
        "Apple silicon mlx, torch:mps and torch:cpu)",
    )
    add(
        "--compute-units",
        type=comma_separated,
        metavar="COMPUTE_UNITS,…",
        help=f"of {', '.join(COMPUTE_UNITS)} (default: the first three)",
    )
    add(
        "--precision",
        type=comma_separated,
        metavar="P,…",
        help="precisions of Core ML packages, and int8 of torch on the CPU (default: the bundle's first, and int8)",
    )
    add("--threads", type=counts, metavar="N,…", help="CPU threads to try (default: 1, 2, 4, … all cores)")
    add("--runs", type=positive, metavar="N", help=f"calls of each function of a package (default: {RUNS})")
    add("--text", default=SENTENCE, help="the sentence to speak")
    add("--preset", choices=PRESETS, help="how to speak it (default: the model's)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write all figures as JSON; - is standard output")
    parser.set_defaults(handler=bench)


@dataclass
class BenchRun:
    """What one run of `ane bench` measures.

    Attributes:
        subject: the model as `ane say` opens it here. models: by backend, the model that it needs.
        functions: rows by the settings that they were measured with. sentences: of those without an error.
    """

    args: argparse.Namespace
    console: Console
    subject: Bundle
    models: dict[str, Bundle]
    preset: str | None
    functions: "dict[Tuning, list[BenchRow]]" = field(default_factory=dict)
    sentences: "dict[Tuning, BenchRow]" = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        from ane.bench.records import noise_note

        noise = noise_note(self.rows)
        return [*([noise] if noise else []), *(f"Not chosen: {what}: {why}" for what, why in self.refused.items())]

    @property
    def rows(self) -> "list[BenchRow]":
        return [*(row for rows in self.functions.values() for row in rows), *self.sentences.values()]

    @property
    def fastest(self) -> "Tuning | None":
        spoken = {tuning: row.value.median for tuning, row in self.sentences.items() if row.value}
        return min(spoken, key=spoken.__getitem__, default=None)


def bench(args: argparse.Namespace) -> int:
    """Measure, choose and report."""
    from ane.bundles.package_records import COMPUTE_UNITS
    from ane.system.files import check_output_file

    check_files(args, {"output": args.output})
    if args.output:
        check_output_file(args.output)
    for units in args.compute_units or ():
        if units not in COMPUTE_UNITS:
            raise UserError(f"--compute-units must be one of {', '.join(COMPUTE_UNITS)}, got {units}")
    run = prepare(args, TerminalConsole(stderr=True, highlight=False, soft_wrap=True))
    measure_functions(run)
    speak_sentence(run)
    report(run)
    return 0


def prepare(args: argparse.Namespace, console: Console) -> BenchRun:
    """Open the model for each backend. Raises UserError for an unknown backend."""
    from ane.backends import PACKAGED, core_ml_is_chosen
    from ane.backends.choosing import mlx_is_chosen
    from ane.bundles.opening import is_embedded
    from ane.models.tortoise.settings import default_preset
    from ane.speech.request import check_option

    model = open_model(args.bundle)
    if args.preset:
        check_option(model, "preset")
    packaged = model.packages or is_embedded(model.path)
    core_ml = core_ml_is_chosen() and packaged
    usual = [
        *["coreml"] * bool(core_ml),
        *["onnx"] * bool(model.onnx_packages),
        *["mlx"] * mlx_is_chosen(model),
        "torch",
        *["torch:cpu"] * (sys.platform == "darwin" and not is_embedded(model.path)),
    ]
    models = dict(model_for(spec, model, console) for spec in args.backend or usual)
    if args.runs and not any(spec.partition(":")[0] in PACKAGED for spec in models):
        raise UserError(
            f"--runs has no effect on {' and '.join(models)}: only Core ML packages are measured by function"
        )
    args.runs = args.runs or RUNS
    return BenchRun(
        args, console, model, models, args.preset or (default_preset(model.settings) if model.presets else None)
    )


def model_for(spec: str, model: Bundle, console: Console) -> tuple[str, Bundle]:
    """A backend with its device, and the model that it runs. Raises UserError for a model without its packages."""
    from ane.backends import PACKAGED, resolve

    engine, device = resolve(spec, model)
    if engine in PACKAGED:
        from ane.backends.packaged.selection import select_packages

        packaged = with_packages(model, spec, console)
        select_packages(packaged, "auto")  # raises for a model without packages
        return spec, packaged
    if engine == "onnx":
        from ane.backends.onnx.providers import choose_onnx_device
        from ane.backends.packaged.selection import refuse_cpu_precision, select_packages

        chosen = choose_onnx_device(device)
        refuse_cpu_precision(select_packages(model, "auto", format="onnx", device=chosen.name), chosen)
        return f"onnx:{chosen.name}", model
    if engine == "mlx":
        from ane.backends.choosing import EngineOptions, load_mlx

        load_mlx(model, EngineOptions())  # raises where it is not installed, or runs none of the networks
        return engine, model
    from ane.backends.torch.device import choose_device
    from ane.bundles.opening import is_embedded

    return f"torch:{choose_device(device, small=is_embedded(getattr(model, 'path', None)))}", model


def measure_functions(run: BenchRun) -> None:
    """Measure every function of packages with each of the settings, in processes of their own."""
    from ane.backends import PACKAGED
    from ane.bench.sessions import function_rows

    # compiled models go to a temporary folder: cached ones would make the first load fast, and would be replaced
    with run.console.status("measuring") as status, tempfile.TemporaryDirectory(prefix="ane-bench.") as compiled:
        for model, request in requests(run, compiled):
            status.update(f"measuring {request.tuning}")
            rows = run.functions[request.tuning] = []
            for row in function_rows(model, request) if request.tuning.engine in PACKAGED else ():
                rows.append(row)
                status.update(f"measuring {request.tuning}: {row.settings['network']}, {row.what} is done")


def requests(run: BenchRun, compiled: str) -> "Iterator[tuple[WorkerModel, FunctionRequest]]":
    """Yield what one worker process measures: each backend with each of its compute units or numbers of threads."""
    from ane.backends.coreml.tools import crash_advice
    from ane.bench.worker import FunctionRequest, Tuning, WorkerModel
    from ane.bundles.package_records import COMPUTE_UNITS
    from ane.system.machine import macos_version, usable_cores

    args, (cpu, gpu, neural_engine, _) = run.args, COMPUTE_UNITS
    usual = (cpu, neural_engine) if crash_advice(macos_version()) else (cpu, gpu, neural_engine)
    for spec, model in run.models.items():
        tunings = [Tuning(spec)]
        if spec == "coreml":
            tunings = [
                Tuning(spec, precision, units)
                for precision in args.precision or ("auto",)
                for units in args.compute_units or usual
            ]
        elif spec in ("torch:cpu", "onnx:cpu"):
            int8 = (
                spec == "torch:cpu"
                and "autoregressive" in run.subject.networks
                and "int8" in (args.precision or ("int8",))
            )
            tunings = [
                Tuning(spec, precision, threads=threads)
                for threads in args.threads or thread_counts(usable_cores())
                for precision in ("auto", *["int8"] * int8)
            ]
        for tuning in tunings:
            yield WorkerModel.of(model, tuning), FunctionRequest(tuning, args.runs, compiled)


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4, … and ``cores``."""
    return sorted({*(2**power for power in range(cores.bit_length()) if 2**power <= cores), cores})


def speak_sentence(run: BenchRun) -> None:
    """Speak the sentence with what `ane say` uses by itself, and with all settings in which no function failed."""
    from ane.backends import resolve
    from ane.bench.sessions import spoken_sentence
    from ane.bench.worker import TimedRequest, Tuning, WorkerModel

    tried = []
    for tuning, rows in run.functions.items():
        failed = next((row for row in rows if row.error), None)
        if failed or tuning.engine in CHECKERS:
            run.refused[str(tuning)] = (
                f"{failed.what}: {failed.error}" if failed else "it runs packages to check them, and is never chosen"
            )
        else:
            tried.append(tuning)
    engine, _ = resolve("auto", run.subject)
    default = [Tuning(spec) for spec in run.models if spec.startswith(engine)][:1]
    with run.console.status("") as status:
        for tuning in dict.fromkeys([*default, *tried]) if tried else ():
            status.update(f"speaking the sentence: {tuning}")
            run.sentences[tuning] = spoken_sentence(
                WorkerModel.of(run.models[tuning.backend], tuning), TimedRequest(run.args.text, run.preset)
            )


def report(run: BenchRun) -> None:
    """Write the JSON if asked for, and print the tables unless the JSON went to standard output."""
    from ane.bench.records import NOISY, describe_machine, document
    from ane.bench.worker import SEED
    from ane.system.files import write_json

    machine, chosen = describe_machine(), run.fastest
    if run.args.output:
        settings = {"text": run.args.text, "preset": run.preset, "seed": SEED, "runs": run.args.runs}
        packages = [package.path for model in run.models.values() for package in model.packages]
        bundle = {"name": run.subject.name, "identity": run.subject.identity, "packages": [*dict.fromkeys(packages)]}
        write_json(
            run.args.output,
            document(
                "ane bench",
                settings,
                run.rows,
                run.notes,
                machine=machine,
                bundle=bundle,
                chosen=chosen and asdict(chosen),
            ),
        )
    if run.args.output == "-":
        return
    console = output_console()
    console.print(f"{run.subject.name} on {machine['chip']}, {machine['os']}, {machine['date']}")
    sentences = list(run.sentences.values())
    for title, rows in (("Functions", run.rows[: len(run.rows) - len(sentences)]), ("The sentence", sentences)):
        if rows:
            print_rows(title, rows)
    for line in run.notes:
        console.print(line)
    if chosen is None:
        console.print("No settings can be chosen.")
        return
    spread = run.sentences[chosen].value.farthest
    doubt = f", but its times spread by {spread:.0%}" if spread > NOISY else ""
    doubt += ", which computes less exactly: listen to it" if chosen.precision == "int8" else ""
    for line in phase_lines(sentences):
        console.print(line)
    console.print(f"Fastest: {chosen}{doubt}.")
    console.print(f"Use it with: ane say {chosen.flags}")
    if line := remember_fastest(run, machine["date"]):
        console.print(line)


def per_second(row: "BenchRow", stage: str) -> float | None:
    """Return the seconds that a phase takes for a second of speech, or ``None`` if it was not measured."""
    seconds = row.figures.get(f"{stage}_s")
    return seconds / row.figures["audio_s"] if row.value and seconds is not None else None


def phase_lines(sentences: "Sequence[BenchRow]") -> list[str]:
    """Return a line for each phase that was measured on several engines, with the fastest."""
    lines = []
    for stage, word in PHASES.items():
        found = {row.competitor: seconds for row in sentences if (seconds := per_second(row, stage)) is not None}
        if len(found) > 1:
            best = min(found, key=found.__getitem__)
            lines.append(
                f"{word}: {best} is fastest, {found[best]:.3f} s for a second of speech (slowest: "
                f"{max(found.values()):.3f})."
            )
    return lines


def fastest_engines(sentences: "Mapping[Tuning, BenchRow]") -> "tuple[Tuning, Tuning] | None":
    """Return the fastest tunings for the decoder and for all other networks.

    It leaves out tunings that compute less exactly. It chooses two engines only if they save ``WORTH_TWO`` of the time.
    It returns ``None`` if a decoder was measured on fewer than two engines.
    """
    decode = {
        tuning: seconds
        for tuning, row in sentences.items()
        if tuning.precision == "auto" and (seconds := per_second(row, "decode")) is not None
    }
    if len({tuning.backend for tuning in decode}) < 2:
        return None
    whole = {tuning: sentences[tuning].value.median for tuning in decode}
    rest = {tuning: whole[tuning] - decode[tuning] for tuning in decode}
    pairs = {
        (decoder, others): decode[decoder] + rest[others]
        for decoder in decode
        for others in rest
        if not (
            decoder.engine == others.engine == "torch"
            and decoder.threads
            and others.threads
            and decoder.threads != others.threads
        )
    }  # torch has one number for all networks
    single, pair = min(whole, key=whole.__getitem__), min(pairs, key=pairs.__getitem__)
    return pair if pairs[pair] < (1 - WORTH_TWO) * whole[single] else (single, single)


def remember_fastest(run: BenchRun, date: str) -> str:
    """Write down the fastest engines, and say so. "" for a model whose engine is not chosen by measurement."""
    from ane.backends.measured import EngineChoice, measured_file, remember
    from ane.bundles.opening import is_embedded

    found = fastest_engines(run.sentences)
    if found is None or is_embedded(run.subject.path):
        return ""
    decoder, others = (EngineChoice(one.backend, one.compute_units, one.threads) for one in found)
    remember(run.subject, date, decoder, others)
    engines = decoder if decoder == others else f"{decoder} for the decoder, {others} for the other networks"
    return f"--backend auto now uses {engines} for this bundle on this machine ({measured_file(run.subject)})."
