"""First compilations and loads in a child process, where Core ML may hang, crash or be killed without ending this one.

coremltools holds the GIL while Core ML works, so that a hanging call cannot be limited in time from the same process;
and macOS kills a process that lacks memory, or that a first prediction crashes (apple/coremltools#2758). The child
compiles a package, or loads a function and predicts once, with zeros. macOS keeps what it specialised for the Neural
Engine under the path of the compiled model, so that this process then loads it quickly.

``python -m ane.backends.coreml.trial`` prints {} when it is ready, and answers requests, JSON objects one a line, with
{} or {"error": message}:
{"compile": [package, destination]}, {"load": [compiled model, function, compute units, {input: [shape, dtype]}]}.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

START_LIMIT = 300.0         # seconds, to import coremltools
LIMIT = 1800.0              # seconds; the longest specialisation that was reported took 519 (WhisperKit #208)
COMMAND = (sys.executable, "-m", "ane.backends.coreml.trial")


class UnansweredError(RuntimeError):
    """The child did not answer: Core ML hung or ended it. It would do so again."""


class TrialProcess:
    """The child process. It is started when it is first needed, and ends when its standard input is closed.

    Args:
        limit: seconds that an answer may take.
    """

    def __init__(self, limit: float = LIMIT):
        self.limit = limit
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()

    def compile(self, package: Path, destination: Path) -> None:
        """As ``CoreMLApi.compile``. RuntimeError when Core ML fails, ``UnansweredError`` when it does not answer."""
        self._ask({"compile": [str(package), str(destination)]})

    def load(self, compiled: Path, function: str, compute_units: str,
             inputs: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
        """Load a function and predict once. ``inputs``: shape and NumPy dtype of each. Raises as ``compile`` does."""
        self._ask({"load": [str(compiled), function, compute_units, {key: list(one) for key, one in inputs.items()}]})

    def close(self) -> None:
        """End the child; a later request starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _ask(self, request: Mapping[str, Any]) -> None:
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:         # the child has ended, which ``_answer`` reports
            pass
        self._answer(self.limit)

    def _answer(self, limit: float) -> None:
        """Wait for an answer, and raise the error that it states."""
        assert self._process is not None
        try:
            line = self._answers.get(timeout=limit)
        except queue.Empty:
            self.close()
            raise UnansweredError(f"it did not finish within {limit / 60:g} minutes") from None
        if not line:
            status = self._process.wait()
            self._process = None
            if status < 0:
                raise UnansweredError(f"it ended the process (signal {-status}, perhaps for lack of memory)")
            raise RuntimeError(f"the process that tries it ended (exit status {status})")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])

    def _start(self) -> None:
        self._answers = answers = queue.Queue()
        self._process = process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                                   stderr=subprocess.DEVNULL)

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                answers.put(line)
            answers.put("")

        threading.Thread(target=read, daemon=True).start()
        self._answer(START_LIMIT)


def answer(request: Mapping[str, Any]) -> dict[str, str]:
    """Carry out a request in this process."""
    import numpy as np

    from ane.backends.coreml.runtime import CoreMLTools, keep_for_a_while
    from ane.system.errors import UserError

    try:
        toolkit, (kind, content) = CoreMLTools(), *request.items()
        if kind == "compile":
            toolkit.compile(*map(Path, content))
            return {}
        compiled, function, compute_units, inputs = content
        loaded = toolkit.open(Path(compiled), function, compute_units)
        arrays = {key: np.zeros(shape, dtype) for key, (shape, dtype) in inputs.items()}
        keep_for_a_while(arrays)
        loaded.predict(dict(arrays), loaded.make_state())
    except (RuntimeError, MemoryError, OSError, UserError) as error:
        return {"error": str(error) or type(error).__name__}
    return {}


def main() -> None:
    import coremltools  # noqa: F401  seconds, which are no part of an answer

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())       # libraries print on standard output
    print(json.dumps({}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
