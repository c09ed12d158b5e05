"""Compile packages and do the first load of a function in a child process, which Core ML may crash or hang.

coremltools holds the GIL while Core ML works, so a process cannot stop its own call if the call hangs. macOS kills a
process that needs too much memory, and a first prediction may crash the process (apple/coremltools#2758).

The child compiles a package, or it loads a function and runs the function's golden case
(``ane.backends.packaged.golden``). If the function has no golden case, the child predicts once with zeros, and the
outputs must be finite. macOS caches the model that it specialises for the Neural Engine, so the parent process can then
load the function quickly.

``python -m ane.backends.coreml.trial`` is the child. It reads requests, one JSON object per line (``answer_requests``):

* {"compile": [package, destination]}
* {"load": [compiled model, the function's name in this model, compute units, package, the function's name in the
  package, {function: {input: [shape, dtype]}}, whether to run the golden case]}

It answers each request with {} or {"error": message}. The answer to "load" has "seconds", the median time of a call.
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

START_LIMIT = 300.0  # seconds that the child may take to import coremltools
LIMIT = 1800.0  # seconds that an answer may take; the slowest load that we know of took 519 s (WhisperKit #208)


class UnansweredError(RuntimeError):
    """Means that the child process hung or ended without an answer.

    Another attempt would probably end in the same way.
    """


class TrialStartError(RuntimeError):
    """Means that the child did not start. The child may start the next time."""


class CoreMLTrial:
    """A child process that compiles packages, and loads each function before the parent process loads it.

    If Core ML crashes or hangs, only the child is lost. The child starts when a method first needs it.

    ``compile`` and ``load`` raise RuntimeError if Core ML fails, ``UnansweredError`` if the child does not answer, and
    ``TrialStartError`` if the child does not start.

    Args:
        limit: Seconds that an answer may take.
        golden_cases: Whether to run golden cases, which are stored inputs with their expected outputs. Pass ``False``
            to examine a function that fails its golden case.
    """

    command: str | Sequence[str] = "ane.backends.coreml.trial"

    def __init__(self, limit: float = LIMIT, *, golden_cases: bool = True):
        self.limit, self.golden_cases = limit, golden_cases
        self._process: JsonProcess | None = None

    def compile(self, package: Path, destination: Path) -> None:
        """Call ``CoreMLTools.compile`` in the child."""
        self._ask({"compile": [str(package), str(destination)]})

    def load(
        self, compiled: Path, name: str, compute_units: str, package: Path, function: str, inputs: Mapping[str, Inputs]
    ) -> float:
        """Load a package's function in the child process, and run its golden case (a stored test).

        Args:
            compiled: Path of the compiled model.
            name: Name of the function in the compiled model.
            compute_units: Compute units on which to load the function.
            package: Folder of the package.
            function: Name of the function in the package.
            inputs: Shape and dtype of each input that Core ML receives, by function name.

        Returns:
            The median seconds of a call.
        """
        load = [str(compiled), name, compute_units, str(package), function, inputs, self.golden_cases]
        return self._ask({"load": load})["seconds"]

    def close(self) -> None:
        """End the child. A later request starts another child."""
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
            raise RuntimeError(f"the child process ended (exit status {error.status})") from None
        except UserError as error:
            raise RuntimeError(str(error)) from None

    def _started(self) -> JsonProcess:
        try:
            return JsonProcess(self.command, limit=START_LIMIT)
        except ProcessTimeoutError:
            raise TrialStartError(f"the child process did not start within {START_LIMIT / 60:g} minutes") from None
        except UserError as error:
            raise TrialStartError(str(error)) from None


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Handle a request in this process, which is the child, and return the answer."""
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
    """Load a package's function, run its golden case (a stored test), and return the median seconds of a call.

    Raises:
        RuntimeError: Core ML fails, or the outputs are wrong.
    """
    loaded, seconds = toolkit.open(Path(compiled), name, compute_units), list[float]()
    case = GoldenCase.read(Path(package), function, inputs) if golden_cases else None
    passed: list[Mapping[str, np.ndarray]] = []  # arrays that Core ML may still read after a prediction

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
        raise RuntimeError(f"{OTHER_VALUES} ({lowest:.1f} dB, and {case.threshold:g} dB is needed)")
    return statistics.median(seconds)


def ready() -> Callable[[Mapping[str, Any]], dict[str, str]]:
    import coremltools  # noqa: F401  takes seconds, which are not part of the time for an answer

    return answer


if __name__ == "__main__":
    answer_requests(ready)
