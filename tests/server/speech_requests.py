"""Provide requests for speech as tests send them, and the server that answers them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.server.server_process import ServerProcess

TEXT = "The wind blew over the hill. It rained in the valley."
LONG = " ".join([TEXT] * 12)
# 29 MB of sound that is made quickly, and is more than a connection's buffers hold
LONGEST = "A." + " [pause:60s]" * 10
TOKEN = "secret"
AUTHORIZED = f"Bearer {TOKEN}"
# a server of both embedded voices that asks for ``TOKEN`` and has narrow limits
GUARDED = (
    f"--models heart,demo --preload heart --token {TOKEN} --map-voice alloy=heart --wyoming-port 0 --body 1 --idle 2 "
    "--requests 40 --add-voices --sound-ahead 2"
)


def post(server: ServerProcess, body: bytes | None = None, kind: str = "application/json", **fields: Any) -> Any:
    """Status and body of the answer to a request for speech with the token."""
    content = {"model": "heart", "input": TEXT, "response_format": "wav", **fields} if body is None else body
    return server.ask("/v1/audio/speech", content, Authorization=AUTHORIZED, Content_Type=kind)[:2]


def error_of(answer: tuple[int, bytes]) -> dict[str, Any]:
    return json.loads(answer[1])["error"]


def events(server: ServerProcess, **fields: Any) -> list[dict[str, Any]]:
    """The events of the answer."""
    status, body = post(server, response_format="pcm", stream_format="sse", **fields)
    assert status == 200, body
    return [json.loads(line.removeprefix(b"data: ")) for line in body.splitlines() if line]


def sound_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data[44:], "<i2")


@contextmanager
def service_of(*models: str, **settings: Any) -> Iterator[Any]:
    """The service of a server, without its connections."""
    from ane.server.settings import ServerSettings
    from ane.server.speech_service import Service

    service = Service(ServerSettings(models, **settings))
    try:
        yield service
    finally:
        service.engine.stop()


# Clients
def begin(server: ServerProcess, text: str = LONG, buffer: int = 4096, form: str = "wav") -> Any:
    """A connection that requested speech and whose client does not read: it holds as much as ``buffer`` allows."""
    body = json.dumps({"model": "heart", "input": text, "response_format": form}).encode()
    return server.begin("/v1/audio/speech", body, buffer, Authorization=AUTHORIZED, Content_Length=str(len(body)))


@contextmanager
def web_socket(server: ServerProcess, *texts: str, token: str = TOKEN, **start: Any) -> Iterator[Any]:
    """A WebSocket for text in pieces that has sent its start and these texts."""
    client = pytest.importorskip("websockets.sync.client")
    address, headers = f"ws://127.0.0.1:{server.port}/v1/audio/stream", {"Authorization": f"Bearer {token}"}
    with client.connect(address, additional_headers=headers, close_timeout=0.1, max_size=None) as opened:
        send(opened, {"type": "start", "model": "heart", **start}, *texts)
        yield opened


def send(opened: Any, *messages: str | dict[str, Any]) -> None:
    """Send texts and other messages."""
    for message in messages:
        opened.send(json.dumps({"type": "text", "text": message} if isinstance(message, str) else message))


END = {"type": "end"}


def active(server: ServerProcess) -> float:
    return server.metric("ane_active_requests", TOKEN)
