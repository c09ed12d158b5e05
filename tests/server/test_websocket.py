"""The WebSocket in this process: its sound is whole, and it ends with its client."""

import asyncio
import io
import re
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi", reason="needs the extra server")
pytest.importorskip("starlette.testclient", reason="needs httpx")

from fastapi import FastAPI, WebSocketDisconnect
from starlette.testclient import TestClient

from ane.server.settings import ServerSettings
from ane.server.speech import ServedRequest
from ane.server.speech_service import Service, Utterance, while_watching
from ane.server.websocket import send_within, websocket_routes
from tests.server.server_process import PATIENCE
from tests.server.speech_requests import TEXT


def heard(client: TestClient, form: str) -> bytes:
    """The sound of ``TEXT``."""
    with client.websocket_connect("/v1/audio/stream") as socket:
        for message in ({"type": "start", "model": "demo-fast", "response_format": form},
                        {"type": "text", "text": TEXT}, {"type": "end"}):
            socket.send_json(message)
        received = list(iter(lambda: socket.receive().get("bytes"), None))
    return b"".join(received)


def test_the_sound_of_a_format_with_frames_has_its_end():
    av = pytest.importorskip("av", reason="needs the extra server")
    service, app = Service(ServerSettings(("demo-fast",))), FastAPI()
    app.include_router(websocket_routes(service))
    try:
        samples, frames = (heard(TestClient(app), form) for form in ("pcm", "flac"))
    finally:
        service.engine.stop()
    with av.open(io.BytesIO(frames)) as file:
        assert len(samples) // 2 == sum(frame.samples for frame in file.decode(audio=0)) > 24000


@pytest.mark.parametrize("fault", [None, RuntimeError("the client has left")])
async def test_a_client_that_takes_nothing_has_left(fault):
    async def send_bytes(data: bytes) -> None:
        if fault:
            raise fault
        await asyncio.sleep(PATIENCE)

    limits = SimpleNamespace(settings=SimpleNamespace(limits=SimpleNamespace(idle=0.05)))
    with pytest.raises(WebSocketDisconnect):
        await send_within(SimpleNamespace(send_bytes=send_bytes), b"sound", limits)


async def test_work_whose_client_leaves_has_ended_when_the_error_is_raised():
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    async def leave() -> None:
        raise WebSocketDisconnect(1001)

    with pytest.raises(WebSocketDisconnect):
        await while_watching(work(), leave())
    assert ended


def test_the_header_states_the_time_before_the_text_was_reached():
    job = SimpleNamespace(text_at=None)
    utterance = Utterance(None, ServedRequest("demo-fast", "default"), "speech", job)

    def before() -> float:
        return float(re.match(r'wait;desc="before the text";dur=([\d.]+)', utterance.headers["Server-Timing"])[1])

    assert before() == 0
    job.text_at = time.monotonic() + 2
    assert before() >= 2000
    utterance.notes = ["'a\r\nÄ' is silent", "x" * 9000]
    assert utterance.headers["X-Notes"] == "'a???' is silent; " + "x" * 1982
