"""What one client sends, however strange, holds up neither the others nor the end of the server."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="needs the extra server")

import urllib.error
import urllib.request

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.server.server_process import PATIENCE, ServerProcess, wait_until

DRAIN = 5
HELD = "(a " * 13_000       # 39 KB in which something stays open for ever
UNSPOKEN = "... " * 9_000


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--models", "demo-fast", "--preload", "demo-fast", "--wyoming-port", "0", "--drain", str(DRAIN),
                       "--calls", "1") as running:
        yield running.wait_until_ready()


@contextlib.contextmanager
def open_socket(server: ServerProcess) -> Iterator:
    with connect(f"ws://127.0.0.1:{server.port}/v1/audio/stream", close_timeout=1, max_size=None) as socket_:
        yield socket_


@contextlib.contextmanager
def by_websocket(server: ServerProcess, text: str) -> Iterator[None]:
    with open_socket(server) as socket_, contextlib.suppress(ConnectionClosed):
        socket_.send(json.dumps({"type": "start", "model": "demo-fast"}))
        for start in range(0, len(text), 4):
            socket_.send(json.dumps({"type": "text", "text": text[start:start + 4]}))
        yield


@contextlib.contextmanager
def by_wyoming(server: ServerProcess, text: str) -> Iterator[None]:
    with socket.create_connection(("127.0.0.1", server.wyoming_port), PATIENCE) as connection:
        connection.sendall(b'{"type": "synthesize-start"}\n' + b"".join(
            json.dumps({"type": "synthesize-chunk", "data": {"text": text[start:start + 4]}}).encode() + b"\n"
            for start in range(0, len(text), 4)))
        yield


def seconds_of_a_short_request(server: ServerProcess) -> float:
    body, began = json.dumps({"model": "demo-fast", "input": "It rained.", "response_format": "wav"}), time.monotonic()
    request = urllib.request.Request(f"{server.address}/v1/audio/speech", body.encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        assert len(response.read()) > 10_000
    return time.monotonic() - began


@pytest.mark.parametrize("text", [HELD, UNSPOKEN], ids=["held", "unspoken"])
def test_a_text_that_is_held_back_delays_nobody_and_is_left_with_its_client(server: ServerProcess, text: str) -> None:
    """In frames of four characters, by both protocols at once, on a server that computes for one request at a time."""
    alone = min(seconds_of_a_short_request(server) for _ in range(2))
    with by_websocket(server, text), by_wyoming(server, text):
        assert seconds_of_a_short_request(server) < 10 * alone + 5
    wait_until(lambda: server.metric("ane_active_requests") == 0, 10)
    assert seconds_of_a_short_request(server) < 10 * alone + 5
    with by_websocket(server, text), by_wyoming(server, text):
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < DRAIN + 5


def refusal(server: ServerProcess, pause: float) -> tuple[str, int]:
    """The type of the last message to a client that asks for a preset that the model lacks, and the code of the end."""
    with open_socket(server) as socket_:
        socket_.send(json.dumps({"type": "start", "model": "demo-fast", "preset": "fast"}))
        time.sleep(pause)
        with contextlib.suppress(ConnectionClosed):
            socket_.send(json.dumps({"type": "text", "text": "It rained, and so on. "}))
            socket_.send(json.dumps({"type": "end"}))
        last = ""
        try:
            while True:
                last = socket_.recv(timeout=10)
        except ConnectionClosed as closed:
            return json.loads(last)["type"], closed.rcvd.code if closed.rcvd else 0


def test_a_websocket_that_is_refused_is_told_and_closed(server: ServerProcess) -> None:
    """At whatever moment its error and its messages meet."""
    assert {refusal(server, pause) for pause in [0.0] * 8 + [0.001 * step for step in range(12)]} == {("error", 1008)}
    wait_until(lambda: server.metric("ane_active_requests") == 0, 10)


CALL_WITHOUT_END = """
import time
from ane.server import lifecycle
from ane.server.settings import Limits, ServerSettings

async def preload(self):
    async for _ in self.engine.submit(lambda job: time.sleep(1000)).items():
        pass

lifecycle.Service.preload = preload
settings = ServerSettings(("demo-fast",), port=0, calls={calls}, threads=2, limits=Limits(drain=1))
lifecycle.run_server(settings, lambda address: print(address, flush=True))
"""


@pytest.mark.parametrize("calls", [1, 2])
def test_the_process_ends_soon_after_its_drain_although_a_call_does_not(calls: int) -> None:
    """Neither on the engine's thread nor on one of its pool can a call be interrupted."""
    with subprocess.Popen([sys.executable, "-c", CALL_WITHOUT_END.format(calls=calls)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("http://")
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        try:
            _, log = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert time.monotonic() - began < 10
    assert "a call still runs" in log
