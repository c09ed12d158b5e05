"""Serve commands from a process that has imported torch and the package, because importing them takes seconds.

    python tests/preloaded.py SOCKET        runs Python commands in forks until its standard input ends

``write_client`` writes a program that replaces `python` (only `-m MODULE` and `-c CODE`) or `ane`. The client passes
its arguments, environment, working directory and standard streams to the server, and exits with the status that comes
back. If a signal ends the command, SIGKILL ends the client. A signal to the client ends the command at once. Tests of
how a command handles a signal, or of the modules that it imports, start a real process instead.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# Converting all networks takes minutes. One network shows that a documented command works.
ONE_NETWORK, QUANTISED = "hifigan", "autoregressive"  # QUANTISED is converted if the command names precisions
CONVERTED = ("coreml", "onnx")
MODULES = (
    "ane.cli",
    "ane.models.tortoise.synthesizer",
    "ane.backends.torch.backend",
    "converters.coreml.coreml_package",
    "torch",
    "ane.commands.say",
    "ane.models.hibari.synthesizer",
    "ane.backends.fixed_shapes",
    "ane.commands.import_model",
    "ane.server.lifecycle",
    "ane.bundles.writing",
    # of huggingface_hub, which a command imports itself, because it reads the environment when it is imported
    "httpx2",
    "httpcore2",
)
TABLES = ("gold", "silver", "vocabulary", "weights", "tags")  # dictionaries that every command which speaks reads
STREAMS = 3  # standard input, output and error
# environment variable that names the program which replaces Python in a command's own processes
EXECUTABLE = "PRELOADED_EXECUTABLE"

CLIENT = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({socket!r})
    request = json.dumps({{"arguments": {before!r} + sys.argv[1:], "folder": os.getcwd(),
                          "environment": dict(os.environ), "one_network": {one_network!r}}}).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(request)
    server.recv({pid_bytes})
    status = server.recv(1)
sys.exit(status[0]) if status else os.kill(os.getpid(), 9)
"""
PID_BYTES = 4  # a command's first answer is the number of its process, and its last one is its status


class ForkedCommand:
    """A command that the server at ``address`` runs in a fork, with the members of ``subprocess.Popen`` for its end."""

    def __init__(self, address: Path, arguments: Sequence[str], environment: dict[str, str], stdout: int, stderr: int):
        request = {"arguments": arguments, "folder": os.getcwd(), "environment": environment, "one_network": False}
        data = json.dumps(request).encode()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(str(address))
        with open(os.devnull) as nothing:
            socket.send_fds(self._server, [len(data).to_bytes(4, "big")], [nothing.fileno(), stdout, stderr])
        self._server.sendall(data)
        self.pid = int.from_bytes(self._server.recv(PID_BYTES), "big")
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._server.settimeout(timeout)
            try:
                status = self._server.recv(1)
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired("ane", timeout) from error
            self.returncode = status[0] if status else -signal.SIGKILL
            self._server.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextmanager
def preloaded(folder: Path) -> Iterator[Path]:
    """A server while the block runs; its socket, in ``folder``."""
    address = folder / "socket"
    server = subprocess.Popen(
        [sys.executable, __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
    )
    assert server.stdout.readline() == "ready\n"
    yield address
    server.stdin.close()
    server.wait(timeout=30)


def write_client(path: Path, address: Path, before: tuple[str, ...] = (), one_network: bool = False) -> Path:
    """Write a program that runs its arguments, after those of ``before``, on the server at ``address``.

    ``one_network``: limit a conversion that names no networks to one.
    """
    path.write_text(
        CLIENT.format(
            python=sys.executable,
            socket=str(address),
            before=list(before),
            one_network=one_network,
            pid_bytes=PID_BYTES,
        )
    )
    path.chmod(0o755)
    return path


def serve(path: str) -> None:
    for module in MODULES:
        with suppress(ModuleNotFoundError):  # of an extra, or of another version of huggingface_hub
            importlib.import_module(module)
    for name in TABLES:
        importlib.import_module("ane.text.phonemes.dictionary").table(name)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as in conftest.py: conversions make millions of objects, and little garbage
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        threading.Thread(target=exit_with_parent, daemon=True).start()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forked processes
        while True:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                status = 1
                client.send(os.getpid().to_bytes(PID_BYTES, "big"))
                try:
                    status = run(client)
                finally:
                    client.send(bytes([status]))
                    os._exit(status)
            client.close()


def exit_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock a fork would inherit while it is held
        pass
    os._exit(0)


def exit_with_client(client: socket.socket) -> None:
    client.recv(1)  # a waiting client sends nothing, so this returns when it ends
    os._exit(1)


def with_one_network(arguments: list[str]) -> list[str]:
    """The command, a conversion that names no networks limited to one."""
    converts = arguments[2:3] == ["convert"] and "--networks" not in arguments
    network = QUANTISED if "--precision" in arguments else ONE_NETWORK
    return [*arguments, "--networks", network] if converts and set(CONVERTED) & set(arguments) else arguments


def run(client: socket.socket) -> int:
    """Take over the client's streams, folder and environment, and run its command. Returns the exit status."""
    length, streams, *_ = socket.recv_fds(client, 4, STREAMS)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    size = int.from_bytes(length, "big")
    request = json.loads(receive(client, size))
    threading.Thread(target=exit_with_client, args=(client,), daemon=True).start()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.executable = os.environ.get(EXECUTABLE, sys.executable)
    arguments = with_one_network(request["arguments"]) if request["one_network"] else request["arguments"]
    try:
        status = python(arguments)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status or 0


def python(arguments: list[str]) -> int:
    """Run `python ARGUMENTS`: `-m MODULE …` or `-c CODE …`. Returns the exit status."""
    kind, what, *rest = arguments
    if kind == "-m":
        sys.argv = [what, *rest]
        if what in ("ane", "ane.cli"):
            from ane.cli import main

            return main(rest)
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest]
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    else:
        raise ValueError(f"neither -m nor -c: {arguments}")
    return 0


def receive(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += client.recv(size - len(data))
    return data


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    serve(sys.argv[1])
