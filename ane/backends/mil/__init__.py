"""Interpret saved Core ML packages: run their programs in torch, on any machine.

So you can check a package without a Mac. The interpreter executes the MIL program op by op, in float32 or with the
rounding of fp16. Files in reading order:

    package      reads a .mlpackage: functions, ops, weights
    values       types and constants of a program, and how compressed weights are decoded
    registry     the table of ops, which ops_* fill with one small function per op
    interpreter  runs a function of a package, and is the runtime of ``ane.backends.packaged``
"""

from ane.backends.mil.interpreter import Arithmetic, Interpreter, InterpreterState, MilRuntime
from ane.backends.mil.package import Package, ProgramFunction, ProgramOp
from ane.backends.mil.values import TensorType

__all__ = [
    "Arithmetic",
    "Interpreter",
    "InterpreterState",
    "MilRuntime",
    "Package",
    "ProgramFunction",
    "ProgramOp",
    "TensorType",
]
