"""Run `ane serve` as a process, for tests, fuzzing and benchmarks."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.preloaded import ForkedCommand

LIMITED = (  # runs `ane` with a limit of descriptors
    "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0})); from ane.cli import main; "
    "sys.exit(main(sys.argv[1:]))"
)
PATIENCE = 60.0  # seconds that a test waits for an event that takes one second on an idle machine


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What the condition returns when it is met."""
    until = time.monotonic() + seconds
    while not (met := condition()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)
    return met


def wyoming_lines(*events: dict[str, Any]) -> bytes:
    """Events of the Wyoming protocol, without payload."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


class HttpAnswer(NamedTuple):
    """What a server answers to a request, which may be an error."""

    status: int
    data: bytes
    headers: Message

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]


def ask(
    address: str, path: str, body: bytes | dict[str, Any] | None = None, method: str | None = None, **headers: str
) -> HttpAnswer:
    """The answer to a request: POST if there is a body, which is JSON unless ``Content_Type`` says otherwise.

    In the names of headers, _ stands for -.
    """
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    named = {"Content-Type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
    try:
        request = urllib.request.Request(address + path, content, named, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return HttpAnswer(answer.status, answer.read(), answer.headers)
    except urllib.error.HTTPError as error:
        return HttpAnswer(error.code, error.read(), error.headers)


class ServerProcess:
    """A server on free ports of this machine, which has its own data directory; use it as a context manager.

    Args:
        descriptors: that it may have open; None: as many as this process.
        preloaded: The socket of ``tests.preloaded``, whose fork starts sooner than a process of its own. Tests of how
            a process begins or ends leave it out.

    Attributes:
        address: such as http://127.0.0.1:8880.
        log_file: its log, a line of JSON for each record.
    """

    def __init__(
        self, *arguments: str, home: Path | None = None, descriptors: int | None = None, preloaded: Path | None = None
    ):
        self._folder = tempfile.TemporaryDirectory()
        self.home = home or Path(self._folder.name)
        self.log_file = Path(self._folder.name) / "log"
        ane = ["-c", LIMITED.format(descriptors)] if descriptors else ["-m", "ane"]
        command = [*ane, "serve", "--port", "0", *arguments]
        environment = {**os.environ, "ANE_HOME": str(self.home), "OMP_NUM_THREADS": "1"}
        output, written = os.pipe()
        with self.log_file.open("wb") as log, open(output) as lines:
            self.process = (
                ForkedCommand(preloaded, command, environment, written, log.fileno())
                if preloaded
                else subprocess.Popen(
                    [sys.executable, *command], stdout=written, stderr=log, text=True, env=environment
                )
            )
            os.close(written)
            line = lines.readline()
        found = re.search(r"http://[^/ ]+", line)
        if found is None:
            raise RuntimeError(f"the server did not start: {line}{self.log_file.read_text()}")
        self.address = found[0]
        self.port = int(self.address.rpartition(":")[2])

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._folder.cleanup()

    def stop(self) -> int:
        """Ask it to end with SIGTERM; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def wait_until_ready(self, seconds: float = 280.0) -> "ServerProcess":
        until = time.monotonic() + seconds
        while self.ask("/ready").status != 200:
            if time.monotonic() > until:
                raise RuntimeError(f"the server is not ready: {self.log_file.read_text()}")
            time.sleep(0.1)
        return self

    def log(self) -> list[dict[str, Any]]:
        """The records of the log so far. Each line must be one."""
        records, text = [], self.log_file.read_text()
        for line in text.split("\n")[:-1]:  # not the one that is being written
            try:
                records.append(json.loads(line))
            except ValueError as fault:
                raise AssertionError(f"not a record: {line!r} in {text}") from fault
        return records

    def ask(
        self, path: str, body: bytes | dict[str, Any] | None = None, method: str | None = None, **headers: str
    ) -> HttpAnswer:
        return ask(self.address, path, body, method, **headers)

    def speak(self, **fields: Any) -> HttpAnswer:
        """The answer to a request for speech with these fields alone."""
        return self.ask("/v1/audio/speech", fields)

    def begin(self, path: str, body: bytes = b"", buffer: int = 0, **headers: str) -> socket.socket:
        """A connection that has sent a POST and reads nothing.

        Args:
            body: What it has sent after the headers, which need not be all.
            buffer: How many bytes of an answer it holds (default: as many as the system likes).
            headers: Headers besides Host and a Content-Type of JSON. In their names, _ stands for -.
        """
        connection = socket.socket()
        if buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", self.port))
        named = {"Host": "localhost", "Content-Type": "application/json"}
        named |= {name.replace("_", "-"): str(text) for name, text in headers.items()}
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {text}" for name, text in named.items())]
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return connection

    def wyoming(self, *events: dict[str, Any]) -> socket.socket:
        """A connection of the Wyoming protocol that has sent these events."""
        connection = socket.create_connection(("127.0.0.1", self.wyoming_port), PATIENCE)
        connection.sendall(wyoming_lines(*events))
        return connection

    @property
    def wyoming_port(self) -> int:
        return next(record["wyoming_port"] for record in self.log() if "wyoming_port" in record)

    def status(self) -> dict[str, int]:
        """What the process holds: resident memory in KiB, threads, open files, child processes. On Linux."""
        folder = Path("/proc") / str(self.process.pid)
        facts = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        children = (folder / "task" / str(self.process.pid) / "children").read_text().split()
        return {
            "memory_kib": int(facts["VmRSS"].split()[0]),
            "threads": int(facts["Threads"]),
            "files": len(list((folder / "fd").iterdir())),
            "children": len(children),
        }

    def metric(self, name: str, token: str = "") -> float:
        """The value of a metric, summed over its labels."""
        lines = self.ask("/metrics", Authorization=f"Bearer {token}").data.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}(\{{|\s)", line))
