"""Provide requests for speech as tests send them, and the server that answers them."""

import json
import socket
import urllib.error
import urllib.request
from typing import Any

import numpy as np

from tests.server.server_process import PATIENCE, ServerProcess

TEXT = "The wind blew over the hill. It rained in the valley."
LONG = " ".join([TEXT] * 12)
# 29 MB of sound that is made quickly, and is more than a connection's buffers hold
LONGEST = "A." + " [pause:60s]" * 10
TOKEN = "secret"


def guarded_server() -> ServerProcess:
    """A server of both embedded voices that asks for ``TOKEN`` and has narrow limits."""
    return ServerProcess(
        "--models",
        "heart,demo",
        "--preload",
        "heart",
        "--token",
        TOKEN,
        "--map-voice",
        "alloy=heart",
        "--wyoming-port",
        "0",
        "--body",
        "1",
        "--idle",
        "2",
        "--requests",
        "40",
        "--add-voices",
        "--sound-ahead",
        "2",
    )


def post(
    server: ServerProcess,
    path: str = "/v1/audio/speech",
    token: str = TOKEN,
    body: bytes | None = None,
    kind: str = "application/json",
    **fields: Any,
) -> tuple[int, bytes]:
    """Status and body of the answer."""
    body = (
        json.dumps({"model": "heart", "input": TEXT, "response_format": "wav", **fields}).encode()
        if body is None
        else body
    )
    request = urllib.request.Request(
        server.address + path, body, {"Authorization": f"Bearer {token}", "Content-Type": kind}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def error_of(answer: tuple[int, bytes]) -> dict[str, Any]:
    return json.loads(answer[1])["error"]


def events(server: ServerProcess, **fields: Any) -> list[dict[str, Any]]:
    """The events of the answer."""
    status, body = post(server, response_format="pcm", stream_format="sse", **fields)
    assert status == 200, body
    return [json.loads(line.removeprefix(b"data: ")) for line in body.splitlines() if line]


def sound_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data[44:], "<i2")


# Clients
def begin(server: ServerProcess, text: str = LONG, buffer: int = 4096, form: str = "wav") -> socket.socket:
    """A connection that requested speech and whose client does not read: it holds as much as ``buffer`` allows."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(PATIENCE)
    connection.connect(("127.0.0.1", server.port))
    body = json.dumps({"model": "heart", "input": text, "response_format": form})
    connection.sendall(
        f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return connection


def active(server: ServerProcess) -> float:
    return server.metric("ane_active_requests", TOKEN)
