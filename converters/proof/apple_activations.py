"""Values inside a function as Apple's runtimes compute them: Core ML's on a Mac, Core AI's."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.coreml.compiled import extract_function
from ane.backends.mil import Package
from ane.system.errors import UserError
from ane.system.streams import silent_c_libraries
from converters.coreml.graph import quiet
from converters.proof.activations import Activations, FunctionCall

if TYPE_CHECKING:
    from ane.backends.coreai.runtime import CoreAIFunction, CoreAIRuntime

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
    """Core ML as an ``ActivationSource``, on a Mac.

    The inspector adds values to a model's outputs and compiles it again: a minute or more for a large function. It
    (coremltools 9.0) supports models of one function without a state. So a function is first extracted from its
    package, and functions with a state cannot be inspected.

    coremltools' MLModelComparator compares Core ML models only, and its ``compute_snr_and_psnr`` adds 1e-5 to the
    signal, which exceeds the signal of some scaled streams. So values are compared by ``converters.proof.activations``.
    """

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
        with TemporaryDirectory() as folder:
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


class CoreAIActivations:
    """Core AI as an ``ActivationSource``, in the precision of ``runtime``.

    The function is written again as an asset that returns all values.
    """

    stateful = True

    def __init__(self, runtime: "CoreAIRuntime"):
        self.runtime = runtime
        self._loaded: dict[tuple[Path, str], tuple[CoreAIFunction, TemporaryDirectory]] = {}

    def activations(self, package: Path, function: str, call: FunctionCall) -> Activations:
        """Raises UserError when an op is not supported or Core AI fails."""
        from ane.backends.coreai.runtime import CoreAIState

        if (package, function) not in self._loaded:
            self._loaded[package, function] = self._load(package, function)
        loaded, _ = self._loaded[package, function]
        state = CoreAIState(call.state) if call.state else None
        values = loaded.run(call.inputs, state)
        states = state.copied() if state else {}
        for op in loaded.program.ops:
            for name in op.outputs:
                yield name, op.type, values[name]
            if op.written_state:        # its last value, as programs write each state once
                yield op.written_state, op.type, states[op.written_state].astype("float32")

    def unload(self, package: Path) -> None:
        for key in [key for key in self._loaded if key[0] == package]:
            self._loaded.pop(key)[1].cleanup()

    def _load(self, package: Path, function: str) -> tuple["CoreAIFunction", TemporaryDirectory]:
        """The function that returns all values, and the folder of its asset."""
        from ane.backends.coreai.runtime import COMPILED, CoreAIFunction, open_asset, write_model

        opened, runtime, folder = Package(package), self.runtime, TemporaryDirectory()
        path = Path(folder.name) / f"values.{COMPILED}"
        write_model(opened, [function], path, runtime.fp16, values=True)
        with silent_c_libraries():
            model = open_asset(path, runtime.loop)
            return CoreAIFunction(model.load_function(function), opened.function(function), runtime.loop, runtime.fp16,
                                  f"function {function!r} of {package}"), folder
