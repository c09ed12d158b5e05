"""Test that work for a client ends when the client leaves, and test the headers of an answer."""

import asyncio
import re
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi", reason="needs the extra server")

from fastapi import WebSocketDisconnect

from ane.server.speech import ServedRequest
from ane.server.speech_service import SpeechResponse
from ane.server.waiting import while_watching
from ane.server.websocket import send_within
from tests.server.server_process import PATIENCE


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
    response = SpeechResponse(None, ServedRequest("", "default", model="heart"), "speech", job)

    def before() -> float:
        return float(re.match(r'wait;desc="before the text";dur=([\d.]+)', response.headers["Server-Timing"])[1])

    assert before() == 0
    job.text_at = time.monotonic() + 2
    assert before() >= 2000
    response.notes = ["'a\r\nÄ' is silent", "x" * 9000]
    assert response.headers["X-Notes"] == "'a???' is silent; " + "x" * 1982
