"""Wyoming's connections: none that is idle holds the server up."""

import asyncio
import json
import socket
import threading
import time
import urllib.request

import pytest

pytest.importorskip("wyoming", reason="needs the extra server")

from wyoming.audio import AudioStop
from wyoming.event import read_event

from ane.server.wyoming_protocol import LimitedReader
from tests.server.server_process import PATIENCE, ServerProcess

FIRST, SECOND = "The wind blew over the hill. And then ", "it rained."


def chunk(text: str) -> bytes:
    return json.dumps({"type": "synthesize-chunk", "data": {"text": text}}).encode() + b"\n"


def receive_until(connection: socket.socket, sign: bytes) -> None:
    received = b""
    while sign not in received:
        data = connection.recv(1 << 16)
        assert data, "the server closed the connection"
        received += data


def test_on_sigterm_idle_clients_are_closed_and_new_ones_refused_while_others_are_answered():
    with ServerProcess("--models", "demo-fast", "--wyoming-port", "0", "--drain", "50",
                       "--log-texts") as server:
        server.wait_until_ready()
        address = ("127.0.0.1", server.wyoming_port)
        with (socket.create_connection(address, PATIENCE) as idle,
              socket.create_connection(address, PATIENCE) as speaking):
            for connection in (idle, speaking):
                connection.sendall(b'{"type": "ping"}\n')
                receive_until(connection, b"pong")
            speaking.sendall(b'{"type": "synthesize-start"}\n' + chunk(FIRST))
            receive_until(speaking, b"audio-start")
            stopping = threading.Thread(target=server.stop)
            began = time.monotonic()
            stopping.start()
            while idle.recv(1000):          # until the server closes it
                pass
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, 5)
            speaking.sendall(chunk(SECOND) + b'{"type": "synthesize-stop"}\n')
            receive_until(speaking, b"synthesize-stopped")
            stopping.join()
        spoken = next(record for record in server.log() if record["message"] == "request")
        assert spoken["text"] == FIRST + SECOND
        assert spoken["characters"] == len(FIRST + SECOND)
        assert time.monotonic() - began < 40


@pytest.mark.parametrize("event", [
    b'{"type": "synthesize", "data": {"text": ["The wind"]}}\n',
    b'{"type": "synthesize-start"}\n{"type": "synthesize-chunk", "data": {"text": 4e148}}\n'])
def test_a_text_that_is_no_string_is_refused_and_not_spoken(small_server, event):
    with socket.create_connection(("127.0.0.1", small_server.wyoming_port), PATIENCE) as connection:
        connection.sendall(event)
        receive_until(connection, b"text must be a string")


def test_the_sound_has_the_form_that_its_events_state(small_server):
    with socket.create_connection(("127.0.0.1", small_server.wyoming_port), PATIENCE) as connection:
        connection.sendall(b'{"type": "synthesize", "data": {"text": "It rained."}}\n')
        with connection.makefile("rb") as stream:
            events = list(iter(lambda: read_event(stream) or pytest.fail("no answer"), AudioStop().event()))
    start, *chunks = events
    assert (start.data["width"], start.data["channels"]) == (2, 1)
    assert all({key: chunk.data[key] for key in ("rate", "width", "channels")} == {
        key: start.data[key] for key in ("rate", "width", "channels")} for chunk in chunks)
    assert 0.3 < sum(len(chunk.payload) for chunk in chunks) / 2 / start.data["rate"] < 3


@pytest.fixture(scope="module")
def small_server():
    with ServerProcess("--models", "demo-fast", "--wyoming-port", "0", descriptors=256) as server:
        server.wait_until_ready()
        yield server


def test_silent_clients_leave_descriptors_for_health_and_the_log(small_server):
    """More of them than the server may have descriptors, on both ports."""
    ports = (small_server.wyoming_port, small_server.port)
    silent = [socket.create_connection(("127.0.0.1", port), PATIENCE) for port in ports for _ in range(200)]
    for _ in range(5):
        with urllib.request.urlopen(f"{small_server.address}/health", timeout=5) as response:
            assert response.status == 200
    assert small_server.status()["files"] < 256
    with socket.create_connection(("127.0.0.1", small_server.wyoming_port), PATIENCE) as connection:
        connection.sendall(b'{"type": "ping"}\n')
        receive_until(connection, b"pong")
    for connection in silent:
        connection.close()
    assert small_server.log_file.stat().st_size < 10_000


def test_neither_an_event_nor_the_end_of_a_header_is_awaited_for_ever():
    async def read() -> None:
        stream, ended = asyncio.StreamReader(), asyncio.StreamReader()
        ended.feed_eof()
        reader = LimitedReader(stream, 1000, 0.1)
        assert await LimitedReader(ended, 1000, 0.1).readline() == b""
        stream.feed_data(b'{"type": "ping"}\n{"ty')
        assert await reader.readline() == b'{"type": "ping"}\n'
        assert await reader.readexactly(4) == b'{"ty'
        for count in (1001, "4"):
            with pytest.raises(ValueError, match="an event must have at most 1000 bytes"):
                await reader.readexactly(count)
        for silent in (reader, LimitedReader(asyncio.StreamReader(), 1000, 0.1)):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(silent.readline(), PATIENCE)

    began = time.monotonic()
    asyncio.run(read())
    assert time.monotonic() - began < PATIENCE / 2
