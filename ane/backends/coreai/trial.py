"""Verifies each function when Core AI first uses it on a Mac with macOS 27, in a child process.

Its framework may end the process (assertions of MPSGraph cannot be caught), or compute wrong numbers without an error.
The child runs a function once on random numbers, and compares outputs and states with the interpreter. The outcome is
remembered for each package, choice of units and version of macOS.

``python -m ane.backends.coreai.trial`` answers requests, JSON objects one a line (``answer_requests``):
{"asset", "package", "function", "compute_units", "fp16"}, with {"snr": dB} or {"error": message}.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ane.backends.coreai.assets import coreai_version
from ane.backends.coreml.compiled import NO_MEMORY, error_summary, package_hash, this_machine
from ane.backends.coreml.trial import TrialProcess, TrialStartError
from ane.backends.mil import Interpreter, Package
from ane.backends.mil.package import ProgramFunction
from ane.backends.packaged.functions import EngineRefusalError
from ane.backends.packaged.state_trial import read_problem
from ane.system import paths
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from ane.system.files import write_json

THRESHOLD = 30.0        # dB; Core AI's interpreter reaches 40 in fp16, wrong results that were reported are below 10


class CoreAITrial(TrialProcess):
    """The child process for Core AI, and what it found earlier."""

    command = (sys.executable, "-m", "ane.backends.coreai.trial")

    def verify(self, asset: Callable[[], Path], package: Path, function: str, compute_units: str, fp16: bool,
              notice: Callable[[str], None]) -> None:
        """Verify a function unless that was done on this Mac. ``asset``: makes the asset with it, if it is missing.

        Raises:
            EngineRefusalError: Core AI fails, does not answer, or returns other outputs.
        """
        key = "\n".join((*this_machine(), coreai_version(), package_hash(package), function, compute_units, str(fp16)))
        record = paths.cache_dir() / "verified" / f"coreai-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        problem = read_problem(record)
        if problem:
            problem = f"{problem} (found earlier; `ane cache clear` forgets that)"
        elif problem is None:
            made = asset()
            notice(f"Verifying {function} on Core AI, once for each version of macOS: this can take minutes")
            problem = self._problem({"asset": str(made), "package": str(package), "function": function,
                                     "compute_units": compute_units, "fp16": fp16})
            if NO_MEMORY not in problem:        # there may be memory later
                write_json(record, {"problem": problem})
        if problem:
            raise EngineRefusalError(f"Core AI cannot be used for function {function!r} of {package} on this Mac: "
                                     f"{problem}; use backend=coreml or backend=torch", everywhere=True)

    def _problem(self, request: Mapping[str, Any]) -> str:
        try:
            snr = float(self._ask(request)["snr"])
        except TrialStartError as error:
            raise UserError(f"Core AI: {error}") from error
        except RuntimeError as error:
            return error_summary(error)
        return "" if snr >= THRESHOLD else (
            f"its outputs have {snr:.0f} dB against the interpreter's, and {THRESHOLD:.0f} are needed")


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a request in this process."""
    from ane.backends.coreai.runtime import CoreAIFunction, EventLoop, open_asset

    package, name, loop = Package(Path(request["package"])), request["function"], EventLoop()
    program = package.function(name)
    try:
        opened = open_asset(Path(request["asset"]), loop, request["compute_units"])
        tried = CoreAIFunction(opened.load_function(name), program, loop, request["fp16"], f"function {name!r}")
        return {"snr": compare_on_random_numbers(tried, Interpreter(package, name), program)}
    except (RuntimeError, MemoryError, OSError, UserError) as error:
        return {"error": str(error) or type(error).__name__}


def compare_on_random_numbers(tried: Any, expected: Any, program: ProgramFunction) -> float:
    """The worst signal-to-noise ratio of two functions' outputs and states."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(type.shape).astype(np.float32) if type.dtype.startswith("fp")
              else np.zeros(type.shape, np.int32) for name, type in program.inputs.items()}
    found = []
    for function in (expected, tried):
        state = function.make_state() if program.states else None
        found.append(dict(function.predict(inputs, state)) | (state.copied() if state else {}))
    return min(float(snr_db(found[0][name], found[1][name])) for name in found[0])


def ready() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    import coreai.runtime  # noqa: F401  seconds, which are no part of an answer

    return answer


if __name__ == "__main__":
    from ane.system.json_process import answer_requests

    answer_requests(ready)
