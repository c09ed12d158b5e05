"""Connections whose clients do not read are closed in time."""

import asyncio
import contextlib
import functools
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra server")

import uvicorn

from ane.server.connections import Connections, limited_protocol, limited_websocket
from ane.server.lifecycle import QuietServer, open_port, serve
from ane.server.settings import ServerSettings
from ane.system.errors import UserError
from tests.server.server_process import PATIENCE


@contextlib.asynccontextmanager
async def serving(app: Any, connections: Connections, seconds: float = 1.0) -> AsyncIterator[tuple[str, int]]:
    """The address of an ASGI application that is served with limits."""
    opened = open_port("127.0.0.1", 0)
    server = QuietServer(uvicorn.Config(app, http=limited_protocol(seconds, connections), lifespan="off",
                                        ws=limited_websocket(connections), log_config=None))
    task = asyncio.ensure_future(server.serve([opened]))
    try:
        yield opened.getsockname()
    finally:
        server.should_exit = server.force_exit = True
        await task


async def hello(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def test_a_newcomer_takes_the_place_of_the_connection_that_was_silent_longest():
    async def converse() -> None:
        connections = Connections(3)
        async with serving(hello, connections, 60.0) as address:
            silent = []
            for _ in range(8):
                silent.append(await asyncio.open_connection(*address))
                await asyncio.sleep(0.05)
            reader, writer = silent[-1]
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 200")
            for reader, _ in silent[:5]:        # closed: reset, or at its end
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            for _, writer in silent:
                writer.close()

    asyncio.run(converse())


def test_a_connection_that_ended_leaves_its_place():
    async def converse() -> None:
        connections = Connections(3)
        async with serving(hello, connections, 60.0) as address:
            for _ in range(3):
                _, writer = await asyncio.open_connection(*address)
                writer.close()
                await writer.wait_closed()
            while connections._open:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(converse(), PATIENCE))


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


def test_pings_of_a_client_that_reads_nothing_are_not_answered():
    """20 MB of pings; without a limit as much waits for the client."""
    transports: list[Any] = []

    async def converse() -> None:
        async def accept(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            await receive()

        connections = Connections(3)
        add = connections.add
        connections.add = lambda key, close: (transports.append(key), add(key, close))
        async with serving(accept, connections, 60.0) as address:
            reader, writer = await asyncio.open_connection(*address, limit=1 << 10)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                         b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            ping = b"\x89\xfd" + bytes(4) + bytes(125)
            for _ in range(160):
                writer.write(ping * 1000)
                await asyncio.wait_for(writer.drain(), PATIENCE)
            assert transports[0].get_write_buffer_size() < 1 << 20
            writer.close()

    asyncio.run(converse())


@pytest.mark.parametrize("more", [b"", b"x"])
def test_a_client_that_does_not_read_is_closed_even_if_it_sends_more(more):
    async def converse() -> None:
        blocked, left = asyncio.Event(), asyncio.Event()

        async def send_for_ever(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while not left.is_set():
                sending = asyncio.ensure_future(send({"type": "http.response.body", "body": bytes(1 << 20),
                                                      "more_body": True}))
                if not (await asyncio.wait([sending], timeout=0.2))[0]:
                    blocked.set()
                    assert (await receive())["type"] == "http.disconnect"
                    left.set()
                await sending

        async with serving(send_for_ever, Connections(3)) as address:
            with socket.create_connection(address) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await asyncio.wait_for(blocked.wait(), PATIENCE)
                connection.sendall(more)
                await asyncio.wait_for(left.wait(), 10)

    asyncio.run(converse())


def test_a_client_that_pauses_its_reading_gets_everything():
    async def converse() -> None:
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

    asyncio.run(converse())


def test_a_port_that_is_taken_starts_no_thread():
    threads = threading.active_count()
    with open_port("127.0.0.1", 0) as taken, pytest.raises(UserError, match="cannot listen"):
        asyncio.run(serve(ServerSettings(port=taken.getsockname()[1]), lambda address: None))
    assert threading.active_count() == threads
