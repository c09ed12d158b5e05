"""Provide packages whose graphs are converted when a test needs them, and a runtime that interprets the graphs."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from ane.backends.coreml.runtime import CoreMLFunction
from ane.backends.mil import Arithmetic, Interpreter, InterpreterState, MilRuntime, Package
from ane.backends.packaged.functions import PackageFunction, Runtime
from ane.bundles.weights import skeleton
from ane.models.tortoise.networks import NETWORKS
from converters.coreml.graph import CoreMLGraph, Style
from tests.random_model import random_model

FP32, FP16, ROUNDED = Style("fp32"), Arithmetic(), Arithmetic(fp16=True)
NARROW = Arithmetic(fp16=True, narrow_norms=True)
NEEDS_CORE_AI = pytest.mark.skipif(
    importlib.util.find_spec("coreai") is None, reason="needs Core AI: pip install '.[coreai]'"
)


class InterpretingRuntime(Runtime):
    """The interpreter, for packages of one function each."""

    name = "interpreter"

    def __init__(self, arithmetic: Arithmetic = FP16):
        self.arithmetic = arithmetic

    def load(self, package: Path, function: str, compute_units: str) -> Interpreter:
        return Interpreter(Package(package), None, self.arithmetic)


class InterpreterAsCoreML:
    """What coremltools returns for an opened function, computed by the interpreter."""

    def __init__(self, interpreter: Interpreter):
        self.interpreter, self.make_state = interpreter, interpreter.make_state

    def predict(self, features: dict[str, np.ndarray], state: InterpreterState | None) -> dict[str, np.ndarray]:
        return self.interpreter.predict(features, state or None)


class InPlaceRuntime(MilRuntime):
    """The interpreter behind ``CoreMLFunction``, which reads arrays where they are."""

    in_place = True

    def load(self, package: Path, function: str, compute_units: str) -> CoreMLFunction:
        interpreter = super().load(package, function if function in Package(package).functions else "main", "")
        return CoreMLFunction(
            InterpreterAsCoreML(interpreter), interpreter.function, interpreter.name, lambda action, error: error
        )


def saved(graphs: Iterable[CoreMLGraph], style: Style, folder: Path) -> dict[str, Path]:
    """Save each graph as a package of its own; the packages by the graph's name."""
    paths = {}
    for graph in graphs:
        paths[graph.name] = folder / f"{graph.name}.mlpackage"
        graph.build(style, paths[graph.name])
    return paths


def functions(
    graphs: Iterable[CoreMLGraph], paths: dict[str, Path], arithmetic: Arithmetic = FP16, runtime: Runtime | None = None
) -> list[PackageFunction]:
    runtime = runtime or InterpretingRuntime(arithmetic)
    return [
        PackageFunction(runtime, paths[graph.name], graph.name, graph.bucket, "CPU_ONLY", graph.kind)
        for graph in graphs
    ]


def reference_network(network: str, model: Any = None) -> nn.Module:
    """The network of the random model (or another), float32, for inference."""
    model = model or random_model()
    module = skeleton(NETWORKS[network], model.config(network))
    module.load_state_dict({key: tensor.float() for key, tensor in model.tensors(network).items()}, assign=True)
    return module.eval().requires_grad_(False)
