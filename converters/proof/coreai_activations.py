"""Core AI's own values inside a function: the function is written again as an asset that returns all of them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ane.backends.coreai.runtime import CoreAIFunction, CoreAIRuntime, CoreAIState, open_asset, write_model
from ane.backends.mil import Package
from ane.system.streams import silent_c_libraries
from converters.proof.activations import Activations, FunctionCall


class CoreAIActivations:
    """Core AI as an ``ActivationSource``, in the precision of ``runtime``."""

    stateful = True

    def __init__(self, runtime: CoreAIRuntime):
        self.runtime = runtime

    def activations(self, package: Path, function: str, call: FunctionCall) -> Activations:
        """Raises UserError when an op is not supported or Core AI fails."""
        opened = Package(package)
        program, runtime = opened.function(function), self.runtime
        with TemporaryDirectory() as folder, silent_c_libraries():
            path = Path(folder) / f"values.{runtime.suffix}"
            write_model(opened, [function], path, runtime.fp16, values=True)
            model = open_asset(path, runtime.loop, call.compute_units)
            loaded = CoreAIFunction(model.load_function(function), program, runtime.loop, runtime.fp16,
                                    f"function {function!r} of {package}")
            state = CoreAIState(call.state) if call.state else None
            values = loaded.run(call.inputs, state)
        for op in program.ops:
            for name in op.outputs:
                yield name, op.type, values[name]
            if op.written_state:        # its last value, as programs write each state once
                yield op.written_state, op.type, np.array(state[op.written_state], np.float32)

    def unload(self, package: Path) -> None:
        """Nothing is kept."""
