"""Core AI's own values inside a function: the function is written again as an asset that returns all of them."""

from pathlib import Path
from tempfile import TemporaryDirectory

from ane.backends.coreai.runtime import CoreAIFunction, CoreAIRuntime, CoreAIState, open_asset, write_model
from ane.backends.mil import Package
from ane.system.streams import silent_c_libraries
from converters.proof.activations import Activations, FunctionCall


class CoreAIActivations:
    """Core AI as an ``ActivationSource``, in the precision of ``runtime``."""

    stateful = True

    def __init__(self, runtime: CoreAIRuntime):
        self.runtime = runtime
        self._loaded: dict[tuple[Path, str], tuple[CoreAIFunction, TemporaryDirectory]] = {}

    def activations(self, package: Path, function: str, call: FunctionCall) -> Activations:
        """Raises UserError when an op is not supported or Core AI fails."""
        if (package, function) not in self._loaded:
            self._loaded[package, function] = self._load(package, function, call.compute_units)
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

    def _load(self, package: Path, function: str, compute_units: str) -> tuple[CoreAIFunction, TemporaryDirectory]:
        """The function that returns all values, and the folder of its asset."""
        opened, runtime, folder = Package(package), self.runtime, TemporaryDirectory()
        path = Path(folder.name) / f"values.{runtime.suffix}"
        write_model(opened, [function], path, runtime.fp16, values=True)
        with silent_c_libraries():
            model = open_asset(path, runtime.loop, compute_units)
            return CoreAIFunction(model.load_function(function), opened.function(function), runtime.loop, runtime.fp16,
                                  f"function {function!r} of {package}"), folder
