"""The work of `ane bench`: measures functions and a sentence on every backend, and chooses settings."""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from ane.bundles import Model, open_model
from ane.commands.packages import with_packages
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bench.choosing import RefusedSettings
    from ane.bench.records import BenchRow
    from ane.bench.sessions import SpokenSentence
    from ane.bench.tuning import Tuning
    from ane.bench.worker import FunctionRequest, WorkerModel
    from ane.bench.workload import SentenceWork
    from ane.bundles.packages import PackageRecord


@dataclass
class BenchRun:
    """What one run of `ane bench` measures.

    Attributes:
        args: the flags. console: for progress.
        subject: the model as `ane say` opens it here. models: by backend, the model that it needs.
        work: how often the sentence calls each function. preset, text: how the sentence is spoken.
        notes: lines printed below the tables.
    """

    args: argparse.Namespace
    console: Console
    subject: Model
    models: dict[str, Model]
    work: "SentenceWork"
    preset: str
    text: str
    notes: list[str]


def prepare(args: argparse.Namespace, console: Console) -> BenchRun:
    """Open the model for each backend. Raises UserError for an unknown backend or network."""
    from ane.bench.workload import SENTENCE, SentenceWork
    from ane.models.tortoise.settings import Settings, default_preset

    model = open_model(args.bundle, args.checkpoints)
    if not model.family.presets:
        raise UserError(f"`ane bench` measures Tortoise models; {model.name} is a {model.family.title} model")
    subject = with_packages(model, "auto", console)
    core_ml = sys.platform == "darwin" and getattr(subject, "packages", None)
    usual = [*["coreml"] * bool(core_ml), *["onnx"] * bool(getattr(subject, "onnx_packages", None)), "torch"]
    models = dict(model_for(spec, model, subject, console) for spec in args.backend or usual)
    for network in args.networks or ():
        if network not in subject.networks:
            raise UserError(f"--networks {network}: {subject.name} has no such network; it has "
                            f"{', '.join(sorted(subject.networks))}")
    preset = args.preset or default_preset(subject.settings)
    work = SentenceWork.of(Settings.of(preset, subject.settings))
    return BenchRun(args, console, subject, models, work, preset, args.text or SENTENCE, [])


def model_for(spec: str, model: Model, subject: Model, console: Console) -> tuple[str, Model]:
    """A backend with its device, and the model that it runs. Raises UserError for a model without its packages."""
    from ane.backends import PACKAGED, resolve

    def notice(line: str) -> None:
        console.print(escape(line), soft_wrap=True)

    engine, device = resolve(spec, subject)
    if engine in PACKAGED:
        from ane.backends.packaged.selection import select_packages

        packaged = with_packages(model, spec, console)
        select_packages(packaged, "auto")        # raises for a model without packages
        return spec, packaged
    if engine == "onnx":
        from ane.backends.onnx.providers import choose_onnx_device
        from ane.backends.packaged.selection import refuse_cpu_precision, select_onnx_packages

        chosen = choose_onnx_device(device, notice)
        refuse_cpu_precision(select_onnx_packages(subject, "auto", chosen), chosen)
        return f"onnx:{chosen.name}", subject
    from ane.backends.torch.device import choose_device

    return f"torch:{choose_device(device, notice)}", subject


def measure_functions(run: BenchRun) -> "list[BenchRow]":
    """The rows of every function on every backend, measured in processes of their own."""
    from ane.bench.sessions import function_rows

    rows = []
    # compiled models go to a temporary folder: cached ones would make the first load fast, and would be replaced
    with run.console.status("measuring") as status, tempfile.TemporaryDirectory(prefix="ane-bench.") as compiled:
        for model, request in requests(run, compiled):
            threads, units = request.tuning.threads, request.compute_units
            task = " ".join(["measuring", request.tuning.backend, units or "",
                              f"{request.tuning.precision}, threads {threads}" if threads else ""])
            status.update(task)
            for row in function_rows(model, request):
                rows.append(row)
                status.update(f"{task}: {row.settings['network']}, {row.what} is done")
    return with_placement(run, rows) if run.args.placement and sys.platform == "darwin" else rows


