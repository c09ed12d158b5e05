"""`ane bench`: measure the engines of this machine, and remember the fastest settings for `ane say`."""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from ane.bundles import Model, add_model_arguments, open_model
from ane.commands.packages import with_packages
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.backends.tuning import Tuning
    from ane.bench.figures import Calls, Row, Spoken
    from ane.bench.worker import Job
    from ane.bundles.packages import PackageRecord

DESCRIPTION = """
Measure what the engines of this machine need for each function and for a sentence, choose the fastest settings among
those whose packages hold parity, and remember them: `ane say` takes them wherever no flag says otherwise. On a Mac
every function is measured on CPU_ONLY, CPU_AND_GPU and CPU_AND_NE.
"""


def register(commands: argparse._SubParsersAction) -> None:
    from ane.backends import MEASURED
    from ane.commands.convert import comma_separated
    from ane.commands.speech_options import positive
    from ane.models.tortoise.settings import DEFAULT_PRESET, PRESETS

    parser = commands.add_parser("bench", help="measure this machine and remember the fastest settings",
                                 description=DESCRIPTION)
    add_model_arguments(parser)
    add = parser.add_argument_group("what is measured").add_argument
    add("--backend", type=comma_separated, metavar="NAME,…",
        help=f"of {', '.join(MEASURED)} (default: torch, and on a Mac coreml)")
    add("--units", type=comma_separated, metavar="UNITS,…",
        help="of CPU_ONLY, CPU_AND_GPU, CPU_AND_NE, ALL (default: the first three)")
    add("--precision", type=comma_separated, metavar="P,…",
        help="of the bundle's packages, and int8 of torch on the CPU (default: all that there are)")
    add("--stages", type=comma_separated, metavar="NETWORK,…", help="only these networks; then nothing is remembered")
    add("--all", action="store_true", dest="every",
        help="every function of the packages, not only those that the sentence takes")
    add("--threads", type=numbers, metavar="N,…", help="CPU threads to try torch with (default: 1, 2, 4, … all cores)")
    add("--lanes", type=numbers, default=(1, 4, 8, 16), metavar="N,…",
        help="lanes to try torch's decoder with (default: 1,4,8,16); packages have theirs")
    add("--runs", type=positive, default=20, metavar="N", help="predictions of each function (default: 20)")
    add("--no-speech", action="store_true", help="functions only; settings are then chosen by their sum")
    add("--text", help="the sentence to say")
    add("--preset", choices=PRESETS, help=f"how to say it (default: the model's, or {DEFAULT_PRESET})")
    add("-v", "--voice", metavar="VOICE", help="to say it with (default: the model's own)")
    add("--placement", action="store_true", help="ask Core ML where it would run each function (Mac; takes longer)")
    add = parser.add_argument_group("what becomes of it").add_argument
    add("--json", metavar="FILE", help="write all of it to FILE as JSON; to standard output if -")
    add("--plot", metavar="FILE.png", type=Path, help="draw the functions' medians (needs the extra plots)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--dry-run", action="store_true", help="measure, and remember nothing")
    group.add_argument("--show", action="store_true", help="print what is remembered; measure nothing")
    group.add_argument("--forget", action="store_true", help="delete all that is remembered; measure nothing")
    parser.set_defaults(handler=bench)


def numbers(text: str) -> tuple[int, ...]:
    from ane.commands.convert import counts

    return counts(text)


def bench(args: argparse.Namespace) -> int:
    """Measure, choose, remember, report; or show or forget what is remembered."""
    if args.show:
        return show(args)
    if args.forget:
        return forget()
    from ane.bench.machine import described
    from ane.bench.report import document

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    check(args, console)
    run = prepared(args, console)
    machine = described()
    rows = measured(run)
    spoken, chosen, refused = choose(run, rows)
    chosen = chosen and replace(chosen, measured=chosen.measured | {"date": machine["date"][:10], "preset": run.preset})
    remembered = keep(run, chosen)
    found = document(run.subject, machine, run.calls, run.preset, run.text, rows, spoken, refused, chosen, remembered,
                     run.notes)
    if args.plot:
        from ane.bench.report import plot

        plot(args.plot, f"{run.subject.name} on {machine['chip']}", rows)
    report(run, found, rows, spoken)
    return 0


@dataclass
class Run:
    """A benchmark under way.

    Attributes:
        subject: the model as `ane say` would have it here; models: as each backend needs it.
        notes: what the reader should know.
    """

    args: argparse.Namespace
    console: Console
    subject: Model
    models: dict[str, Model]
    calls: "Calls"
    preset: str
    text: str
    notes: list[str]

    def job(self, model: Model, tuning: "Tuning", **rest: Any) -> "Job":
        from ane.bench.worker import Job
        from ane.bundles.bundle import Bundle

        where = {"bundle" if isinstance(model, Bundle) else "checkpoints": str(Path(model.path).resolve())}
        return Job(tuning, preset=self.preset, voice=self.args.voice, **where, **rest)


