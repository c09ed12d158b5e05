"""Make packages with coremltools for the tests of the interpreter, and run them."""

from collections.abc import Callable
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
import torch
from coremltools.converters import mil
from coremltools.converters.mil.mil import types

from ane.backends.mil import Arithmetic, Interpreter, Package

mb = mil.Builder

CHANNELS, WIDTH = 64, 8
SHAPE = (1, CHANNELS, 1, WIDTH)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


WEIGHT = normal(CHANNELS, CHANNELS, 1, 1, seed=1).astype(np.float16) / 8
X = normal(*SHAPE)


def convert(body: Callable, *specs, target=ct.target.iOS18, dtype=types.fp16) -> ct.models.MLModel:
    """Convert a program as it is, with one fp16 input of SHAPE or with these specs; no pass changes it."""
    specs = specs or (mb.TensorSpec(shape=SHAPE, dtype=dtype),)
    program = mb.program(input_specs=list(specs), opset_version=target)(body)
    return ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=target,
        skip_model_load=True,
        compute_precision=ct.precision.FLOAT32,
        pass_pipeline=ct.PassPipeline.EMPTY,
    )


def saved(model: ct.models.MLModel, directory: Path, name: str = "model") -> Path:
    path = directory / f"{name}.mlpackage"
    model.save(str(path))
    return path


def run(path: Path, x: np.ndarray = X, **arithmetic: bool) -> np.ndarray:
    (result,) = Interpreter(Package(path), arithmetic=Arithmetic(**arithmetic)).predict({"x": x}).values()
    return result


def round_to_fp16(values: torch.Tensor) -> torch.Tensor:
    return values.half().float()


def configured(config) -> cto.OptimizationConfig:
    return cto.OptimizationConfig(global_config=config)


def palettes(bits: int, **options) -> Callable:
    config = cto.OpPalettizerConfig(nbits=bits, mode="uniform", **options)
    return lambda model: cto.palettize_weights(model, configured(config))
