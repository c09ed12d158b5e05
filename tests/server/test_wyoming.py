"""Wyoming's connections: none that is idle holds the server up."""

import asyncio
import json
import socket
import threading
import time

import pytest

pytest.importorskip("wyoming", reason="needs the extra server")

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


@pytest.fixture(scope="module")
def small_server():
    with ServerProcess("--models", "demo-fast", "--wyoming-port", "0") as server:
        server.wait_until_ready()
        yield server


def test_a_header_that_was_begun_and_does_not_end_is_not_awaited():
    async def read() -> None:
        stream, ended = asyncio.StreamReader(), asyncio.StreamReader()
        ended.feed_eof()
        reader = LimitedReader(stream, 1000, 0.1)
        assert await LimitedReader(ended, 1000, 0.1).readline() == b""
        stream.feed_data(b'{"type": "ping"}\n{"ty')
        assert await reader.readline() == b'{"type": "ping"}\n'
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readline(), PATIENCE)

    began = time.monotonic()
    asyncio.run(read())
    assert time.monotonic() - began < PATIENCE / 2
