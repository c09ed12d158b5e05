"""Comparing a function with the same function converted again, which names the operation that differs."""

from pathlib import Path
from tempfile import TemporaryDirectory

from ane.backends.mil import MilRuntime, Package
from ane.backends.mil.package import ProgramFunction
from ane.backends.mil.values import Immediate
from ane.bundles import Model
from ane.bundles.packages import PackageRecord
from converters.coreml.package import CoreMLOptions, write_package
from converters.proof.activations import (
    MAX_SNR,
    ActivationSource,
    ComparedValue,
    FunctionCall,
    compare_with_run,
    interpreted,
)

EXACT = 120.0           # dB of two runs in float32 that sum in another order
SAME = 80.0             # dB above which they agree
MAX_LOSS = 15.0         # dB that one operation may lose: deep networks amplify the rounding of their first layers


def first_difference(model: Model, package: PackageRecord, name: str, call: FunctionCall,
                     candidate: ActivationSource, interpreter: MilRuntime) -> ComparedValue | None:
    """The first value of a function, or state that it writes, that differs from the same function converted again.

    A comparison with the reference's modules finds the module in which a function goes wrong. The converter gives every
    value of a graph the same name each time, so against a fresh conversion of the bundle's own weights it finds the
    operation.

    Args:
        call: what both are called with. candidate: runs the package's function. interpreter: runs the fresh one.

    Returns:
        The value, with -``MAX_SNR`` when only the fresh function has it or they declare it differently; None when
        there is no difference.

    Raises:
        UserError: the package does not state its options, or one of the two cannot run.
    """
    with TemporaryDirectory() as folder:
        fresh = Path(folder) / write_package(model, package.network, CoreMLOptions.of(package), Path(folder),
                                             functions={name}).path
        expected, path = Package(fresh).function(name), model.path / package.path
        declared = _declared(Package(path).function(name))
        for value, (op, type) in _declared(expected).items():
            if declared.get(value, ("", type))[1] != type:
                return ComparedValue(value, op, float("inf"), -MAX_SNR)
        values = compare_with_run(expected, call, interpreted(interpreter), candidate, path, fresh, EXACT)
    found = {value.name: value for value in values}
    for value, (op, _) in _declared(expected).items():
        if value not in found:
            return ComparedValue(value, op, float("inf"), -MAX_SNR)
        if found[value].snr < SAME and (found[value].lost or 0) > MAX_LOSS:
            return found[value]
    return None


def _declared(program: ProgramFunction) -> dict[str, tuple[str, object]]:
    """Operation of each value, and of each state that is written, in program order, with its type and settings: axes,
    epsilons and modes, which may change too little to be seen in what an operation returns."""
    values: dict[str, tuple[str, object]] = {}
    for op in program.ops:
        parts = [(key, program.constants.get(part) if isinstance(part, str) else part)
                 for key, (part, *_) in op.arguments.items()]
        settings = {key: part for key, part in parts if isinstance(part, Immediate) and not part.type.shape}
        values |= {name: (op.type, (type, settings)) for name, type in op.outputs.items()}
        if op.written_state:
            values[op.written_state] = op.type, program.states[op.written_state]
    return values
