"""Find the first operation of a Core ML function that computes a wrong value.

``first_loss`` finds where Core ML on a Mac differs from the interpreter. ``first_difference`` finds where a package
differs from a fresh conversion of the same network.
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
from converters.proof.activations import FunctionCall, compare_with_run, interpreted
from converters.proof.elements import MAX_DROP, MAX_SNR, ComparedValue

BATCH = 40  # number of values that one compiled model returns


class CoreMLInspector:
    """coremltools' inspector, which shows the values inside a package's only function.

    Raises:
        RuntimeError: Core ML fails.
    """

    def __init__(self, package: Path, compute_units: str):
        with quiet():
            import coremltools
            from coremltools.models.ml_program.experimental.debugging_utils import MLModelInspector

            compute = coremltools.ComputeUnit[compute_units]
            self.model = coremltools.models.MLModel(str(package), skip_model_load=True, compute_units=compute)
            self.inspector = MLModelInspector(self.model, compute)

    def values(self, inputs: Mapping[str, np.ndarray], names: Sequence[str]) -> Mapping[str, np.ndarray | None]:
        """Run the function, and return the values with these names, or ``None`` for each value that Core ML omits."""
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
    """Run a function on Core ML, and yield values inside it. This is an ``ActivationSource``.

    coremltools' inspector adds the values to the function's outputs and compiles the function again, which takes a
    minute or more for a large function. The inspector of coremltools 9.0 supports only models with one function and
    without a state. So the function is first extracted from its package, and a function with a state is an error.

    We do not use coremltools' MLModelComparator, because it compares only Core ML models. MLModelComparator's
    ``compute_snr_and_psnr`` also adds 1e-5 to the signal, which is more than the signal of some scaled streams.

    Args:
        package: The package.
        function: Name of the function.
        call: Arguments of the call.
        chosen: Names of the values. ``None`` means all values.
        inspector: Class of the inspector.

    Raises:
        UserError: Core ML fails.
    """
    program = Package(package).function(function)
    types = {name: (op.type, type) for op in program.ops for name, type in op.outputs.items()}
    # coremltools' Python binding does not accept float16 (ane.backends.coreml.runtime)
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
    """Find the first value in a function for which Core ML's result differs by more than rounding to fp16 explains.

    The search compares ``BATCH`` evenly spaced values. In the same way, the search continues between the last right
    value and the first wrong value, and so on. For a large function, Core ML has to compile two or three times.

    Args:
        program: The function.
        call: Arguments of the call.
        source: Function that yields Core ML's values. Its argument ``chosen`` has the names of the requested values.
        package: The package.

    Returns:
        The value, or ``None`` if no value differs.

    Raises:
        UserError: Core ML fails.
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


EXACT = 120.0  # dB between two runs in float32 that add numbers in different orders
SAME = 80.0  # above this many dB, two runs agree
MAX_LOSS = 15.0  # dB that one operation may lose, because deep networks amplify the rounding of their first layers


def first_difference(
    model: Bundle,
    package: PackageRecord,
    name: str,
    call: FunctionCall,
    candidate: activations.ActivationSource,
    interpreter: MilRuntime,
) -> ComparedValue | None:
    """Convert a function again, and find the first value or written state in which the package differs from it.

    A comparison with PyTorch modules finds only the module in which a function goes wrong. The comparison with a fresh
    conversion finds the operation, because a conversion gives every value of a graph the same name as an earlier
    conversion.

    Args:
        model: The bundle.
        package: Record of the package.
        name: Name of the function.
        call: Arguments with which both functions are called.
        candidate: Source of the values in the package's function.
        interpreter: Interpreter that runs the fresh function.

    Returns:
        The value. Its SNR is -``MAX_SNR`` if only the fresh function has the value, or if the two functions declare the
        value with different types or settings. ``None`` means that no value differs.

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
    """Return the operation, type and settings of every value and every written state, in program order.

    Settings are an operation's axes, epsilons and modes. The caller compares settings too, because a changed setting
    may change the computed numbers so little that a comparison of numbers would miss it.
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
