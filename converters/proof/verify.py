"""Compare the functions of a bundle's packages with the PyTorch networks, and optionally every value inside them.

The PyTorch networks run in float32 and are the reference. Differences are signal-to-noise ratios in dB, where the error
is the noise. A runner is an engine on which the functions can run, such as Core ML or the interpreter.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ane.backends.mil import MilRuntime
from ane.backends.mil.package import Package
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import OnnxDevice, choose_onnx_device
from ane.backends.onnx.sessions import session_loader
from ane.backends.packaged.backend import PackagedBackend
from ane.backends.packaged.functions import Runtime
from ane.backends.torch.backend import TorchBackend
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import FileRecord, check_hashes
from ane.bundles.package_records import PUBLISHED, FunctionRecord, PackageFolder, PackageRecord
from ane.system.errors import NoEffectError, UserError
from converters.function_table import published_name
from converters.proof import activations, parity
from converters.proof.activations import CallRecorder, CapturedOutputs, compare_with_modules
from converters.proof.differences import core_ml_activations, first_difference, first_loss
from converters.proof.elements import ComparedValue, LayerComparison, first_drift
from converters.proof.onnx_values import captured_outputs, compare_values, instrumented
from converters.proof.parity import reference_backend, run_probe

# The parity of a function is its dB against the reference. The conversion records it in bundle.json
SLACK = 3.0  # on another processor, a function may have this many dB less than recorded
FLOAT32_NOISE = 90.0  # a parity of more dB than this depends on the rounding of float32
CORE_AI_SLACK = 0.5  # in float32 on Core AI, a function may have this many dB less than recorded on the interpreter


class UnverifiedBundle(Bundle):
    """A bundle that opens even if the files of its packages are damaged, because nothing checks them at opening."""

    @property
    def files(self) -> dict[str, FileRecord]:
        return self.manifest.files


@dataclass
class FunctionCheck:
    """The comparison of one function with the reference.

    Attributes:
        network: Name of the network.
        package: Name of the package.
        function: Name of the function.
        threshold: dB that the function must reach.
        slack: dB by which the function may be below ``recorded``.
        recorded: dB that the function had at conversion, with the same arithmetic. ``None`` means that no such figure
            is recorded.
        snr: Signal-to-noise ratio, in dB, of the function's outputs for its test inputs. ``None`` means that the
            function could not run.
        error: Largest absolute difference of these outputs. ``None`` means that the function could not run.
        problem: Reason why the function could not run, or why ``values`` is empty. Otherwise "".
        values: Values inside the function, each compared with the output of a PyTorch module, in program order.
        difference: First value that differs between this function and a fresh conversion of the network. If the
            function failed on Core ML, this is instead the first value for which Core ML and the interpreter differ by
            more than rounding explains.
    """

    network: str
    package: str
    function: str
    threshold: float
    slack: float = SLACK
    recorded: float | None = None
    snr: float | None = None
    error: float | None = None
    problem: str = ""
    values: Sequence[ComparedValue] = ()
    difference: ComparedValue | None = None

    def compare(self, expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> None:
        self.snr, self.error = round(parity.mean_snr_db(expected, actual), 1), parity.largest_error(expected, actual)

    @property
    def passed(self) -> bool:
        return self.snr is not None and self.snr >= self.required

    @property
    def required(self) -> float:
        """Required dB: the recorded parity minus ``slack``, but at least ``threshold``."""
        if self.recorded is None:
            return self.threshold
        return max(self.threshold, min(self.recorded, FLOAT32_NOISE) - self.slack)

    @property
    def drift(self) -> ComparedValue | None:
        return first_drift(self.values, self.threshold)

    @property
    def worst(self) -> ComparedValue | None:
        return min(self.values, key=lambda value: value.snr, default=None)


@dataclass(frozen=True)
class Runner(ABC):
    """An engine on which functions are checked.

    Attributes:
        name: Name of the runner, as for --against.
        arithmetic: Key of the recorded parity with which a function is compared. ``None`` means that the conversion
            records no parity for this runner.
        slack: dB by which a function may be below the recorded parity.
        limit: Largest threshold that the runner requires.
    """

    name: str
    arithmetic: str | None = field(default=None, kw_only=True)
    slack: float = field(default=SLACK, kw_only=True)
    limit: float = field(default=float("inf"), kw_only=True)

    def check(
        self, model: Bundle, package: PackageRecord, name: str, reference: TorchBackend, layers: LayerComparison | None
    ) -> FunctionCheck:
        """Compare a package's function with the reference.

        If a UserError stops the comparison, return it as ``problem``.

        Args:
            model: The bundle.
            package: Record of the package.
            name: Name of the function.
            reference: Backend with the PyTorch networks.
            layers: Options for comparing the values inside the function. ``None`` compares only its outputs.
        """
        record, folder = package.functions[name], Path(package.path).stem
        check = FunctionCheck(
            package.network,
            folder,
            name,
            min(parity.threshold_of(package, name, self.arithmetic), self.limit),
            self.slack,
            self.recorded(record),
        )
        try:
            check_hashes(model.path, package.files)
            self._compare(check, model, package, reference, layers and layers.within(f"{folder}/{name}"))
            check.values = tuple(
                replace(value, published=published_name(package.network, value.module or "")) for value in check.values
            )
        except UserError as error:
            check.problem = str(error)
        return check

    def recorded(self, function: FunctionRecord) -> float | None:
        """Return the SNR in dB that the conversion recorded for a function in this engine's arithmetic, or ``None``.

        For an fp32 function, the conversion records only the SNR in fp32 arithmetic. Return this SNR for such a
        function.
        """
        return function.parity.get(self.arithmetic, function.parity.get(parity.MATHS)) if self.arithmetic else None

    @abstractmethod
    def _compare(
        self,
        check: FunctionCheck,
        model: Bundle,
        package: PackageRecord,
        reference: TorchBackend,
        layers: LayerComparison | None,
    ) -> None:
        """Compare a package's function with its reference, and store each measurement in ``check`` immediately.

        Raises:
            UserError: The function cannot run, or its values cannot be shown.
        """

    def unload(self, package: Path) -> None:
        """Release the loaded functions of a package."""
        return


@dataclass(frozen=True)
class PackageRunner(Runner):
    """A runner for Core ML packages.

    Attributes:
        engine: Engine that runs functions.
        source: Function that returns the values inside a package's function.
        values_engine: Engine whose functions stay loaded for ``source``, or ``None``.
        shows_all: Whether ``source`` can show all values of every function without much more time than for a few
            values.
        compute_units: Compute units of Core ML for all networks. ``None`` means that the bundle decides for each
            network.
        interpreter: Interpreter that computes as exactly as this runner. It runs a fresh conversion of the function,
            for comparison. ``None`` means that there is no such comparison.
    """

    engine: Runtime
    source: activations.ActivationSource
    values_engine: Runtime | None = None
    shows_all: bool = True
    compute_units: str | None = None
    interpreter: MilRuntime | None = None

    def _compare(
        self,
        check: FunctionCheck,
        model: Bundle,
        package: PackageRecord,
        reference: TorchBackend,
        layers: LayerComparison | None,
    ) -> None:
        path, name = model.path / package.path, check.function
        program = Package(path).function(name)
        layers = layers if self.shows_all or not program.states else None
        names = [value for op in program.ops for value in op.outputs] if layers else []
        captured = CapturedOutputs(package.network, package.functions[name], names, reference.network(package.network))
        with captured.capture():
            expected = run_probe(reference, model, package, name)
        engine = CallRecorder(self.engine)
        backend = PackagedBackend(
            model,
            engine,
            reference,
            compute_units=self.compute_units,
            only=parity.called_by_probe(package, name),
            unpublished=PackageFolder(model.path, [package]),
        )
        check.compare(expected, run_probe(backend, model, package, name))
        if layers and not self.shows_all:
            if not check.passed:
                check.difference = first_loss(program, engine.calls[name], self.source, path)
        elif layers:
            call = engine.calls[name]
            check.values = compare_with_modules(captured, self.source(path, name, call), call, layers)
            if self.interpreter:
                check.difference = first_difference(model, package, name, call, self.source, self.interpreter)

    def unload(self, package: Path) -> None:
        for engine in (self.engine, self.values_engine):
            if engine:
                engine.unload(package)


@dataclass(frozen=True)
class OnnxRunner(Runner):
    """A runner for ONNX packages on a device of ONNX Runtime."""

    device: OnnxDevice

    def _compare(
        self,
        check: FunctionCheck,
        model: Bundle,
        package: PackageRecord,
        reference: TorchBackend,
        layers: LayerComparison | None,
    ) -> None:
        file, load = model.path / package.path / f"{check.function}.onnx", session_loader(self.device)
        # a published graph does not name the modules of its values, so only its outputs are compared
        inside = layers and PUBLISHED not in package.source
        with instrumented(file) if inside else nullcontext() as graph:
            with captured_outputs(reference.network(package.network)) as captured:
                expected = run_probe(reference, model, package, check.function)
            candidate = OnnxBackend(
                model,
                self.device,
                reference,
                load=graph.wrap(load) if graph else load,
                unpublished=PackageFolder(model.path, [package]),
            )
            check.compare(expected, run_probe(candidate, model, package, check.function))
            if graph and layers:
                check.values = compare_values(captured, graph, layers)


def runner_named(name: str, compute_units: str | None = None) -> Runner:
    """Create the runner (engine) that --against of `ane verify` names.

    Raises:
        UserError: ``compute_units`` is given for another engine than Core ML, Core ML is requested on another system
            than macOS, or a provider of ONNX Runtime does not load.
    """
    if compute_units and name != "coreml":
        raise NoEffectError("compute_units", f"on against={name}", "it is for coreml", ("against",))
    if name.startswith("onnx"):
        device = choose_onnx_device(name.removeprefix("onnx").removeprefix(":"))
        # the conversion records the parity only on the CPU
        return OnnxRunner(f"onnx:{device.name}", device, arithmetic=parity.ON_CPU if device.name == "cpu" else None)
    if name == "coreml":
        if sys.platform != "darwin":
            raise UserError(
                "Core ML runs only on macOS: use against=mil to interpret the same packages here, or "
                "against=coreai to run them on Apple's Core AI"
            )
        from ane.backends.coreml.runtime import CoreMLRuntime
        from ane.backends.coreml.trial import CoreMLTrial

        return PackageRunner(
            name,
            CoreMLRuntime(trial=CoreMLTrial(golden_cases=False)),
            core_ml_activations,
            shows_all=False,
            compute_units=compute_units,
            arithmetic=parity.FLUSHED,
            slack=parity.MACHINE_SLACK,
            limit=parity.MACHINE_FLOOR,
        )
    if name == "coreai":
        from ane.backends.coreai.runtime import CoreAIRuntime

        runtime, values = (CoreAIRuntime(values) for values in (False, True))
        return PackageRunner(
            name,
            runtime,
            activations.interpreted(values),
            values,
            arithmetic=parity.MATHS,
            slack=CORE_AI_SLACK,
            limit=FLOAT32_NOISE,
            interpreter=MilRuntime(),
        )
    recorded = {"mil": parity.MATHS, "mil:fp16": parity.ROUNDING, "mil:flush": parity.FLUSHED}[name]
    engine = MilRuntime(parity.ARITHMETICS[recorded])
    return PackageRunner(name, engine, activations.interpreted(engine), interpreter=engine, arithmetic=recorded)


def verify(
    model: Bundle,
    chosen: Sequence[tuple[PackageRecord, Sequence[str]]],
    runner: Runner,
    layers: LayerComparison | None = None,
    progress: Callable[[str], None] = lambda action: None,
) -> list[FunctionCheck]:
    """Compare functions of packages with the PyTorch networks, and return one comparison per function.

    If a package is damaged or a function cannot run, its comparison has the reason as ``problem``.

    Args:
        model: The bundle.
        chosen: Packages and names of their functions, from ``choose_packages``.
        runner: Runner for the functions.
        layers: Options for comparing the values inside the functions. ``None`` compares only outputs.
        progress: Function that is called with the names of the package and the function before each comparison.
    """
    reference, results = reference_backend(model), []
    for package, functions in chosen:
        for name in functions:
            progress(f"{Path(package.path).stem} {name}")
            results.append(runner.check(model, package, name, reference, layers))
        runner.unload(model.path / package.path)
        reference.release()
    return results


def choose_packages(
    model: Bundle, networks: Sequence[str] | None = None, function: str | None = None, format: str = "coreml"
) -> list[tuple[PackageRecord, list[str]]]:
    """Select packages of a bundle, and the names of their functions.

    Args:
        model: The bundle.
        networks: Networks whose packages to select. ``None`` selects all networks.
        function: Name of the functions to select. ``None`` selects all functions.
        format: Format of the packages.

    Raises:
        UserError: The bundle has no package in this format, no package of a network, or no such function.
    """
    existing = model.packages if format == "coreml" else model.onnx_packages
    if not existing:
        raise model.lacks_packages(format)
    for network in networks or ():
        if network not in (available := list(dict.fromkeys(package.network for package in existing))):
            raise UserError(
                f"networks={network}: {model.name} has no package of this network: choose from {', '.join(available)}"
            )
    packages = [package for package in existing if not networks or package.network in networks]
    chosen = [(package, [name for name in package.functions if function in (None, name)]) for package in packages]
    if not any(names for _, names in chosen):
        available = list(dict.fromkeys(name for package in packages for name in package.functions))
        raise UserError(f"function={function}: no package has this function: choose from {', '.join(available)}")
    return [(package, names) for package, names in chosen if names]
