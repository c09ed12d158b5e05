"""Packages of a bundle held to its networks: function by function through their stages, then value by value inside."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ane.backends.mil import Arithmetic, MilRuntime
from ane.backends.mil.package import Package
from ane.backends.packaged.backend import PackagedBackend
from ane.backends.packaged.functions import Engine
from ane.backends.torch.backend import TorchBackend
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import FileRecord, check_hash
from ane.bundles.packages import NAMES, PackageRecord, directory
from ane.system.errors import UserError
from converters.proof.activations import (
    Heard,
    Interpreted,
    Recording,
    Source,
    Value,
    against_run,
    against_twin,
    drifting,
)
from converters.proof.parity import MATHS, ROUNDING, Unpublished, bar_of, companions, probed, snr

SUBJECTS = ("mil", "mil:fp16", "coreml")
SLACK = 3.0         # dB that another processor's sums may cost against what was recorded
SURE = 90.0         # dB above which what was recorded is a matter of float32's own rounding


class ToVerify(Bundle):
    """A bundle whose packages may be damaged: opening it looks at no file of theirs, verifying it does."""

    @property
    def files(self) -> list[FileRecord]:
        return self.manifest.files


@dataclass(frozen=True)
class Subject:
    """What runs the packages.

    Attributes:
        engine: for the stages. source: for the values inside.
        figure: which of a function's recorded ratios it should reach; None: none was recorded of the kind.
        units: where Core ML may run every network; None: what the bundle says of each.
        plain: it computes as the reference run does, so there is nothing to compare.
    """

    name: str
    engine: Engine
    source: Source
    figure: str | None
    units: str | None = None
    plain: bool = False


def subject(name: str, narrow: bool = False, units: str | None = None) -> Subject:
    """One of ``SUBJECTS``. Raises UserError for options that it does not have, and for Core ML off macOS."""
    if narrow and name != "mil:fp16":
        raise UserError(f"--narrow-norms has no effect on --against {name}: it is for mil:fp16")
    if units and name != "coreml":
        raise UserError(f"--compute-units has no effect on --against {name}: it is for coreml")
    if name == "coreml":
        from ane.backends.coreml.runtime import CoreMLRuntime
        from converters.proof.coreml_values import CoreMLValues

        return Subject(name, CoreMLRuntime(), CoreMLValues(), None, units)
    rounded = name == "mil:fp16"
    engine = MilRuntime(Arithmetic(fp16=rounded, narrow_norms=narrow))
    figure = None if narrow else ROUNDING if rounded else MATHS
    return Subject(f"{name}, narrow norms" if narrow else name, engine, Interpreted(engine), figure, plain=not rounded)


@dataclass(frozen=True)
class Checked:
    """A function held to the reference.

    Attributes:
        bar: dB that it must reach. recorded: dB when it was converted, of the same kind.
        snr: dB over what its probe gives. error: largest absolute difference there. None when it could not be run.
        problem: why it could not, or why there are no values.
        values: those that the twin has too, in program order. operations: all, against float32 maths.
    """

    network: str
    package: str
    function: str
    bar: float
    recorded: float | None = None
    snr: float | None = None
    error: float | None = None
    problem: str = ""
    values: Sequence[Value] = ()
    operations: Sequence[Value] = ()

    @property
    def fine(self) -> bool:
        return self.snr is not None and self.snr >= self.needed

    @property
    def needed(self) -> float:
        """The bar, or nearly what was recorded."""
        return self.bar if self.recorded is None else max(self.bar, min(self.recorded, SURE) - SLACK)

    @property
    def drift(self) -> Value | None:
        return drifting(self.values, self.bar)

    @property
    def worst(self) -> Value | None:
        return min(self.values, key=lambda value: value.snr, default=None)


def verify(model: Bundle, chosen: Sequence[tuple[PackageRecord, Sequence[str]]], subject: Subject,
           layers: bool = False, progress: Callable[[str], None] = lambda doing: None) -> list[Checked]:
    """Hold functions of packages (``choose``) to the model's networks on float32 torch.

    ``layers``: the values inside each too. A package that is damaged, or a function that cannot be run, is told of in
    its result.
    """
    reference, results = TorchBackend(model, "cpu", "fp32", keep=False), []
    for package, functions in chosen:
        for name in functions:
            progress(f"{Path(package.path).stem} {name}")
            results.append(_checked(model, package, name, subject, reference, layers))
        subject.source.forget(directory(model.path, package))
        reference.release()
    return results


def choose(model: Bundle, network: str | None = None, function: str | None = None,
           format: str = "coreml") -> list[tuple[PackageRecord, list[str]]]:
    """The packages of a bundle of that format with their functions, or those of one network or name.

    Raises:
        UserError: there are none, or none such.
    """
    held = model.packages if format == "coreml" else model.onnx_packages
    if not held:
        raise UserError(f"{model.name} holds no {NAMES[format]} packages: make them with `ane convert {model.path} "
                        f"--to {format} -o DIR` and use --bundle DIR")
    packages = [package for package in held if network in (None, package.network)]
    if not packages:
        there = ", ".join(dict.fromkeys(package.network for package in held))
        raise UserError(f"--network {network}: {model.name} has no package of it; there are {there}")
    chosen = [(package, [name for name in package.functions if function in (None, name)]) for package in packages]
    if not any(names for _, names in chosen):
        there = ", ".join(dict.fromkeys(name for package in packages for name in package.functions))
        raise UserError(f"--function {function}: no package has it; there are {there}")
    return [(package, names) for package, names in chosen if names]


def _checked(model: Bundle, package: PackageRecord, name: str, subject: Subject, reference: TorchBackend,
             layers: bool) -> Checked:
    record = package.functions[name]
    about = {"network": package.network, "package": Path(package.path).stem, "function": name,
             "bar": bar_of(package, name, subject.figure), "recorded": record.parity.get(subject.figure or "")}
    path, published = directory(model.path, package), Unpublished(model, model.path, [package], reference)
    try:
        for file in package.files:
            check_hash(model.path, file)
        program = Package(path).function(name)
        layers = layers and (subject.source.stateful or not program.states)
        names = [value for op in program.ops for value in op.outputs] if layers else []
        heard = Heard(package.network, record, names, reference.network(package.network))
        with heard.listening():
            wanted = probed(reference, published, record)
        engine = Recording(subject.engine)
        units = {package.network: subject.units} if subject.units else None
        got = probed(PackagedBackend(published, engine, reference, units=units, only=companions(package, name)),
                     published, record)
        about |= {"snr": round(snr(wanted, got), 1), "error": largest(wanted, got)}
        if layers:
            call = engine.calls[name]
            about["values"] = against_twin(heard, subject.source.activations(path, name, call), call)
            if not subject.plain:
                about["operations"] = against_run(program, call, Interpreted(MilRuntime()), subject.source, path)
    except UserError as error:
        about["problem"] = str(error)
    return Checked(**about)


def largest(wanted: list[np.ndarray], got: list[np.ndarray]) -> float:
    return max(float(np.abs(right.astype(np.float64) - left).max()) for right, left in zip(wanted, got, strict=True))
