"""First compilations and loads in a child process, where Core ML may hang, crash or be killed without ending this one.

coremltools holds the GIL while Core ML works, so that a hanging call cannot be limited in time from the same process;
and macOS kills a process that lacks memory, or that a first prediction crashes (apple/coremltools#2758). The child
compiles a package, or loads a function and predicts once, with zeros. macOS keeps what it specialised for the Neural
Engine under the path of the compiled model, so that this process then loads it quickly.

``python -m ane.backends.coreml.trial`` answers requests, JSON objects one a line (``answer_requests``), with {} or
{"error": message}:
{"compile": [package, destination]}, {"load": [compiled model, function, compute units, {input: [shape, dtype]}]}.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ane.backends.coreml.tools import CoreMLTools, keep_arrays
from ane.system.errors import UserError
from ane.system.json_process import JsonProcess, ProcessEndedError, ProcessTimeoutError, answer_requests

START_LIMIT = 300.0         # seconds, to import coremltools
LIMIT = 1800.0              # seconds; the longest specialisation that was reported took 519 (WhisperKit #208)


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
    """

    command: str | Sequence[str] = "ane.backends.coreml.trial"

    def __init__(self, limit: float = LIMIT):
        self.limit = limit
        self._process: JsonProcess | None = None

    def compile(self, package: Path, destination: Path) -> None:
        """As ``CoreMLTools.compile``."""
        self._ask({"compile": [str(package), str(destination)]})

    def load(self, compiled: Path, function: str, compute_units: str,
             inputs: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
        """Load a function and predict once. ``inputs``: shape and NumPy dtype of each."""
        self._ask({"load": [str(compiled), function, compute_units, {key: list(one) for key, one in inputs.items()}]})

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
                raise UnansweredError(f"it ended the process (signal {-error.status}, perhaps for lack of memory)"
                                      ) from None
            raise RuntimeError(f"the process that tries it ended (exit status {error.status})") from None
        except UserError as error:
            raise RuntimeError(str(error)) from None

    def _started(self) -> JsonProcess:
        try:
            return JsonProcess(self.command, limit=START_LIMIT)
        except ProcessTimeoutError:
            raise TrialStartError(f"the process that tries it did not start within {START_LIMIT / 60:g} minutes"
                                  ) from None
        except UserError as error:
            raise TrialStartError(str(error)) from None


def answer(request: Mapping[str, Any]) -> dict[str, str]:
    """Carry out a request in this process."""
    try:
        toolkit, (kind, content) = CoreMLTools(), *request.items()
        if kind == "compile":
            toolkit.compile(*map(Path, content))
            return {}
        compiled, function, compute_units, inputs = content
        loaded = toolkit.open(Path(compiled), function, compute_units)
        arrays = {key: np.zeros(shape, dtype) for key, (shape, dtype) in inputs.items()}
        keep_arrays(arrays)
        loaded.predict(dict(arrays), loaded.make_state())
    except (RuntimeError, MemoryError, OSError, UserError) as error:
        return {"error": str(error) or type(error).__name__}
    return {}


def ready() -> Callable[[Mapping[str, Any]], dict[str, str]]:
    import coremltools  # noqa: F401  seconds, which are no part of an answer

    return answer


if __name__ == "__main__":
    answer_requests(ready)
