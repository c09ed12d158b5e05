"""Core ML's own values inside a function, on a Mac, by coremltools' MLModelInspector.

The inspector adds values to a model's outputs and compiles it again: a minute or more for a large function.
coremltools' MLModelComparator compares Core ML models only, and its ``compute_snr_and_psnr`` adds 1e-5 to the signal,
which exceeds the signal of some scaled streams. So values are compared by ``converters.proof.activations``.

The inspector (coremltools 9.0) supports models of one function without a state. So a function is first extracted from
its package, and functions with a state cannot be inspected.
"""

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ane.backends.coreml.extract import extract_function
from ane.backends.mil import Package
from ane.system.errors import UserError
from converters.coreml.graph import quiet
from converters.proof.activations import Activations, FunctionCall

BATCH = 40                  # values that one compiled model returns


class CoreMLInspector:
    """coremltools' inspector of a package's only function. Raises RuntimeError when Core ML fails."""

    def __init__(self, package: Path, compute_units: str):
        with quiet():
            import coremltools
            from coremltools.models.ml_program.experimental.debugging_utils import MLModelInspector

            compute = coremltools.ComputeUnit[compute_units]
            self.model = coremltools.models.MLModel(str(package), skip_model_load=True, compute_units=compute)
            self.inspector = MLModelInspector(self.model, compute)

    def values(self, inputs: Mapping[str, np.ndarray], names: Sequence[str]) -> Mapping[str, np.ndarray | None]:
        """The values by name; None where Core ML returns none."""
        try:
            return asyncio.run(self.inspector.retrieve_outputs(dict(inputs), list(names)))
        finally:
            self.inspector.clear_cached_models()


class CoreMLActivations:
    """Core ML as an ``ActivationSource``."""

    stateful = False

    def __init__(self, inspector: Callable[[Path, str], Any] = CoreMLInspector):
        self.inspector = inspector

    def activations(self, package: Path, function: str, call: FunctionCall) -> Activations:
        """Raises UserError when Core ML fails."""
        program = Package(package).function(function)
        types = {name: (op.type, type) for op in program.ops for name, type in op.outputs.items()}
        # the binding does not accept float16 (ane.backends.coreml.runtime)
        inputs = {name: array.astype(np.float32) if array.dtype.kind == "f" else array
                  for name, array in call.inputs.items()}
        names = list(types)
        with tempfile.TemporaryDirectory() as folder:
            extract_function(package, function, Path(folder) / "function.mlpackage")
            try:
                inspector = self.inspector(Path(folder) / "function.mlpackage", call.compute_units)
                for start in range(0, len(names), BATCH):
                    batch = names[start:start + BATCH]
                    values = inspector.values(inputs, batch)
                    for name in batch:
                        if values.get(name) is not None:
                            op, type = types[name]
                            yield name, op, np.asarray(values[name], np.float32).reshape(type.shape)
            except RuntimeError as error:
                raise UserError(f"Core ML cannot show the values inside function {function} of {package} on "
                                f"{call.compute_units}: {error}") from error

    def unload(self, package: Path) -> None:
        pass
