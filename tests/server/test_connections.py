"""Connections whose clients do not read are closed in time."""

import asyncio
import socket
import threading
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra server")

import uvicorn

from ane.server.connections import limited_protocol
from ane.server.lifecycle import QuietServer, open_port, serve
from ane.server.settings import ServerSettings
from ane.system.errors import UserError
from tests.server.server_process import PATIENCE


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

        opened = open_port("127.0.0.1", 0)
        server = QuietServer(uvicorn.Config(send_for_ever, http=limited_protocol(1.0), lifespan="off", log_config=None))
        serving = asyncio.ensure_future(server.serve([opened]))
        with socket.create_connection(opened.getsockname()) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.wait_for(blocked.wait(), PATIENCE)
            connection.sendall(more)
            try:
                await asyncio.wait_for(left.wait(), 10)
            finally:
                connection.close()
                server.should_exit = server.force_exit = True
                await serving

    asyncio.run(converse())


def test_a_port_that_is_taken_starts_no_thread():
    threads = threading.active_count()
    with open_port("127.0.0.1", 0) as taken, pytest.raises(UserError, match="cannot listen"):
        asyncio.run(serve(ServerSettings(port=taken.getsockname()[1]), lambda address: None))
    assert threading.active_count() == threads
