"""A Core ML graph before it is built: its inputs by name, and the body that makes the outputs of them.

Graphs are written with coremltools' own builder, not traced from torch: what is written is what runs. No tracer splits
an attention or slips in a cast, a value can keep the name of the module of ``ane.models.tortoise.networks`` that it stands for, and 30
layers take seconds instead of minutes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from converters.quiet import quiet

with quiet():
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb  # noqa: N813 (its name everywhere)
    from coremltools.converters.mil.mil import Function, Program, types

PASSES = ["common::const_deduplication"]
Var = Any                       # coremltools' value of a graph under construction
Weights = Any                   # a torch tensor, an array or a number

TARGET = ct.target.iOS18        # macOS 15: states, grouped palettes, several functions in one package
KINDS = {"fp16": (np.float16, types.fp16), "fp32": (np.float32, types.fp32)}


@dataclass(frozen=True)
class Style:
    """How a graph keeps its numbers.

    Attributes:
        precision: of weights, inputs, outputs and arithmetic: "fp16" (all that the Neural Engine knows) or "fp32".
        wide: kinds of operation computed in float32 inside an fp16 graph: "norm", "softmax". Each costs two casts and
            leaves the Neural Engine.
        heads: attention of all heads in one "matmul", or head by head in an "einsum" (``layers``, principle 5).
    """

    precision: str = "fp16"
    wide: frozenset[str] = frozenset()
    heads: str = "matmul"

    @property
    def dtype(self) -> type:
        return KINDS[self.precision][0]

    def const(self, values: Weights) -> np.ndarray:
        """Numbers as a constant of the graph, in its precision."""
        return array(values).astype(self.dtype)

    def widened(self, kind: str, operation: Callable[[Var, type], Var], x: Var) -> Var:
        """``operation(x, dtype)``, in float32 when ``kind`` is to be wide, else in the graph's precision."""
        if kind not in self.wide or self.precision == "fp32":
            return operation(x, self.dtype)
        return mb.cast(x=operation(mb.cast(x=x, dtype="fp32"), np.float32), dtype=self.precision)


def array(values: Weights) -> np.ndarray:
    """Numbers as float32."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=np.float32)


@dataclass(frozen=True)
class Graph:
    """One function of a package.

    Attributes:
        kind: what it computes; functions of a kind differ in their bucket alone.
        bucket: the fixed lengths it was made for, by name.
        inputs: shapes by name, all of the style's precision.
        body: called with the style, then inputs and states by keyword; gives the outputs by name.
        states: shapes by name, always fp16 (Core ML knows no other).
    """

    kind: str
    bucket: Mapping[str, int]
    inputs: Mapping[str, tuple[int, ...]]
    body: Callable[..., dict[str, Var]]
    states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The kind, then the lengths: step_16_4352."""
        return "_".join([self.kind, *map(str, self.bucket.values())])

    def build(self, style: Style) -> Any:
        """The graph as a coremltools MLModel: an mlprogram of one function, "main"."""
        kind = KINDS[style.precision][1]
        specs = {name: mb.TensorSpec(shape, kind) for name, shape in self.inputs.items()}
        specs |= {name: mb.StateTensorSpec(shape, types.fp16) for name, shape in self.states.items()}
        with Function(specs, TARGET) as function:
            outputs = self.body(style, **{name: function.inputs[name] for name in specs})
            function.set_outputs([named(value, name) for name, value in outputs.items()])
        program = Program()
        program.add_function("main", function)
        with quiet():
            # of coremltools' passes only the one for equal weights finds anything (without the rest the same operations
            # come out, in a sixth of the time); "float32" leaves every dtype as it is written here
            return ct.convert(program, convert_to="mlprogram", minimum_deployment_target=TARGET, skip_model_load=True,
                              compute_precision=ct.precision.FLOAT32, pass_pipeline=ct.PassPipeline(PASSES))


def named(value: Var, name: str) -> Var:
    """Give a value the name it is known by."""
    value.name = value.op.name = name
    return value


def spelt(module: str) -> str:
    """The name of a module of ``ane.models.tortoise.networks`` as that of a value: gpt.h.3.attn → gpt__h__3__attn."""
    return module.replace(".", "__")
