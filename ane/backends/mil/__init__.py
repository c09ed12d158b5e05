"""Running a saved Core ML package without a Mac: how any machine proves a package right.

The program is executed op by op in torch, in float32 or with the roundings of fp16. ``package`` reads the file,
``ops_*`` hold one small function per op, ``interpreter`` runs a function. Control flow (cond, while_loop) is left out.
"""

from ane.backends.mil.runtime import MilRuntime
from ane.backends.mil.interpreter import Arithmetic, Interpreter, State
from ane.backends.mil.package import Function, Op, Package
from ane.backends.mil.values import TensorType

__all__ = ["Arithmetic", "Function", "Interpreter", "MilRuntime", "Op", "Package", "State", "TensorType"]
