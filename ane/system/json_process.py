"""Run a program that answers JSON requests in a separate process, where it may hang or crash without harm.

You can also read the peak memory of this process.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ane.system.child_process import ChildProcess
from ane.system.errors import UserError
from ane.system.machine import peak_memory_bytes


class ProcessEndedError(UserError):
    """Means that the program has ended instead of answering.

    Attributes:
        status: Exit status of the program, or the negative number of the signal that ended it.
    """

    def __init__(self, message: str, status: int = 1):
        super().__init__(message)
        self.status = status


class ProcessTimeoutError(UserError):
    """Means that the program did not answer in time, and was killed."""


def answer_requests(make: Callable[[], Callable[[Any], dict[str, Any]]]) -> None:
    """Answer every line of standard input with a line on standard output, until the input ends.

    The program that ``JsonProcess`` starts calls this function. While the program runs, all other output goes to
    standard error, because libraries may print on standard output.

    Args:
        make: Function that prepares the program and returns the function that answers a request. If the latter raises
            UserError, the answer is {"error": message}.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def write(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    answer = make()
    write({"ready": True})
    for line in sys.stdin:
        try:
            write(answer(json.loads(line)))
        except UserError as error:
            write({"error": str(error)})


class JsonProcess:
    """A running program that prints a line {"ready": …} and then answers each line of JSON with another line of JSON.

    Use it as a context manager. At the end of the block, it closes the program's input and waits until the program
    ends.

    Args:
        command: Name of a module of this program, or command line of another program (see ``ChildProcess``).
        environment: Environment variables to add.
        advice: Advice for the user if the program cannot be started.
        limit: Seconds within which the program must be ready. ``None`` means no limit.

    Attributes:
        ready: Content of the first line.
        cold_start: Seconds from the start of the program to the first line.
        peak_bytes: Largest resident memory of the program, in bytes, once it has ended. ``None`` if the system does not
            report it.

    Raises:
        UserError: The program cannot be started, or ends before it is ready.
        ProcessTimeoutError: The program is not ready in time.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        environment: Mapping[str, str] | None = None,
        advice: str = "",
        limit: float | None = None,
    ):
        self.name = command if isinstance(command, str) else " ".join(command[:3])
        started = time.perf_counter()
        self.peak_bytes: int | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (close() closes it)
        try:
            self._process = ChildProcess(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                stderr=self._errors,
                environment=environment,
            )
        except OSError as error:
            self._errors.close()
            reason = f"{error.strerror or error}{advice and ': '}{advice}"
            raise UserError(f"cannot run {self.name.split()[0]}: {reason}") from error
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.ready = self._answer(limit)
        except BaseException:
            self.kill()
            raise
        self.cold_start = time.perf_counter() - started

    def ask(self, request: Any, limit: float | None = None) -> dict[str, Any]:
        """Send a request, and return the answer.

        Args:
            request: JSON value to send.
            limit: Seconds within which the program must answer. ``None`` means no limit.

        Raises:
            UserError: The answer is {"error": message}.
            ProcessEndedError: The program has ended instead of answering. The message has its exit status and its last
                line of output.
            ProcessTimeoutError: The program did not answer in time.
        """
        with suppress(BrokenPipeError):  # the program has ended, which the read below reports
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._answer(limit)

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self, limit: float | None) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            self.kill()
            raise ProcessTimeoutError(f"{self.name} did not answer within {limit:g} seconds") from None
        if not line:
            status = self._process.wait()
            raise ProcessEndedError(self._ending(status), status)
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(answer["error"])
        return answer

    def _ending(self, status: int) -> str:
        if status < 0:
            return f"the process was ended by {signal.Signals(-status).name}"
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["it printed nothing"])[-1]
        return f"{self.name} ended with status {status}: {last}"

    def kill(self) -> None:
        """End the program immediately, even if it is busy."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        if self._process.stdin.closed:
            return
        if self._process.returncode is None:
            self.peak_bytes = peak_memory_bytes(self._process.pid)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        if sys.platform == "darwin" and self._process.returncode is None:
            _, status, usage = os.wait4(self._process.pid, 0)
            self._process.returncode, self.peak_bytes = os.waitstatus_to_exitcode(status), usage.ru_maxrss
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> "JsonProcess":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # the program may be busy with a request that nobody needs any more
            self._process.terminate()
        self.close()
