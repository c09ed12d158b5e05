"""Find the operation of a function that differs, from the values inside it.

They are compared with the values that Core ML computes on a Mac, or that the same function computes after another
conversion.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ane.backends.coreml.compiled import extract_function
from ane.backends.coreml.tools import keep_arrays
from ane.backends.mil import Arithmetic, MilRuntime, Package
from ane.backends.mil.package import ProgramFunction
from ane.backends.mil.values import Immediate
from ane.bundles import Bundle
from ane.bundles.package_records import PackageRecord
from ane.system.errors import UserError
from converters.coreml.coreml_package import CoreMLOptions, write_package
from converters.coreml.graph import quiet
from converters.proof import activations
from converters.proof.activations import MAX_DROP, MAX_SNR, ComparedValue, FunctionCall, compare_with_run, interpreted

BATCH = 40  # values that one compiled model returns


class CoreMLInspector:
    """coremltools' inspector of a package's only function. Raises RuntimeError if Core ML fails."""

    def __init__(self, package: Path, compute_units: str):
        with quiet():
            import coremltools
            from coremltools.models.ml_program.experimental.debugging_utils import MLModelInspector

            compute = coremltools.ComputeUnit[compute_units]
            self.model = coremltools.models.MLModel(str(package), skip_model_load=True, compute_units=compute)
            self.inspector = MLModelInspector(self.model, compute)

    def values(self, inputs: Mapping[str, np.ndarray], names: Sequence[str]) -> Mapping[str, np.ndarray | None]:
        """Return the values by name, with ``None`` if Core ML returns none."""
        views = {name: array.view() for name, array in inputs.items()}
        try:
            return asyncio.run(self.inspector.retrieve_outputs(dict(views), list(names)))
        finally:
            keep_arrays(views)
            self.inspector.clear_cached_models()


def core_ml_activations(
    package: Path,
    function: str,
    call: FunctionCall,
    chosen: Sequence[str] | None = None,
    inspector: Callable[[Path, str], Any] = CoreMLInspector,
) -> activations.Activations:
    """Yield the values with the ``chosen`` names, or all values, on a Mac (an ``ActivationSource``).

    The inspector adds values to a model's outputs and compiles it again, which takes a minute or more for a large
    function. It (coremltools 9.0) supports models with one function and without a state. So a function is first
    extracted from its package, and functions with a state cannot be inspected.

    coremltools' MLModelComparator compares only Core ML models, and its ``compute_snr_and_psnr`` adds 1e-5 to the
    signal, which exceeds the signal of some scaled streams. So ``converters.proof.activations`` compares the values.

    Raises UserError if Core ML fails.
    """
    program = Package(package).function(function)
    types = {name: (op.type, type) for op in program.ops for name, type in op.outputs.items()}
    # the binding does not accept float16 (ane.backends.coreml.runtime)
    inputs = {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in call.inputs.items()
    }
    names = list(types if chosen is None else chosen)
    with TemporaryDirectory() as folder:
        extract_function(package, function, Path(folder) / "function.mlpackage")
        try:
            inspected = inspector(Path(folder) / "function.mlpackage", call.compute_units)
            for start in range(0, len(names), BATCH):
                batch = names[start : start + BATCH]
                values = inspected.values(inputs, batch)
                for name in batch:
                    if values.get(name) is not None:
                        op, type = types[name]
                        yield name, op, np.asarray(values[name], np.float32).reshape(type.shape)
        except RuntimeError as error:
            raise UserError(
                f"Core ML cannot show the values inside function {function} of {package} on "
                f"{call.compute_units}: {error}"
            ) from error


def first_loss(
    program: ProgramFunction, call: FunctionCall, source: Callable[..., activations.Activations], package: Path
) -> ComparedValue | None:
    """Return the first value of a function that loses more on Core ML than rounding to fp16 explains, or ``None``.

    ``BATCH`` values, evenly spaced, are compared first, then the values between the last right one and the first wrong
    one, and so on. That takes two or three compilations for a large function. Raises UserError if Core ML fails.
    """
    exact, rounded = (interpreted(MilRuntime(Arithmetic(fp16=fp16))) for fp16 in (False, True))
    usual = {value.name: value.snr for value in compare_with_run(program, call, exact, rounded, package)}
    names, first = list(usual), None
    while names:
        step = -(-len(names) // BATCH)
        chosen = partial(source, chosen=[*names[step - 1 : -1 : step], names[-1]])
        values = compare_with_run(program, call, exact, chosen, package)
        wrong = next((index for index, value in enumerate(values) if value.snr < usual[value.name] - MAX_DROP), None)
        if wrong is None:
            return first
        first = values[wrong]
        begin = names.index(values[wrong - 1].name) + 1 if wrong else 0
        names = names[begin : names.index(first.name)] if step > 1 else []
    return first


EXACT = 120.0  # dB of two runs in float32 that sum in another order
SAME = 80.0  # dB above which two runs agree
MAX_LOSS = 15.0  # dB that one operation may lose: deep networks amplify the rounding of their first layers


def first_difference(
    model: Bundle,
    package: PackageRecord,
    name: str,
    call: FunctionCall,
    candidate: activations.ActivationSource,
    interpreter: MilRuntime,
) -> ComparedValue | None:
    """Return the first value, or state that is written, that differs from the same function converted again.

    A comparison with the reference's modules finds the module in which a function goes wrong. The converter gives every
    value of a graph the same name each time, so a comparison with a fresh conversion of the same weights finds the
    operation.

    Args:
        model: The bundle.
        package: Record of the package.
        name: Name of the function.
        call: Arguments that both functions are called with.
        candidate: Runs the package's function.
        interpreter: Runs the fresh function.

    Returns:
        The value, with -``MAX_SNR`` if only the fresh function has it or they declare it differently. ``None`` if there
            is no difference.

    Raises:
        UserError: The package does not record its options, or one of the two functions cannot run.
    """
    with TemporaryDirectory() as folder:
        fresh = (
            Path(folder)
            / write_package(model, package.network, CoreMLOptions.of(package), Path(folder), functions={name}).path
        )
        expected, path = Package(fresh).function(name), model.path / package.path
        declared = _declared(Package(path).function(name))
        for value, (op, type) in _declared(expected).items():
            if declared.get(value, ("", type))[1] != type:
                return ComparedValue(value, op, float("inf"), -MAX_SNR)
        values = compare_with_run(expected, call, interpreted(interpreter), candidate, path, fresh, EXACT)
    compared = {value.name: value for value in values}
    for value, (op, _) in _declared(expected).items():
        if value not in compared:
            return ComparedValue(value, op, float("inf"), -MAX_SNR)
        if compared[value].snr < SAME and (compared[value].lost or 0) > MAX_LOSS:
            return compared[value]
    return None


def _declared(program: ProgramFunction) -> dict[str, tuple[str, object]]:
    """Return the operation, type and settings of each value and each written state, in program order.

    The settings are axes, epsilons and modes. A comparison of results alone could miss a changed setting, because it
    may change the results very little.
    """
    values: dict[str, tuple[str, object]] = {}
    for op in program.ops:
        parts = [
            (key, program.constants.get(part) if isinstance(part, str) else part)
            for key, (part, *_) in op.arguments.items()
        ]
        settings = {key: part for key, part in parts if isinstance(part, Immediate) and not part.type.shape}
        values |= {name: (op.type, (type, settings)) for name, type in op.outputs.items()}
        if op.written_state:
            values[op.written_state] = op.type, program.states[op.written_state]
    return values
