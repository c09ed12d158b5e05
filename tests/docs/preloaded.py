"""A server that has imported everything, and runs each `ane` command in a fork: importing torch takes seconds.

    python tests/docs/preloaded.py SOCKET       serves until its standard input ends

`CLIENT` is the script that stands for `ane` on PATH. It passes its arguments, environment, working directory and
standard streams, and exits with the status that comes back.
"""

import array
import importlib
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

# A conversion of all networks takes minutes; one network shows that the documented command works.
ONE_NETWORK = ["--networks", "hifigan"]
CONVERTED = ("coreml", "onnx")
MODULES = ("ane.cli", "ane.models.tortoise.synthesizer", "ane.backends.torch.backend", "inflect", "torch")
STREAMS = 3         # standard input, output and error

CLIENT = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({socket!r})
    request = json.dumps({{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(request)
    status = server.recv(1)
sys.exit(status[0] if status else 139)
"""


def serve(path: str) -> None:
    for module in MODULES:
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        threading.Thread(target=exit_with_parent, daemon=True).start()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)           # the kernel reaps the forked processes
        while True:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                status = 1
                try:
                    status = run(client)
                finally:
                    client.send(bytes([status]))
                    os._exit(status)
            client.close()


def exit_with_parent() -> None:
    while os.read(0, 1):        # not sys.stdin: a fork would inherit its lock, held
        pass
    os._exit(0)


def exit_with_client(client: socket.socket) -> None:
    client.recv(1)              # a client that waits sends nothing more
    os._exit(1)


def with_one_network(arguments: list[str]) -> list[str]:
    """The command, a conversion that names no networks limited to one."""
    converts = arguments[:1] == ["convert"] and "--networks" not in arguments
    return [*arguments, *ONE_NETWORK] if converts and set(CONVERTED) & set(arguments) else arguments


def run(client: socket.socket) -> int:
    """Take over the client's streams, folder and environment, and run its command. Returns the exit status."""
    size = int.from_bytes(receive_streams(client), "big")
    request = json.loads(receive(client, size))
    threading.Thread(target=exit_with_client, args=(client,), daemon=True).start()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    from ane.cli import main

    arguments = with_one_network(request["arguments"])
    sys.argv = ["ane", *arguments]
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status or 0


def receive_streams(client: socket.socket) -> bytes:
    """The size of the request, which comes with the client's three streams."""
    room = socket.CMSG_SPACE(STREAMS * array.array("i").itemsize)
    size, ancillary, _, _ = client.recvmsg(4, room)
    streams = array.array("i")
    for _, _, data in ancillary:
        streams.frombytes(data)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return size


def receive(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += client.recv(size - len(data))
    return data


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    serve(sys.argv[1])