def check(args: argparse.Namespace, console: Console) -> None:
    """Refuse before minutes of work what would fail after them. Raises UserError."""
    from ane.backends import tuning
    from ane.backends.coreml.engine import UNITS
    from ane.bench.report import check_plot
    from ane.system.files import check_output_file

    if args.plot:
        check_plot(args.plot)
    if args.json and args.json != "-":
        check_output_file(Path(args.json))
    for units in args.units or ():
        if units not in UNITS:
            raise UserError(f"--units {units}: there are {', '.join(UNITS)}")
    if args.dry_run or args.stages:
        return
    try:
        tuning.entries()
    except tuning.LaterFormatError:
        raise
    except UserError as error:
        console.print(f"[yellow]{escape(str(error))}[/]")


def prepared(args: argparse.Namespace, console: Console) -> Run:
    from ane.backends import MEASURED, PACKAGED, resolve
    from ane.backends.packaged.backend import choose as packages_of
    from ane.bench.figures import SENTENCE, Calls
    from ane.models.tortoise.settings import Settings, default_preset

    model = open_model(args.bundle, args.checkpoints)
    subject = with_packages(model, "auto", console)
    models = {}
    for spec in args.backend or default_backends(subject):
        engine, device = resolve(spec, subject)
        if engine == "onnx":
            raise UserError(f"--backend {spec}: `ane bench` measures {', '.join(MEASURED)}")
        if engine in PACKAGED:
            models[spec] = with_packages(model, spec, console)
            packages_of(models[spec], "auto")       # it must have some
        else:
            from ane.backends.torch.device import choose_device

            chosen = choose_device(device, lambda line: console.print(escape(line), soft_wrap=True))
            models[f"torch:{chosen}"] = subject
    for network in args.stages or ():
        if network not in subject.networks:
            raise UserError(f"--stages {network}: {subject.name} has no such network; it has "
                            f"{', '.join(sorted(subject.networks))}")
    preset = args.preset or default_preset(subject.settings)
    calls = Calls.of(Settings.of(preset, subject.settings))
    return Run(args, console, subject, models, calls, preset, args.text or SENTENCE, [])


def default_backends(model: Model) -> list[str]:
    return [*(["coreml"] if sys.platform == "darwin" and getattr(model, "packages", None) else []), "torch"]


def measured(run: Run) -> "list[Row]":
    """Every function on every engine, in processes of their own."""
    from ane.bench.worker import rows_of

    rows = []
    # a place of its own for compiled models: the user's are neither taken for a cold load nor lost to one
    with run.console.status("measuring") as status, tempfile.TemporaryDirectory(prefix="ane-bench.") as compiled:
        for job in jobs(run, compiled):
            where = job.units or (f"{job.tuning.precision}, threads {job.tuning.threads}" if job.tuning.threads else "")
            status.update(f"measuring {job.tuning.backend} {where}")
            for row in rows_of(job):
                rows.append(row)
                status.update(f"measuring {job.tuning.backend} {where}: {row.network}, {row.function} is done")
    return package_placements(run, rows) if run.args.placement and sys.platform == "darwin" else rows


def jobs(run: Run, compiled: str) -> "Iterator[Job]":
    """A process for each engine with each kind of units or number of threads."""
    from ane.backends.tuning import Tuning, cores
    from ane.bench.choosing import DECODER

    args = run.args
    common = {"compiled": compiled, "lanes": args.lanes, "runs": args.runs, "every": args.every,
              "networks": args.stages and tuple(args.stages), "precisions": args.precision and tuple(args.precision)}
    for spec, model in run.models.items():
        if spec == "coreml":
            for units in args.units or ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE"):
                yield run.job(model, Tuning(spec, units={"": units}), **common)
        elif spec == "torch:cpu":
            for threads in args.threads or thread_counts(cores()):
                yield run.job(model, Tuning(spec, threads=threads), **common)
                if takes_int8(run):
                    yield run.job(model, Tuning(spec, "int8", threads=threads), **common | {"networks": (DECODER,)})
        else:
            yield run.job(model, Tuning(spec), **common)


