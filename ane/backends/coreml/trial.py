"""Compile and load functions first in a child process, so that Core ML may hang or crash there.

coremltools holds the GIL while Core ML works, so this process cannot limit the time of a hanging call. macOS also kills
a process that lacks memory, or that a first prediction crashes (apple/coremltools#2758). The child compiles a package,
or loads a function and runs its golden case (``ane.backends.packaged.golden``). If there is no golden case, it predicts
once with zeros, and the outputs must be finite. macOS caches its specialisation for the Neural Engine under the path of
the compiled model, so that this process then loads the function quickly.

``python -m ane.backends.coreml.trial`` answers requests, which are JSON objects on a line each (``answer_requests``):

* {"compile": [package, destination]}
* {"load": [compiled model, its name of the function, compute units, package, function, {function: {input: [shape,
  dtype]}}, whether to run the golden case]}

The answer is {} or {"error": message}. The answer to "load" has "seconds", the median time of a call.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter as clock
from typing import Any

import numpy as np

from ane.backends.coreml.tools import CoreMLTools, keep_arrays
from ane.backends.packaged.golden import OTHER_VALUES, STEPS, GoldenCase, Inputs, Predict
from ane.system.errors import UserError
from ane.system.json_process import JsonProcess, ProcessEndedError, ProcessTimeoutError, answer_requests

START_LIMIT = 300.0  # seconds to import coremltools
LIMIT = 1800.0  # seconds for an answer; the longest specialisation reported took 519 s (WhisperKit #208)


class UnansweredError(RuntimeError):
    """The child hung, or ended without an answer, and would do so again."""


class TrialStartError(RuntimeError):
    """The child did not start. It may start the next time."""


class CoreMLTrial:
    """The child process. It starts when it is first needed, and ends when its standard input is closed.

    Calls raise RuntimeError if Core ML fails, ``UnansweredError`` if there is no answer, and ``TrialStartError`` if the
    child does not start.

    Args:
        limit: Seconds that an answer may take.
        golden_cases: Whether to run golden cases. ``False`` lets you examine a function that fails its case.
    """

    command: str | Sequence[str] = "ane.backends.coreml.trial"

    def __init__(self, limit: float = LIMIT, *, golden_cases: bool = True):
        self.limit, self.golden_cases = limit, golden_cases
        self._process: JsonProcess | None = None

    def compile(self, package: Path, destination: Path) -> None:
        """Compile a package in the child, as ``CoreMLTools.compile`` does."""
        self._ask({"compile": [str(package), str(destination)]})

    def load(
        self, compiled: Path, name: str, compute_units: str, package: Path, function: str, inputs: Mapping[str, Inputs]
    ) -> float:
        """Load a function of a package, and run its golden case.

        Args:
            compiled: The compiled model.
            name: Name of the function in the compiled model.
            compute_units: Compute units of the function.
            package: Folder of the package.
            function: Name of the function in the package.
            inputs: Inputs of each function, as they are passed to Core ML.

        Returns:
            The median seconds of a call.
        """
        load = [str(compiled), name, compute_units, str(package), function, inputs, self.golden_cases]
        return self._ask({"load": load})["seconds"]

    def close(self) -> None:
        """End the child. A later request starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if self._process is None:
                self._process = self._started()
            return self._process.ask(request, self.limit)
        except ProcessTimeoutError:
            self._process = None
            raise UnansweredError(f"it did not finish within {self.limit / 60:g} minutes") from None
        except ProcessEndedError as error:
            self.close()
            if error.status < 0:
                raise UnansweredError(
                    f"it ended the process (signal {-error.status}, perhaps for lack of memory)"
                ) from None
            raise RuntimeError(f"the process that tries it ended (exit status {error.status})") from None
        except UserError as error:
            raise RuntimeError(str(error)) from None

    def _started(self) -> JsonProcess:
        try:
            return JsonProcess(self.command, limit=START_LIMIT)
        except ProcessTimeoutError:
            raise TrialStartError(
                f"the process that tries it did not start within {START_LIMIT / 60:g} minutes"
            ) from None
        except UserError as error:
            raise TrialStartError(str(error)) from None


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a request in this process, and return the answer."""
    try:
        toolkit, (kind, content) = CoreMLTools(), *request.items()
        if kind == "compile":
            toolkit.compile(*map(Path, content))
            return {}
        return {"seconds": _try_function(toolkit, *content)}
    except (RuntimeError, MemoryError, OSError, UserError) as error:
        return {"error": str(error) or type(error).__name__}


def _try_function(
    toolkit: CoreMLTools,
    compiled: str,
    name: str,
    compute_units: str,
    package: str,
    function: str,
    inputs: Mapping[str, Inputs],
    golden_cases: bool,
) -> float:
    """Load a function, run its golden case, and return the median seconds of a call. RuntimeError for wrong values."""
    loaded, seconds = toolkit.open(Path(compiled), name, compute_units), list[float]()
    case = GoldenCase.read(Path(package), function, inputs) if golden_cases else None
    passed: list[Mapping[str, np.ndarray]] = []  # arrays that Core ML may read after a prediction

    def predict(called: str) -> Predict:
        one = loaded if called == function else toolkit.open(Path(compiled), called, compute_units)

        def call(arrays: Mapping[str, np.ndarray], state: Any) -> Mapping[str, np.ndarray]:
            passed.append({key: array.view() for key, array in arrays.items()})
            started = clock()
            outputs = one.predict(dict(passed[-1]), state)
            took = clock() - started
            if called == function:
                seconds.append(took)
            return outputs

        return call

    try:
        if case is None:
            zeros = {key: np.zeros(shape, dtype) for key, (shape, dtype) in inputs[function].items()}
            outputs = predict(function)(zeros, loaded.make_state())
            if not all(np.isfinite(array).all() for array in outputs.values()):
                raise RuntimeError(f"{OTHER_VALUES} (NaN or infinite)")
            return seconds[0]
        lowest = case.run(predict, loaded.make_state, STEPS)
    finally:
        keep_arrays(passed)
    if not lowest >= case.threshold:
        raise RuntimeError(f"{OTHER_VALUES} ({lowest:.1f} dB, and {case.threshold:g} are needed)")
    return statistics.median(seconds)


def ready() -> Callable[[Mapping[str, Any]], dict[str, str]]:
    import coremltools  # noqa: F401  takes seconds, which must not count as part of an answer

    return answer


if __name__ == "__main__":
    answer_requests(ready)
