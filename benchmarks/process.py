"""A program in a process of its own that answers requests: its cold start and its peak of memory are its own."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ane.system.errors import UserError


class Process:
    """A running program that says {"ready": ..} and then answers every line of JSON with another. A context manager.

    Attributes:
        ready: what it said when it was ready.
        cold_start: seconds from its start until then.
        peak_gb: its largest resident set in 10^9 bytes, known once it has ended; None where the system does not tell.
    """

    name = "the process"

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], missing: str):
        """Raises UserError when it cannot be run (``missing`` is the advice) or does not become ready."""
        start = time.perf_counter()
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                             env={**os.environ, **environment})
        except OSError as error:
            raise UserError(f"cannot run {command[0]}: {error.strerror}; {missing}") from error
        self.peak_gb: float | None = None
        try:
            self.ready = self._read()
        except BaseException:
            self.close()
            raise
        self.cold_start = time.perf_counter() - start

    def ask(self, request: dict) -> dict:
        """The answer to a request. Raises UserError when the program has ended instead."""
        with suppress(BrokenPipeError):      # it has died: reading says so
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            raise UserError(f"{self.name} ended with status {self._process.wait()}: its own message stands above")
        return json.loads(line)

    def close(self) -> None:
        """End it by the end of its input, and wait for that."""
        if self._process.stdin.closed:
            return
        self.peak_gb = high_water(self._process.pid)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        if sys.platform == "darwin" and self._process.returncode is None:
            _, status, usage = os.wait4(self._process.pid, 0)
            self._process.returncode, self.peak_gb = os.waitstatus_to_exitcode(status), usage.ru_maxrss / 1e9
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:        # it may be deep in work that nobody waits for any more
            self._process.terminate()
        self.close()


def high_water(pid: int) -> float | None:
    """The largest resident set of a process so far, GB; None where there is no /proc.

    The kernel's count for a child that has ended (``ru_maxrss``) begins with its parent's; this one does not.
    """
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 / 1e9 if found else None
