"""Core ML's own values inside a function, on a Mac, by coremltools' MLModelInspector.

The inspector makes models that have some of the values as outputs besides, and compiles each: a minute or more for a
large function. coremltools' MLModelComparator, which stands on it, compares two Core ML models; and its
``compute_snr_and_psnr`` adds 1e-5 to the signal, which is more than a scaled stream may have. So the values are fetched
here, and compared by ``converters.proof.activations`` like all others.

The inspector (coremltools 9.0) adds outputs to the description of a model that has one function, and knows no state.
So a function is taken out of its package first, and there is no looking into those with a state.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from ane.backends.mil import Package
from ane.backends.mil.proto import model_messages
from ane.system.errors import UserError
from ane.system.files import link_or_copy
from converters.coreml.merge import INSIDE
from converters.proof.activations import Activations, Call
from converters.quiet import quiet

AT_ONCE = 40                # values a model; each is a model compiled
MODEL = INSIDE / "model.mlmodel"


class Inspector(Protocol):
    """Gives values of the one function of a package; None where Core ML does not give one. RuntimeError if it fails."""

    def values(self, inputs: Mapping[str, np.ndarray], names: Sequence[str]) -> Mapping[str, np.ndarray | None]: ...


class CoreMLInspector:
    """coremltools'. RuntimeError when Core ML fails."""

    def __init__(self, package: Path, units: str):
        with quiet():
            import coremltools
            from coremltools.models.ml_program.experimental.debugging_utils import MLModelInspector

            compute = coremltools.ComputeUnit[units]
            self.model = coremltools.models.MLModel(str(package), skip_model_load=True, compute_units=compute)
            self.inspector = MLModelInspector(self.model, compute)

    def values(self, inputs: Mapping[str, np.ndarray], names: Sequence[str]) -> Mapping[str, np.ndarray | None]:
        try:
            return asyncio.run(self.inspector.retrieve_outputs(dict(inputs), list(names)))
        finally:
            self.inspector.clear_cached_models()


class CoreMLValues:
    """Core ML as a ``Source``."""

    stateful = False

    def __init__(self, inspector: Callable[[Path, str], Inspector] = CoreMLInspector):
        self.inspector = inspector

    def activations(self, package: Path, function: str, call: Call) -> Activations:
        """Raises UserError when Core ML fails."""
        program = Package(package).function(function)
        types = {name: (op.type, type) for op in program.ops for name, type in op.outputs.items()}
        # the binding knows no float16 (ane.backends.coreml.runtime)
        inputs = {name: array.astype(np.float32) if array.dtype.kind == "f" else array
                  for name, array in call.inputs.items()}
        names = list(types)
        with tempfile.TemporaryDirectory() as folder:
            alone(package, function, Path(folder) / "function.mlpackage")
            try:
                inspector = self.inspector(Path(folder) / "function.mlpackage", call.units)
                for start in range(0, len(names), AT_ONCE):
                    batch = names[start:start + AT_ONCE]
                    values = inspector.values(inputs, batch)
                    for name in batch:
                        if values.get(name) is not None:
                            op, type = types[name]
                            yield name, op, np.asarray(values[name], np.float32).reshape(type.shape)
            except RuntimeError as error:
                raise UserError(f"Core ML cannot show the values inside function {function} of {package} on "
                                f"{call.units}: {error}") from error

    def forget(self, package: Path) -> None:
        pass


def alone(package: Path, function: str, destination: Path) -> None:
    """Write one function of a package as a package of its own, whose function is "main"."""
    shutil.copytree(package, destination, copy_function=link_or_copy)
    spec = model_messages().Model()
    spec.ParseFromString((package / MODEL).read_bytes())
    functions, description = spec.mlProgram.functions, spec.description
    for name in list(functions):
        if name == function != "main":
            functions["main"].CopyFrom(functions[name])
        if name != "main" or name != function:
            functions.pop(name)
    for stated in description.functions:
        if stated.name == function:
            description.input.extend(stated.input)
            description.output.extend(stated.output)
            description.state.extend(stated.state)
    description.ClearField("functions")
    description.ClearField("defaultFunctionName")
    (destination / MODEL).unlink()      # it may be a link to the other's
    (destination / MODEL).write_bytes(spec.SerializeToString())
