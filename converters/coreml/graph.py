"""Describe and build one Core ML graph: named inputs, and a body that computes the outputs.

Graphs are written with coremltools' builder, not traced from torch, so the written operations are the ones that run. No
tracer splits an attention or inserts a cast, values keep the name of the reference's module that computes them, and 30
layers build in seconds instead of minutes.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, log records below ERROR and standard error inside the block. Exceptions still propagate.

    coremltools and torch warn about platform and versions, and print progress bars.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


with quiet():
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb  # noqa: N813 (its usual name)
    from coremltools.converters.mil.mil import Function, Program, types

PASSES = ["common::const_deduplication"]
Var = Any  # coremltools' type of a value in a graph under construction
ArrayLike = Any  # a torch tensor, an array or a number

TARGET = ct.target.iOS18  # macOS 15: states, grouped palettes, several functions in one package
KINDS = {"fp16": (np.float16, types.fp16), "fp32": (np.float32, types.fp32)}


@dataclass(frozen=True)
class Style:
    """Precision of a graph's weights, inputs, outputs and arithmetic.

    ``precision`` is "fp16", which is all that the Neural Engine supports, or "fp32".
    """

    precision: str = "fp16"

    @property
    def dtype(self) -> type:
        return KINDS[self.precision][0]

    def const(self, values: ArrayLike) -> np.ndarray:
        return array(values).astype(self.dtype)


def array(values: ArrayLike) -> np.ndarray:
    """Return numbers as float32."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=np.float32)


class UnprintedProgram(Program):
    """A program that coremltools neither checks nor prints around each of its passes.

    Checking every operation and printing all of them for a log takes half the time of building. The program is checked
    once, before the passes.
    """

    def validate(self, check_essential_scope: bool | None = False) -> None:
        pass

    def __str__(self) -> str:
        return f"a program of {', '.join(self.functions)}"


@dataclass(frozen=True)
class CoreMLGraph:
    """One function of a package.

    Attributes:
        kind: Name of the computation. Functions of one kind differ only in their bucket.
        bucket: Fixed lengths of the function, by name ("columns", "slots", "frames", …).
        inputs: Shapes by name, all in the style's precision.
        body: Takes the style, and inputs and states by keyword, and returns the outputs by name.
        states: Shapes by name, always fp16 (Core ML supports no other type).
        integers: Shapes of further inputs by name, int32.
    """

    kind: str
    bucket: Mapping[str, int]
    inputs: Mapping[str, tuple[int, ...]]
    body: Callable[..., dict[str, Var]]
    states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    integers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The kind and the lengths: step_16_4352."""
        return "_".join([self.kind, *map(str, self.bucket.values())])

    def build(self, style: Style) -> Any:
        """Build the graph as a coremltools MLModel, an mlprogram with one function, "main"."""
        kind = KINDS[style.precision][1]
        specs = {name: mb.TensorSpec(shape, kind) for name, shape in self.inputs.items()}
        specs |= {name: mb.TensorSpec(shape, types.int32) for name, shape in self.integers.items()}
        specs |= {name: mb.StateTensorSpec(shape, types.fp16) for name, shape in self.states.items()}
        # coremltools counts names across all graphs since its last conversion, even in a graph that was never
        # converted. A value's name would depend on them
        mb.name_count.clear()
        with Function(specs, TARGET) as function:
            outputs = self.body(style, **{name: function.inputs[name] for name in specs})
            function.set_outputs([renamed(value, name) for name, value in outputs.items()])
        program = UnprintedProgram()
        program.add_function("main", function)
        Program.validate(program)
        with quiet():
            # only the pass for equal weights changes these graphs, and running it alone takes a sixth of the time.
            # FLOAT32 keeps every dtype as written here
            return ct.convert(
                program,
                convert_to="mlprogram",
                minimum_deployment_target=TARGET,
                skip_model_load=True,
                compute_precision=ct.precision.FLOAT32,
                pass_pipeline=ct.PassPipeline(PASSES),
            )


def renamed(value: Var, name: str) -> Var:
    """Rename a value in place, and return it."""
    value.name = value.op.name = name
    return value


def value_name(module: str) -> str:
    """Return the name of the value that a module of the reference computes: gpt.h.3.attn → gpt__h__3__attn."""
    return module.replace(".", "__")
