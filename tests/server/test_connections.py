"""Test the connections of WebSockets and of the Wyoming protocol."""

import asyncio
import contextlib
import functools
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra server")
pytest.importorskip("wyoming", reason="needs the extra server")

import uvicorn
from wyoming.audio import AudioStop
from wyoming.event import read_event
from wyoming.tts import SynthesizeVoice

from ane.server.connections import RESERVE, Connections, affordable_connections, limited_protocol, limited_websocket
from ane.server.lifecycle import QuietServer, open_port, run_server, serve
from ane.server.settings import ServerSettings
from ane.server.speech import Catalogue
from ane.server.speech_service import Service
from ane.server.wyoming_protocol import LimitedReader, WyomingClient, WyomingServer
from ane.system.errors import UserError
from tests.server.server_process import PATIENCE, ServerProcess, wyoming_lines
from tests.server.speech_requests import begin

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@contextlib.asynccontextmanager
async def serving(app: Any, connections: Connections, seconds: float = 1.0) -> AsyncIterator[tuple[str, int]]:
    """The address of an ASGI application that is served with limits."""
    opened = open_port("127.0.0.1", 0)
    server = QuietServer(
        uvicorn.Config(
            app,
            http=limited_protocol(seconds, connections),
            lifespan="off",
            ws=limited_websocket(connections),
            log_config=None,
        )
    )
    task = asyncio.ensure_future(server.serve([opened]))
    try:
        yield opened.getsockname()
    finally:
        server.should_exit = server.force_exit = True
        await task


