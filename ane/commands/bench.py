"""Run `ane bench`: measure the backends of this machine, and print the fastest settings as flags of `ane say`."""

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
from ane.system.errors import NoEffectError, UserError

if TYPE_CHECKING:
    from ane.bench.records import BenchRow
    from ane.bench.worker import FunctionRequest, Tuning, WorkerModel

DESCRIPTION = """
Measure how fast each backend of this machine speaks a sentence, and how fast it runs each function of a Core ML
package. Print the fastest settings as flags of `ane say`, and the fastest engine for each phase, such as decoding. If
the bundle is your own, --backend auto uses the fastest engines on this machine from now on. On a Mac, `ane bench`
measures Core ML on CPU_ONLY, CPU_AND_GPU and CPU_AND_NE (the CPU with the Neural Engine). It leaves out CPU_AND_GPU on
versions of macOS on which Core ML is reported to crash on the GPU.
"""
SENTENCE = "The train leaves at nine, and it will not wait for anyone."
RUNS = 20  # number of calls for each function in a Core ML package
PHASES = {"decode": "Decoding", "rank": "Ranking", "diffuse": "Diffusion", "vocode": "Vocoding"}
WORTH_TWO = 0.1  # share of the time that two engines must save, because the second one takes memory
EXACT = ("auto", "fp16", "bf16", "fp32")  # precisions that ``--backend auto`` may use after a measurement
CHECKERS = ("mil", "coreai")  # engines that only check packages, and are never chosen


def register(commands: argparse._SubParsersAction) -> None:
    from ane.backends import NAMES
    from ane.bundles.package_records import COMPUTE_UNITS
    from ane.models.tortoise.settings import PRESETS

    parser = commands.add_parser(
        "bench", help="measure this machine and print the fastest settings", description=DESCRIPTION
    )
    add_model_arguments(parser)
    add = parser.add_argument_group("measurements").add_argument
    add(
        "--backend",
        type=comma_separated,
        metavar="NAME,…",
        help=f"backends to measure: {', '.join(NAMES[1:])} (default: torch and, on a Mac, torch:cpu. "
        "Also those of coreml, onnx and mlx that can run this bundle on this machine)",
    )
    add(
        "--compute-units",
        type=comma_separated,
        metavar="COMPUTE_UNITS,…",
        help=f"processors for Core ML: {', '.join(COMPUTE_UNITS)} (default: the first three)",
    )
    add(
        "--precision",
        type=comma_separated,
        metavar="P,…",
        help="precisions to measure: any of the bundle's Core ML packages, and for torch on the CPU int8 and, except "
        "on x86-64, fp16 (default: the first precision of the bundle, int8 and fp16)",
    )
    add("--threads", type=counts, metavar="N,…", help="numbers of CPU threads to try (default: 1, 2, 4, … all cores)")
    add("--runs", type=positive, metavar="N", help=f"calls per function of a package (default: {RUNS})")
    add("--text", default=SENTENCE, metavar="TEXT", help="sentence to speak (default: %(default)r)")
    add("--preset", choices=PRESETS, help="preset to speak with (default: the model's)")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="JSON file to write with all figures. '-' is standard output"
    )
    parser.set_defaults(handler=bench)