def requests(run: BenchRun, compiled: str) -> "Iterator[tuple[WorkerModel, FunctionRequest]]":
    """Yield what one worker process measures: each backend with each of its compute units or numbers of threads."""
    from ane.bench.tuning import Tuning
    from ane.bench.worker import FunctionRequest, WorkerModel
    from ane.bundles.packages import COMPUTE_UNITS
    from ane.system.machine import usable_cores

    args = run.args
    common = FunctionRequest(
        Tuning("torch"), run.preset, args.lanes, args.runs, args.networks and tuple(args.networks),
        args.precision and tuple(args.precision), args.every, compiled)
    for spec, model in run.models.items():
        def request(tuning: Tuning, model: Model = model, **changes: Any) -> "tuple[WorkerModel, FunctionRequest]":
            return WorkerModel.of(model, tuning), replace(common, tuning=tuning, **changes)

        if spec == "coreml":
            for units in args.compute_units or COMPUTE_UNITS[:3]:
                yield request(Tuning(spec, compute_units={"": units}))
        elif spec in ("torch:cpu", "onnx:cpu"):
            for threads in args.threads or thread_counts(usable_cores()):
                yield request(Tuning(spec, threads=threads))
                if spec == "torch:cpu" and (networks := int8_networks(run)):
                    yield request(Tuning(spec, "int8", threads=threads), networks=networks)
        else:
            yield request(Tuning(spec))


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


def with_placement(run: BenchRun, rows: "list[BenchRow]") -> "list[BenchRow]":
    """The rows; those of Core ML with the share of the estimated cost on each device, from the compute plan."""
    from ane.backends.mil.package import Package
    from ane.commands.placement import package_placements

    def key(row: "BenchRow") -> tuple[Any, ...]:
        return row.settings["network"], row.settings["precision"], row.settings["compute_units"], row.what

    core_ml = [row for row in rows if row.competitor == "coreml"]
    found: dict[tuple[Any, ...], Any] = {}
    for package in run.subject.packages:
        for units in dict.fromkeys(row.settings["compute_units"] for row in core_ml):
            names = [row.what for row in core_ml
                     if row.error is None and key(row)[:3] == (package.network, package.precision, units)]
            placements = package_placements(Package(run.subject.path / package.path), units, names) if names else {}
            found |= {(package.network, package.precision, units, name): each for name, each in placements.items()}

    def with_shares(row: "BenchRow") -> "BenchRow":
        placement = found.get(key(row)) if row.competitor == "coreml" else None
        total = sum(placement.costs.values()) if placement else 0
        shares = {f"share_on_{device}": cost / total for device, cost in placement.costs.items()} if total else {}
        return replace(row, figures={**row.figures, **shares})

    return [with_shares(row) for row in rows]


def choose(run: BenchRun, rows: "Sequence[BenchRow]"
           ) -> "tuple[list[SpokenSentence], Tuning | None, list[RefusedSettings]]":
    """Speak the sentence with the best settings of each backend.

    Returns:
        the spoken sentences, the fastest settings, the refused settings.
    """
    from ane.backends import resolve
    from ane.bench.choosing import TuningCandidate, candidates, fastest
    from ane.bench.sessions import spoken_sentence
    from ane.bench.tuning import Tuning
    from ane.bench.worker import TimedRequest, WorkerModel

    tried, refused = candidates(run.subject, rows, run.work, has_parity)
    if run.args.no_speech or run.args.networks:
        return [], fastest(tried, []), refused
    engine, _ = resolve("auto", run.subject)
    default = next((Tuning(spec) for spec in run.models if spec.startswith(engine)), None)
    if default and tried:     # what `ane say` uses without a tuning, to compare with
        tried = [TuningCandidate(default, float("inf")), *tried]
    if not tried:
        return [], None, refused
    with_energy, spoken = energy_is_measured(run), []
    request = TimedRequest(run.text, run.preset, run.args.voice)
    with run.console.status("") as status:
        for candidate in tried:
            name = str(candidate.tuning)
            status.update(f"speaking the sentence: {name}")
            sized = replace(request, lanes=candidate.tuning.lanes)
            spoken.append(spoken_sentence(WorkerModel.of(run.subject, candidate.tuning), sized, name, with_energy))
    return spoken, fastest(tried, spoken), refused


def energy_is_measured(run: BenchRun) -> bool:
    """Whether energy can be measured; on a Mac where it cannot, adds a note that explains how to allow it."""
    from ane.bench.energy import reason_unavailable

    reason = reason_unavailable()
    if reason and sys.platform == "darwin":
        run.notes.append(reason)
    return reason is None


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
