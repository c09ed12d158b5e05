"""An interpreter of saved Core ML packages: runs their programs in torch, on any machine.

With it a package can be checked without a Mac. It executes the MIL program op by op, in float32 or with the rounding of
fp16. Files in reading order:

    package      reads a .mlpackage: functions, ops, weights
    values       types and constants of a program, and the decoding of compressed weights
    registry     the table of ops; ops_* fill it with one small function per op
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
