"""What every request passes first: malformed headers are refused, and tokens are compared as bytes."""

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra server")

from ane.server.guard import Guard
from ane.server.settings import ServerSettings


def answer(settings: ServerSettings, *headers: tuple[str, bytes]) -> tuple[int, dict[str, Any]]:
    """Status and content for a request with these headers."""
    sent: list[dict[str, Any]] = []

    async def reach(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"{}"})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/v1/models",
             "headers": [(name.encode(), value) for name, value in headers]}
    asyncio.run(Guard(reach, settings)(scope, None, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize("header", [("host", b"["), ("host", b"[::1"), ("origin", b"http://[")])
def test_a_malformed_host_or_origin_is_refused(header):
    status, content = answer(ServerSettings(), header)
    assert status == 400
    assert content["error"]["type"] == "invalid_request_error"


def test_a_token_outside_ascii_is_compared_as_the_bytes_that_were_sent():
    settings = ServerSettings(token="schlüssel")
    assert answer(settings, ("authorization", "Bearer schlüssel".encode()))[0] == 200
    assert answer(settings, ("authorization", b"Bearer schlussel"))[0] == 401
    protocols = "realtime, openai-insecure-api-key.schlüssel"
    assert answer(settings, ("sec-websocket-protocol", protocols.encode()))[0] == 200
