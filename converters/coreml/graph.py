"""Describe a Core ML graph by its inputs and a function that computes its outputs, and build the graph.

Graphs are written with coremltools' builder instead of traced from torch. So Core ML runs exactly the operations that
the code here writes: no tracer splits an attention or inserts a cast. A value keeps the name of the PyTorch module that
computes it, and 30 layers build in seconds instead of minutes.
"""

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def quiet() -> Iterator[None]:
    """Within the ``with`` block, suppress warnings, log records below ERROR, and standard error. Exceptions still pass.

    coremltools and torch warn about the platform and about versions, and print progress bars.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def hidden(module: str) -> Iterator[None]:
    """Make imports of a module fail within the block, unless the module is imported already."""
    found = sys.modules.setdefault(module, None)
    try:
        yield
    finally:
        if found is None:
            del sys.modules[module]


# coremltools would import scikit-learn, which takes a second, only to read its version. Palettes import it later
with quiet(), hidden("sklearn"):
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb  # noqa: N813 (its usual name)
    from coremltools.converters.mil.mil import Function, Program, types

PASSES = ["common::const_deduplication"]
Var = Any  # coremltools' type of a value in a graph under construction
ArrayLike = Any  # a torch tensor, an array or a number

TARGET = ct.target.iOS18  # also macOS 15. It brought states, grouped palettes, and several functions in one package
KINDS = {"fp16": (np.float16, types.fp16), "fp32": (np.float32, types.fp32)}


@dataclass(frozen=True)
class Style:
    """The precision of a graph's weights, inputs, outputs and arithmetic.

    Attributes:
        precision: "fp16" or "fp32". The Neural Engine supports only "fp16".
    """

    precision: str = "fp16"

    @property
    def dtype(self) -> type:
        return KINDS[self.precision][0]

    def const(self, values: ArrayLike) -> np.ndarray:
        return array(values).astype(self.dtype)


def array(values: ArrayLike) -> np.ndarray:
    """Convert numbers to a float32 array."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=np.float32)


class UnprintedProgram(Program):
    """A program that skips two tasks of coremltools: to check and to print all operations before and after each pass.

    The two tasks take half of the time that building needs. ``CoreMLGraph.build`` checks the program once, before the
    passes.
    """

    def validate(self, check_essential_scope: bool | None = False) -> None:
        pass

    def __str__(self) -> str:
        return f"a program of {', '.join(self.functions)}"


@dataclass(frozen=True)
class CoreMLGraph:
    """One function of a package.

    Attributes:
        kind: Name of the computation. Functions of the same kind differ only in their fixed lengths (``bucket``).
        bucket: Fixed lengths of the function, by name ("columns", "slots", "frames", …).
        inputs: Shapes of the inputs, by name. Their type is the precision of the style.
        body: Python function that builds the computation. It takes the style, and the inputs and states by keyword, and
            returns the outputs by name.
        states: Shapes of the states, by name. Their type is fp16, because Core ML supports no other type.
        integers: Shapes of further inputs, by name. Their type is int32.
    """

    kind: str
    bucket: Mapping[str, int]
    inputs: Mapping[str, tuple[int, ...]]
    body: Callable[..., dict[str, Var]]
    states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    integers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the function, made of its kind and its lengths, such as "step_16_4352"."""
        return "_".join([self.kind, *map(str, self.bucket.values())])

    def build(self, style: Style, package: Path | None = None) -> Any:
        """Build the graph, and return it as coremltools' MLModel with one function, "main".

        Args:
            style: Precision of the graph.
            package: Path of the package to write, which ends in .mlpackage. ``None`` means a temporary folder, which
                coremltools deletes when the process ends.
        """
        kind = KINDS[style.precision][1]
        specs = {name: mb.TensorSpec(shape, kind) for name, shape in self.inputs.items()}
        specs |= {name: mb.TensorSpec(shape, types.int32) for name, shape in self.integers.items()}
        specs |= {name: mb.StateTensorSpec(shape, types.fp16) for name, shape in self.states.items()}
        # coremltools numbers equal names across all graphs that were built since its last conversion. Without this, a
        # value's name would depend on graphs that were built before
        mb.name_count.clear()
        with Function(specs, TARGET) as function:
            outputs = self.body(style, **{name: function.inputs[name] for name in specs})
            function.set_outputs([renamed(value, name) for name, value in outputs.items()])
        program = UnprintedProgram()
        program.add_function("main", function)
        Program.validate(program)
        with quiet():
            # Only one of coremltools' passes changes these graphs: the pass that merges equal weights. Running it alone
            # takes a sixth of the time. FLOAT32 means that coremltools changes no dtype
            return ct.convert(
                program,
                convert_to="mlprogram",
                minimum_deployment_target=TARGET,
                skip_model_load=True,
                package_dir=str(package) if package else None,
                compute_precision=ct.precision.FLOAT32,
                pass_pipeline=ct.PassPipeline(PASSES),
            )


def renamed(value: Var, name: str) -> Var:
    """Rename a value in place, and return it."""
    value.name = value.op.name = name
    return value


def value_name(module: str) -> str:
    """Return the name for the value that a PyTorch module computes: the path gpt.h.3.attn becomes gpt__h__3__attn."""
    return module.replace(".", "__")