async def hello(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def test_a_newcomer_takes_the_place_of_the_connection_that_was_silent_longest_and_one_that_ends_leaves_its_own():
    connections = Connections(3)
    async with serving(hello, connections, 60.0) as address, asyncio.timeout(PATIENCE):
        silent = []
        for _ in range(8):
            silent.append(await asyncio.open_connection(*address))
            await asyncio.sleep(0.05)
        reader, writer = silent[-1]
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for reader, _ in silent[:5]:  # the server has closed these connections, so reading fails or ends
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        for _, writer in silent:
            writer.close()
        while connections._open:
            await asyncio.sleep(0.01)


def test_connections_that_are_answered_are_kept_and_make_a_crowd():
    closed: list[str] = []
    connections = Connections(8)
    for name in "abcdefghi":
        connections.add(name, functools.partial(closed.append, name))
        connections.answers(name)
    assert (closed, connections.crowded) == (["i"], True)
    connections.waits("c", lambda: closed.append("c"))
    connections.add("j", lambda: None)
    assert (closed, connections.crowded) == (["i", "c"], False)


def test_an_address_of_ipv6_is_listened_on():
    try:
        with closing(socket.socket(socket.AF_INET6)) as tried:
            tried.bind(("::1", 0))
    except OSError:
        pytest.skip("needs IPv6 on the loopback interface")
    with closing(open_port("::1", 0)) as opened:
        assert opened.getsockname()[0] == "::1"


async def test_a_websocket_that_is_refused_is_no_error_in_the_log(caplog):
    async def refuse(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "websocket.http.response.start", "status": 401})
        await send({"type": "websocket.http.response.body", "body": b"the token ", "more_body": True})
        await send({"type": "websocket.http.response.body", "body": b"is wrong"})

    async with serving(refuse, Connections(3)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(UPGRADE)
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.endswith(b"the token is wrong")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_pings_of_a_client_that_reads_nothing_are_not_answered_and_end_its_connection():
    """20 MB of pings; without a limit as much waits for the client."""
    transports: list[Any] = []

    async def accept(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()

    connections = Connections(3)
    add = connections.add
    connections.add = lambda key, close: (transports.append(key), add(key, close))
    async with serving(accept, connections, 60.0) as address:
        reader, writer = await asyncio.open_connection(*address, limit=1 << 10)
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        ping = b"\x89\xfd" + bytes(4) + bytes(125)

        async def send_pings() -> None:
            for _ in range(160):
                writer.write(ping * 1000)
                await asyncio.wait_for(writer.drain(), PATIENCE)
                assert transports[0].get_write_buffer_size() < 1 << 20

        with pytest.raises(ConnectionError):
            await send_pings()
        writer.close()


@pytest.mark.parametrize("more", [b"", b"x"])
async def test_a_client_that_does_not_read_is_closed_even_if_it_sends_more(more):
    blocked, left = asyncio.Event(), asyncio.Event()

    async def send_for_ever(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not left.is_set():
            sending = asyncio.ensure_future(
                send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            )
            if not (await asyncio.wait([sending], timeout=0.2))[0]:
                blocked.set()
                assert (await receive())["type"] == "http.disconnect"
                left.set()
            await sending

    async with serving(send_for_ever, Connections(3), 0.3) as address:
        with socket.create_connection(address) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.wait_for(blocked.wait(), PATIENCE)
            connection.sendall(more)
            await asyncio.wait_for(left.wait(), 10)


async def test_a_client_that_pauses_its_reading_gets_everything():
    async def send_much(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for left in range(15, -1, -1):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": left > 0})

    async with serving(send_much, Connections(3), 60.0) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await reader.readline()
        await asyncio.sleep(0.2)
        assert len(await asyncio.wait_for(reader.read(), PATIENCE)) > 16 << 20
        writer.close()


def test_a_port_that_is_taken_starts_no_thread():
    threads = threading.active_count()
    with open_port("127.0.0.1", 0) as taken, pytest.raises(UserError, match="cannot listen"):
        asyncio.run(serve(ServerSettings(port=taken.getsockname()[1]), lambda address: None))
    assert threading.active_count() == threads


def test_a_step_waits_half_a_millisecond_for_a_thread_that_reads_text_until_a_server_ends_while_it_loads(monkeypatch):
    async def load(service: Service) -> None:
        await asyncio.sleep(0.2)
        intervals.append(sys.getswitchinterval())
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(PATIENCE)

    before, intervals, began = sys.getswitchinterval(), [], time.monotonic()
    monkeypatch.setattr(Service, "preload", load)
    run_server(ServerSettings(("heart",), port=0), lambda address: None)
    assert intervals == [pytest.approx(0.0005)]
    assert sys.getswitchinterval() == before
    assert time.monotonic() - began < PATIENCE / 2, "SIGTERM ends it although its models are not loaded"


def test_the_limit_of_descriptors_is_raised_for_the_connections():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        assert affordable_connections(500) == 500
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 500 + RESERVE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# The Wyoming protocol, and the server as its own process


@pytest.fixture(scope="module")
def small_server(preloaded_server):
    flags = "--models heart --wyoming-port 0 --drain 90 --log-texts"
    with ServerProcess(*flags.split(), descriptors=256, preloaded=preloaded_server) as server:
        yield server.wait_until_ready()


def receive_until(connection: socket.socket, sign: bytes) -> None:
    received = b""
    while sign not in received:
        data = connection.recv(1 << 16)
        assert data, "the server closed the connection"
        received += data


START, PING = {"type": "synthesize-start"}, {"type": "ping"}


def chunk(text: object) -> dict[str, Any]:
    return {"type": "synthesize-chunk", "data": {"text": text}}


@pytest.mark.parametrize("events", [[{"type": "synthesize", "data": {"text": ["The wind"]}}], [START, chunk(4e148)]])
def test_a_text_that_is_no_string_is_refused_and_not_spoken(small_server, events):
    with small_server.wyoming(*events) as connection:
        receive_until(connection, b"text must be a string")


def test_the_sound_has_the_form_that_its_events_state(small_server):
    said = {"type": "synthesize", "data": {"text": "It rained."}}
    with small_server.wyoming(said) as connection, connection.makefile("rb") as stream:
        events = list(iter(lambda: read_event(stream) or pytest.fail("no answer"), AudioStop().event()))
    start, *chunks = events
    assert (start.data["width"], start.data["channels"]) == (2, 1)
    assert all(
        {key: chunk.data[key] for key in ("rate", "width", "channels")}
        == {key: start.data[key] for key in ("rate", "width", "channels")}
        for chunk in chunks
    )
    assert 0.3 < sum(len(chunk.payload) for chunk in chunks) / 2 / start.data["rate"] < 3


def test_silent_clients_leave_descriptors_for_health_and_the_log(small_server):
    """More of them than the server may have descriptors, on both ports."""
    ports = (small_server.wyoming_port, small_server.port)
    silent = [socket.create_connection(("127.0.0.1", port), PATIENCE) for port in ports for _ in range(200)]
    for _ in range(5):
        began = time.monotonic()
        assert small_server.ask("/health").status == 200
        assert time.monotonic() - began < 5
    assert small_server.status()["files"] < 256
    with small_server.wyoming(PING) as connection:
        receive_until(connection, b"pong")
    for connection in silent:
        connection.close()
    assert small_server.log_file.stat().st_size < 10_000


@pytest.mark.parametrize(
    ("name", "meant"),
    [("demo/heart", ("demo", "heart")), ("default", ("heart", "default")), (None, ("heart", "default"))],
)
def test_a_voice_of_wyoming_is_named_with_its_model_or_is_of_the_first(name, meant):
    settings = ServerSettings(("heart", "demo"))
    client = WyomingClient(SimpleNamespace(settings=settings, catalogue=Catalogue(settings)), None, None)
    request = client.request(SynthesizeVoice(name=name), "It rained.")
    assert (request.model, request.voice) == meant


async def test_neither_an_event_nor_the_end_of_a_header_is_awaited_for_ever():
    stream, ended, began = asyncio.StreamReader(), asyncio.StreamReader(), time.monotonic()
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
    assert time.monotonic() - began < PATIENCE / 2


async def test_wyoming_clients_wait_in_the_systems_queue_while_others_are_served():
    """Without room in the queue, Linux drops a connection's first packet, and the client tries again after 1 s."""
    server = WyomingServer(SimpleNamespace(settings=ServerSettings(("heart",)), is_full=bool), Connections(500))
    await server.start("127.0.0.1", 0)
    # the server accepts none of them
    clients = [socket.create_connection(("127.0.0.1", server.port), 0.5) for _ in range(100)]
    for client in clients:
        client.close()
    server.stop()


FIRST, SECOND = "The wind blew over the hill. And then ", "it rained."


def test_on_sigterm_idle_clients_are_closed_and_new_ones_refused_while_others_are_answered(small_server):
    """The last test: the server is gone after it."""
    address, statuses = ("127.0.0.1", small_server.wyoming_port), []
    with (
        small_server.wyoming(PING) as idle,
        small_server.wyoming(PING) as speaking,
        begin(small_server, buffer=1 << 20) as downloading,
    ):
        for connection in (idle, speaking):
            receive_until(connection, b"pong")
        speaking.sendall(wyoming_lines(START, chunk(FIRST)))
        receive_until(speaking, b"audio-start")
        receive_until(downloading, b"HTTP/1.1 200")
        stopping = threading.Thread(target=lambda: statuses.append(small_server.stop()))
        stopping.start()
        while idle.recv(1000):  # reads until the server closes the connection
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 5)
        speaking.sendall(wyoming_lines(chunk(SECOND), {"type": "synthesize-stop"}))
        receive_until(speaking, b"synthesize-stopped")
        assert b"".join(iter(lambda: downloading.recv(1 << 16), b"")).endswith(b"0\r\n\r\n")
        stopping.join()
    assert statuses == [0], "it ended before --drain"
    spoken = {record["text"]: record for record in small_server.log() if record["message"] == "request"}
    assert spoken[FIRST + SECOND]["characters"] == len(FIRST + SECOND)
    assert not any("Traceback" in json.dumps(record) for record in small_server.log())
