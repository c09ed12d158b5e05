"""First compilations and loads in a child process, where Core ML may hang, crash or be killed without ending this one.

coremltools holds the GIL while Core ML works, so that a hanging call cannot be limited in time from the same process;
and macOS kills a process that lacks memory, or that a first prediction crashes (apple/coremltools#2758). The child
compiles a package, or loads a function and repeats its golden probe (``ane.backends.packaged.golden``); without one it
predicts once, with zeros, which must be finite. macOS keeps what it specialised for the Neural
Engine under the path of the compiled model, so that this process then loads it quickly.

``python -m ane.backends.coreml.trial`` answers requests, JSON objects one a line (``answer_requests``), with {} or
{"error": message}:
{"compile": [package, destination]}, {"load": [compiled model, its name of the function, compute units, package,
function, {function: {input: [shape, dtype]}}, whether to repeat its probe]}. The answer to "load" has "seconds": the
median time of a call.
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

START_LIMIT = 300.0  # seconds, to import coremltools
LIMIT = 1800.0  # seconds; the longest specialisation that was reported took 519 (WhisperKit #208)


class UnansweredError(RuntimeError):
    """The child hung or ended without an answer, and would again."""


class TrialStartError(RuntimeError):
    """The child did not start; the next time it may."""


class CoreMLTrial:
    """The child process. It is started when it is first needed, and ends when its standard input is closed.

    Calls raise RuntimeError when Core ML fails, ``UnansweredError`` when there is no answer, and ``TrialStartError``
    when the child does not start.

    Args:
        limit: seconds that an answer may take.
        probes: repeat the golden probes. False: as for packages without, to look into a function that fails its own.
    """

    command: str | Sequence[str] = "ane.backends.coreml.trial"

    def __init__(self, limit: float = LIMIT, *, probes: bool = True):
        self.limit, self.probes = limit, probes
        self._process: JsonProcess | None = None

    def compile(self, package: Path, destination: Path) -> None:
        """As ``CoreMLTools.compile``."""
        self._ask({"compile": [str(package), str(destination)]})

    def load(
        self, compiled: Path, name: str, compute_units: str, package: Path, function: str, inputs: Mapping[str, Inputs]
    ) -> float:
        """Load a function of a package, which the compiled model calls ``name``, and repeat its probe. Returns the
        median seconds of a call.
        """
        return self._ask({"load": [str(compiled), name, compute_units, str(package), function, inputs, self.probes]})[
            "seconds"
        ]

    def close(self) -> None:
        """End the child; a later request starts another."""
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
    """Carry out a request in this process."""
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
    probes: bool,
) -> float:
    """Load a function and repeat its probe: the median seconds of a call. RuntimeError when it returns other values."""
    loaded, seconds = toolkit.open(Path(compiled), name, compute_units), list[float]()
    probe = GoldenCase.read(Path(package), function, inputs) if probes else None
    passed: list[Mapping[str, np.ndarray]] = []  # to Core ML, which may read them after a prediction

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
        if probe is None:
            zeros = {key: np.zeros(shape, dtype) for key, (shape, dtype) in inputs[function].items()}
            outputs = predict(function)(zeros, loaded.make_state())
            if not all(np.isfinite(array).all() for array in outputs.values()):
                raise RuntimeError(f"{OTHER_VALUES} (NaN or infinite)")
            return seconds[0]
        found = probe.repeat(predict, loaded.make_state, STEPS)
    finally:
        keep_arrays(passed)
    if not found >= probe.threshold:
        raise RuntimeError(f"{OTHER_VALUES} ({found:.1f} dB, and {probe.threshold:g} are needed)")
    return statistics.median(seconds)


def ready() -> Callable[[Mapping[str, Any]], dict[str, str]]:
    import coremltools  # noqa: F401  seconds, which are no part of an answer

    return answer


if __name__ == "__main__":
    answer_requests(ready)