@dataclass
class BenchRun:
    """The models that one run of `ane bench` measures, and the measurements.

    Attributes:
        subject: The model as `ane say` opens it on this machine.
        models: The model that each backend runs, with the backend's name as the key.
        preset: Name of the preset to speak with. ``None`` for a model without presets.
        functions: For each tuning (a backend with its settings), the measurements of the package functions.
        sentences: For each tuning, the measurement of the spoken sentence. A tuning is absent if one of its functions
            failed.
        refused: For each tuning that must not be chosen as the fastest, the reason. The keys are tunings as text.
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
        return [*([noise] if noise else []), *(f"Not chosen: {name}: {why}" for name, why in self.refused.items())]

    @property
    def rows(self) -> "list[BenchRow]":
        return [*(row for rows in self.functions.values() for row in rows), *self.sentences.values()]

    @property
    def fastest(self) -> "Tuning | None":
        spoken = {tuning: row.value.median for tuning, row in self.sentences.items() if row.value}
        return min(spoken, key=spoken.__getitem__, default=None)


def bench(args: argparse.Namespace) -> int:
    """Run `ane bench`: measure the backends, choose the fastest settings, and report them."""
    from ane.bundles.package_records import COMPUTE_UNITS
    from ane.system.files import check_output_file

    check_files(args, {"output": args.output})
    if args.output:
        check_output_file(args.output, streams=True)
    for units in args.compute_units or ():
        if units not in COMPUTE_UNITS:
            raise UserError(f"--compute-units must be one of {', '.join(COMPUTE_UNITS)}, got {units}")
    run = prepare(args, TerminalConsole(stderr=True, highlight=False, soft_wrap=True))
    measure_functions(run)
    speak_sentence(run)
    report(run)
    return 0


def prepare(args: argparse.Namespace, console: Console) -> BenchRun:
    """Open the model for each backend. Raises UserError if a backend is unknown."""
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
        reason = "because only functions of Core ML packages are called several times"
        raise NoEffectError("runs", f"on {' and '.join(models)}, {reason}", "leave it out")
    args.runs = args.runs or RUNS
    return BenchRun(
        args, console, model, models, args.preset or (default_preset(model.settings) if model.presets else None)
    )


def model_for(spec: str, model: Bundle, console: Console) -> tuple[str, Bundle]:
    """Return the full name of a backend, including its device, and the bundle that the backend runs.

    Raises:
        UserError: The backend is not available here, or the bundle has no packages for it.
    """
    from ane.backends import PACKAGED, resolve

    engine, device = resolve(spec, model)
    if engine in PACKAGED:
        from ane.backends.packaged.selection import select_packages

        packaged = with_packages(model, spec, console)
        select_packages(packaged, "auto")  # raises if the bundle has no packages
        return spec, packaged
    if engine == "onnx":
        from ane.backends.onnx.providers import choose_onnx_device
        from ane.backends.packaged.selection import refuse_cpu_precision, select_packages

        chosen = choose_onnx_device(device)
        refuse_cpu_precision(select_packages(model, "auto", format="onnx", device=chosen.name), chosen)
        return f"onnx:{chosen.name}", model
    if engine == "mlx":
        from ane.backends.engines import EngineOptions, load_mlx

        load_mlx(model, EngineOptions())  # raises if MLX is not installed or runs none of the networks
        return engine, model
    from ane.backends.torch.device import choose_device
    from ane.bundles.opening import is_embedded

    return f"torch:{choose_device(device, small=is_embedded(getattr(model, 'path', None)))}", model


def measure_functions(run: BenchRun) -> None:
    """Measure every function of every package under every tuning.

    Each tuning (engine with settings) is measured in a separate process.
    """
    from ane.backends import PACKAGED
    from ane.bench.sessions import function_rows

    # Core ML compiles into a temporary folder. The user's cache may have compiled models that make the first load fast.
    with run.console.status("measuring") as status, tempfile.TemporaryDirectory(prefix="ane-bench.") as compiled:
        for model, request in requests(run, compiled):
            status.update(f"measuring {request.tuning}")
            rows = run.functions[request.tuning] = []
            for row in function_rows(model, request) if request.tuning.engine in PACKAGED else ():
                rows.append(row)
                status.update(f"measuring {request.tuning}: {row.settings['network']}, {row.what} is done")


def requests(run: BenchRun, compiled: str) -> "Iterator[tuple[WorkerModel, FunctionRequest]]":
    """Yield the tunings (backends with compute units or threads) to measure, one per worker process."""
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
            decodes = spec == "torch:cpu" and "autoregressive" in run.subject.networks
            tunings = [
                Tuning(spec, precision, threads=threads)
                for threads in args.threads or thread_counts(usable_cores())
                for precision in ("auto", *(decoder_precisions(args.precision) if decodes else ()))
            ]
        for tuning in tunings:
            yield WorkerModel.of(model, tuning), FunctionRequest(tuning, args.runs, compiled)


def decoder_precisions(wanted: Sequence[str] | None) -> list[str]:
    """List the precisions other than "auto" in which to measure a decoder on torch on the CPU.

    "fp16" is measured if the CPU is not x86-64, because "auto" means float32 there.
    """
    from ane.backends.torch.linear import HalfPrecisionLinear, prepacking

    halves = prepacking("fp16") is HalfPrecisionLinear
    return [name for name in ("int8", *["fp16"] * halves) if wanted is None or name in wanted]


def thread_counts(cores: int) -> list[int]:
    """Return the powers of two up to ``cores``, and ``cores``."""
    return sorted({*(2**power for power in range(cores.bit_length()) if 2**power <= cores), cores})


def speak_sentence(run: BenchRun) -> None:
    """Speak the sentence with the default settings of `ane say`, and then with every engine that did not fail."""
    from ane.backends import resolve
    from ane.bench.sessions import spoken_sentence
    from ane.bench.worker import TimedRequest, Tuning, WorkerModel

    tried = []
    for tuning, rows in run.functions.items():
        failed = next((row for row in rows if row.error), None)
        if failed or tuning.engine in CHECKERS:
            run.refused[str(tuning)] = (
                f"{failed.what}: {failed.error}" if failed else "this engine is only for checking packages"
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
    """Write the JSON if the user gave -o. Print the tables unless the JSON went to standard output."""
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
        console.print("No settings can be chosen, because none could speak the sentence.")
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
    """Return the seconds that a phase takes per second of speech, or ``None`` if it was not measured."""
    seconds = row.figures.get(f"{stage}_s")
    return seconds / row.figures["audio_s"] if row.value and seconds is not None else None


def phase_lines(sentences: "Sequence[BenchRow]") -> list[str]:
    """Describe each phase that was measured on several engines in one line, which names the fastest engine."""
    lines = []
    for stage, word in PHASES.items():
        times = {row.competitor: seconds for row in sentences if (seconds := per_second(row, stage)) is not None}
        if len(times) > 1:
            best = min(times, key=times.__getitem__)
            lines.append(
                f"{word}: {best} is fastest, {times[best]:.3f} s per second of speech (slowest: "
                f"{max(times.values()):.3f} s)."
            )
    return lines


def fastest_engines(sentences: "Mapping[Tuning, BenchRow]") -> "tuple[Tuning, Tuning] | None":
    """Choose the fastest tuning (engine and precision) for the decoder, and the fastest tuning for all other networks.

    Tunings whose precision is not in ``EXACT`` are left out. The same tuning runs all networks unless two tunings would
    save more than ``WORTH_TWO`` of the time. Return ``None`` if the decoder was measured on fewer than two backends.
    """
    decode = {
        tuning: seconds
        for tuning, row in sentences.items()
        if tuning.precision in EXACT and (seconds := per_second(row, "decode")) is not None
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
    }  # torch has one number of threads for all networks
    single, pair = min(whole, key=whole.__getitem__), min(pairs, key=pairs.__getitem__)
    return pair if pairs[pair] < (1 - WORTH_TWO) * whole[single] else (single, single)


def remember_fastest(run: BenchRun, date: str) -> str:
    """Record the fastest engines, which ``--backend auto`` will use, and return a line that says so.

    If the model is the embedded one, or if the decoder was measured on fewer than two backends, record nothing and
    return "".
    """
    from ane.backends.measured import EngineChoice, measured_file, remember
    from ane.bundles.opening import is_embedded

    fastest = fastest_engines(run.sentences)
    if fastest is None or is_embedded(run.subject.path):
        return ""
    decoder, others = (EngineChoice(**vars(tuning)) for tuning in fastest)
    remember(run.subject, date, decoder, others)
    engines = decoder if decoder == others else f"{decoder} for the decoder, {others} for the other networks"
    return f"--backend auto now uses {engines} for this bundle on this machine ({measured_file(run.subject)})."
