"""Interpret saved Core ML packages in torch, on any machine, so that you can check a package without a Mac.

A package contains a program in MIL, Core ML's program language. The interpreter executes it op by op, in float32 or
with the rounding of fp16. Read the files in this order:

    package      reads a .mlpackage: its functions, ops and weights
    values       defines the types and constants of a program, and decodes compressed weights
    registry     has the table of ops
    ops_*        implement each op as a small function, and add it to the table
    interpreter  runs a function of a package, for ``ane.backends.packaged``
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