def takes_int8(run: Run) -> bool:
    """Whether the decoder is tried in int8: the one network that has it, all others are as without."""
    from ane.bench.choosing import DECODER

    wanted, networks = run.args.precision, run.args.stages or run.subject.networks
    return DECODER in networks and (wanted is None or "int8" in wanted)


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4, … and all."""
    return sorted({*(2 ** power for power in range(cores.bit_length()) if 2 ** power <= cores), cores})


def package_placements(run: Run, rows: "list[Row]") -> "list[Row]":
    """The rows of Core ML with what it says of where it would run them."""
    from ane.backends.mil.package import Package
    from ane.commands.placement import package_placements

    found: dict[tuple, Any] = {}
    for package in run.subject.packages:
        for units in dict.fromkeys(row.units for row in rows if row.backend == "coreml"):
            names = [row.function for row in rows if row.error is None and row.backend == "coreml"
                     and (row.network, row.precision, row.units) == (package.network, package.precision, units)]
            told = package_placements(Package(run.subject.path / package.path), units, names) if names else {}
            found |= {(package.network, package.precision, name, units): placement for name, placement in told.items()}

    def share(row: "Row") -> "Row":
        placement = found.get((*row.what, row.units))
        total = sum(placement.costs.values()) if placement else 0
        return replace(row, placement={device: cost / total for device, cost in placement.costs.items()}
                       ) if total else row

    return [share(row) for row in rows]


def choose(run: Run, rows: "Sequence[Row]") -> "tuple[list[Spoken], Tuning | None, list]":
    """The best settings of each engine, the sentence said with each, and the fastest of them."""
    from ane.backends import resolve
    from ane.backends.tuning import Tuning
    from ane.bench.choosing import Candidate, candidates, fastest, told
    from ane.bench.report import NO_STREAMING
    from ane.bench.worker import spoken

    tried, refused = candidates(run.subject, rows, run.calls, holds_parity)
    if run.args.no_speech or run.args.stages:
        return [], fastest(tried, []), refused
    engine, _ = resolve("auto", run.subject)
    usual = next((Tuning(spec) for spec in run.models if spec.startswith(engine)), None)
    if usual and tried:     # what the tuning is to beat
        tried = [Candidate(usual, float("inf")), *tried]
    if not tried:
        return [], None, refused
    energetic = energy(run)
    run.notes.append(NO_STREAMING)
    said = []
    with run.console.status("") as status:
        for candidate in tried:
            status.update(f"saying the sentence: {told(candidate.tuning)}")
            job = run.job(run.subject, candidate.tuning, text=run.text)
            said.append(spoken(job, energetic))
    return said, fastest(tried, said), refused


def energy(run: Run) -> bool:
    """Whether energy can be measured; on a Mac where it cannot, a note says how to allow it."""
    from ane.bench.energy import why_not

    reason = why_not()
    if reason and sys.platform == "darwin":
        run.notes.append(reason)
    return reason is None


def holds_parity(package: "PackageRecord") -> bool:
    """Whether every function of a package was measured at conversion and reached its bar."""
    from converters.proof.parity import hold_to_bar

    try:
        for name, record in package.functions.items():
            if not record.parity:
                return False
            hold_to_bar(package, name, record)
    except UserError:
        return False
    return True


def keep(run: Run, chosen: "Tuning | None") -> bool:
    """Remember what was chosen; whether that was wanted."""
    from ane.backends import tuning

    if chosen is None or run.args.dry_run or run.args.stages:
        return False
    tuning.remember(run.subject, chosen)
    return True


def report(run: Run, found: dict[str, Any], rows: "Sequence[Row]", spoken: "Sequence[Spoken]") -> None:
    """Tables, and JSON where it is asked for."""
    from ane.backends import tuning
    from ane.bench.choosing import told
    from ane.bench.report import rows_table, spoken_table

    if run.args.json:
        write_json(run.args.json, found)
    if run.args.json == "-":
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=200)     # a log, which does not tell its width
    machine = found["machine"]
    console.print(f"{run.subject.name} on {machine['chip']}, {machine['os']}, {machine['date']}")
    console.print(rows_table(rows))
    if spoken:
        console.print(spoken_table(spoken))
    for line in (*found["notes"], *(f"Out: {out['what']}: {out['why']}" for out in found["refused"])):
        console.print(line)
    if found["chosen"] is None:
        console.print("There is nothing to choose.")
        return
    console.print(f"Fastest: {told(tuning.Tuning(**found['chosen']))}.")
    console.print(f"Remembered in {tuning.path()}: `ane say` takes it when no flag says otherwise."
                  if found["remembered"] else "Not remembered.")


def write_json(file: str, found: Any) -> None:
    from ane.system.files import replacing

    if file == "-":
        print(json.dumps(found))
        return
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def show(args: argparse.Namespace) -> int:
    from ane.backends import tuning
    from ane.bench.report import remembered_table

    entries = tuning.entries()
    if args.json:
        write_json(args.json, {"file": str(tuning.path()), "tunings": [asdict(entry) for entry in entries]})
        return 0
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{tuning.path()}:{'' if entries else ' nothing is remembered'}")
    if entries:
        console.print(remembered_table(entries, tuning.here()))
    return 0


def forget() -> int:
    from ane.backends import tuning

    count = tuning.forget()
    Console(highlight=False, markup=False, soft_wrap=True).print(
        f"Forgot {count} tuning{'s' * (count != 1)} in {tuning.path()}" if count else "Nothing was remembered")
    return 0
