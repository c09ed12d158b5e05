"""Run a function of any Core ML package on the user's arrays, and compare its outputs with expected arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ane.backends.mil.package import Package
from ane.bundles.package_records import COMPUTE_UNITS
from ane.system.errors import UserError
from ane.system.file_gate import check_regular
from converters.proof.activations import FunctionCall, ReadableState
from converters.proof.elements import ComparedValue, compare
from converters.proof.verify import PackageRunner

THRESHOLD = 40.0  # dB that an output must reach against its expected array. Programs in fp16 reach 50 to 70 dB


@dataclass(frozen=True)
class RunValue:
    """Statistics of an array that a run computed: an output of the function, or of one of its operations.

    Attributes:
        name: Name of the value.
        op: Type of the operation, or "" for an output of the function.
        shape: Shape of the array.
        mean: Mean of the elements.
        deviation: Standard deviation of the elements.
        smallest: Smallest element.
        largest: Largest element.
        finite: Whether all elements are finite.
        compared: Comparison with the expected array of the same name. ``None`` means that no such array was given.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    mean: float
    deviation: float
    smallest: float
    largest: float
    finite: bool
    compared: ComparedValue | None = None


@dataclass(frozen=True)
class PackageRun:
    """The outputs of a function's last call.

    Attributes:
        function: Name of the function.
        outputs: Arrays of the outputs by name, and of the states after the call.
        values: Statistics of the outputs and states.
        layers: Statistics of all operations' outputs, in program order.
    """

    function: str
    outputs: Mapping[str, np.ndarray] = field(repr=False)
    values: Sequence[RunValue]
    layers: Sequence[RunValue] = ()


def run_package(
    path: Path,
    function: str | None,
    runner: PackageRunner,
    calls: Sequence[Mapping[str, np.ndarray]],
    expected: Mapping[str, np.ndarray],
    layers: bool = False,
) -> PackageRun:
    """Call a function once or several times, and compare the last call with expected arrays.

    If the function has a state, all calls use the same state.

    Args:
        path: The package.
        function: Name of the function. ``None`` means the package's default function.
        runner: Runner that runs the function.
        calls: Inputs of each call, by name.
        expected: Expected arrays of the last call, by the names of outputs or states. With ``layers``, they may also
            have names of values inside the function. An array needs the right number of elements, in any shape.
        layers: Whether to return statistics of the values inside the last call too.

    Raises:
        UserError: The package has no such function, arrays do not fit the function, an operation is not supported, or
            the engine fails.
    """
    program = Package(path).function(function)
    loaded = runner.engine.load(path, program.name, runner.compute_units or COMPUTE_UNITS[0])
    state = loaded.make_state() if program.states else None
    before = None
    try:
        for inputs in calls:
            before = state.copied() if isinstance(state, ReadableState) else None
            outputs = dict(loaded.predict(inputs, state))
    except TypeError as error:
        declared = ", ".join(f"{name} {type}" for name, type in program.inputs.items())
        raise UserError(f"{error}: the inputs are {declared}") from error
    if isinstance(state, ReadableState):
        outputs |= {name: array.astype(np.float32) for name, array in state.copied().items()}
    call = FunctionCall(calls[-1], before, runner.compute_units or COMPUTE_UNITS[0])
    inside = {name for op in program.ops for name in op.outputs} if layers else set()
    unknown = sorted(set(expected) - set(outputs) - inside)
    if unknown:
        raise UserError(
            f"{unknown[0]} is expected, but function {program.name!r} of {path} returns "
            f"{', '.join(outputs)}{'' if layers else ' (for a value inside the function, add --layers)'}"
        )
    values = [_value(name, "", array, expected) for name, array in outputs.items()]
    if not layers:
        return PackageRun(program.name, outputs, values)
    if program.states and not runner.shows_all:
        raise UserError(f"--layers: {runner.name} shows no values of a function that has a state")
    inner = [_value(name, op, array, expected) for name, op, array in runner.source(path, program.name, call)]
    return PackageRun(program.name, outputs, values, inner)


def _value(name: str, op: str, array: np.ndarray, expected: Mapping[str, np.ndarray]) -> RunValue:
    compared = None
    if name in expected:
        if expected[name].size != array.size:
            raise UserError(f"{name} has the shape {array.shape}, but {expected[name].shape} is expected")
        compared = compare(name, op, expected[name].reshape(array.shape), array)
    filled = array if array.size else np.zeros(1)
    summary = (float(number) for number in (filled.mean(), filled.std(), filled.min(), filled.max()))
    return RunValue(name, op, array.shape, *summary, bool(np.isfinite(array).all()), compared)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an .npz file, and return its arrays by name. Raises UserError if the file cannot be read."""
    try:
        check_regular(path)
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise UserError(f"{path} holds one array without a name: write it with np.savez(FILE, NAME=array)")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    except UserError:
        raise
    except Exception as error:  # for a damaged header, NumPy may raise any exception
        raise UserError(f"cannot read {path} as an .npz file: {getattr(error, 'strerror', None) or error}") from error
    if others := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise UserError(f"cannot read {path} as an .npz file: {others[0]} in it is not an array")
    return arrays
