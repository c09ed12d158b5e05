"""Test that nothing which one client sends holds up other clients, or the end of the server."""

import asyncio
import contextlib
import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra server")

from websockets.exceptions import ConnectionClosed
from wyoming.audio import AudioStop
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop

from tests.server.server_process import PATIENCE, ServerProcess, wait_until
from tests.server.speech_requests import END, send, web_socket

SPEECH = "/v1/audio/speech"
DRAIN = 1
HELD = "(a " * 13_000  # 39 KB of text with brackets that never close
UNSPOKEN = "... " * 9_000


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A process of its own, because threads of the preloaded server may have made arenas already."""
    with hostile_server() as running:
        yield running.wait_until_ready()


def hostile_server(preloaded: Path | None = None) -> ServerProcess:
    flags = f"--models heart --preload heart --wyoming-port 0 --calls 1 --drain {DRAIN}"
    return ServerProcess(*flags.split(), preloaded=preloaded)


@contextlib.contextmanager
def sent_in_pieces(server: ServerProcess, text: str) -> Iterator[None]:
    """Clients of both protocols that have sent a text in frames of four characters."""
    pieces = [text[start : start + 4] for start in range(0, len(text), 4)]
    events = [{"type": "synthesize-chunk", "data": {"text": piece}} for piece in pieces]
    with (
        web_socket(server) as socket_,
        contextlib.suppress(ConnectionClosed),
        server.wyoming({"type": "synthesize-start"}, *events),
    ):
        send(socket_, *pieces)
        yield


def seconds_of_a_short_request(server: ServerProcess) -> float:
    began = time.monotonic()
    assert len(server.speak(model="heart", input="It rained.", response_format="wav").data) > 10_000
    return time.monotonic() - began


@pytest.mark.parametrize("text", [HELD, UNSPOKEN], ids=["held", "unspoken"])
def test_a_text_that_is_held_back_delays_nobody_and_is_left_with_its_client(server: ServerProcess, text: str) -> None:
    """By both protocols at once, on a server that computes for one request at a time."""
    alone = min(seconds_of_a_short_request(server) for _ in range(2))
    with sent_in_pieces(server, text):
        assert seconds_of_a_short_request(server) < 10 * alone + 5
    wait_until(lambda: server.metric("ane_active_requests") == 0, 10)
    assert seconds_of_a_short_request(server) < 10 * alone + 5


def test_texts_that_are_held_back_do_not_delay_the_end_of_the_server(preloaded_server: Path) -> None:
    with (
        hostile_server(preloaded_server) as server,
        sent_in_pieces(server.wait_until_ready(), HELD),
        sent_in_pieces(server, UNSPOKEN),
    ):
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < DRAIN + PATIENCE / 2


def refusal(server: ServerProcess, pause: float) -> tuple[str, int]:
    """The type of the last message to a client that asks for a preset that the model lacks, and the code of the end."""
    with web_socket(server, preset="fast") as socket_:
        time.sleep(pause)
        with contextlib.suppress(ConnectionClosed):
            send(socket_, "It rained, and so on. ", END)
        last = ""
        try:
            while True:
                last = socket_.recv(timeout=10)
        except ConnectionClosed as closed:
            return json.loads(last)["type"], closed.rcvd.code if closed.rcvd else 0


def test_a_websocket_that_is_refused_is_told_and_closed(server: ServerProcess) -> None:
    """At whatever moment its error and its messages meet."""
    assert {refusal(server, pause) for pause in [0.0] * 4 + [0.002 * step for step in range(6)]} == {("error", 1008)}
    wait_until(lambda: server.metric("ane_active_requests") == 0, 10)


CALL_WITHOUT_END = """
import time
from ane.server import lifecycle
from ane.server.settings import Limits, ServerSettings

async def preload(self):
    async for _ in self.engine.submit(lambda job: (print("begun", flush=True), time.sleep(1000))).items():
        pass

lifecycle.Service.preload, lifecycle.GRACE = preload, 0.3
settings = ServerSettings(("heart",), port=0, calls={calls}, threads=2, limits=Limits(drain=0.3))
lifecycle.run_server(settings, lambda address: print(address, flush=True))
"""


@pytest.mark.parametrize("calls", [1, 2])
def test_the_process_ends_soon_after_its_drain_although_a_call_does_not(calls: int) -> None:
    """Neither on the engine's thread nor on one of its pool can a call be interrupted."""
    with subprocess.Popen(
        [sys.executable, "-c", CALL_WITHOUT_END.format(calls=calls)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert {process.stdout.readline()[:5] for _ in range(2)} == {"http:", "begun"}
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        try:
            _, log = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert time.monotonic() - began < PATIENCE / 2
    assert "a network call still runs" in log


def arenas_of_threads(server: ServerProcess) -> int:
    """Return how many arenas glibc made beside the main one.

    An arena has heaps of 64 MiB, which begin at multiples of that size. A heap begins with a pointer to its arena, a
    pointer to the heap before it, and its size. The first heap of an arena has the arena, and none before it.
    """
    largest, count = 64 << 20, 0
    process = Path(f"/proc/{server.process.pid}")
    with (process / "mem").open("rb", buffering=0) as memory:
        for line in (process / "maps").read_text().splitlines():
            addresses, access, *others = line.split()
            start, end = (int(number, 16) for number in addresses.split("-"))
            is_anonymous = access == "rw-p" and len(others) == 3  # a mapping of a file, and the main heap, have a name
            for heap in range(-(-start // largest) * largest, end, largest) if is_anonymous else ():
                memory.seek(heap)
                arena, before, size = struct.unpack("3N", memory.read(struct.calcsize("3N")))
                count += heap < arena <= heap + 64 and before == 0 < size <= largest
    return count


@pytest.mark.skipif(sys.platform != "linux", reason="it looks at glibc's heaps: run it on Linux")
def test_the_threads_of_many_requests_share_the_heap(server: ServerProcess) -> None:
    """An arena for each of them would keep what that thread freed."""
    with ThreadPoolExecutor(24) as clients:
        list(clients.map(lambda _: seconds_of_a_short_request(server), range(48)))
    assert arenas_of_threads(server) <= 1


def test_requests_that_run_when_the_drain_is_over_are_told_and_the_log_says_why(preloaded_server: Path) -> None:
    """Sound in parts and in events, sound that nobody takes, a request that waits for its turn, half a body, and a
    WebSocket. A WebSocket without a text is closed at once."""
    fields = {"model": "heart", "input": "It rained in the valley, and we went home. " * 80}
    bodies = [
        json.dumps({**fields, **more}).encode()
        for more in (
            {"response_format": "pcm"},
            {"stream_format": "sse"},
            {"response_format": "pcm"},
            {"stream": False},
            {},
        )
    ]
    with (
        hostile_server(preloaded_server) as server,
        web_socket(server.wait_until_ready()) as idle,
        web_socket(server, fields["input"]) as speaking,
    ):
        assert speaking.recv(timeout=PATIENCE)
        clients = [
            server.begin(SPEECH, body[: len(body) // (1 + (body is bodies[4]))], 4096, Content_Length=str(len(body)))
            for body in bodies
        ]
        begun = [client.recv(12) for client in clients[:3]]
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            idle.recv(timeout=1)
        assert closed.value.rcvd.code == 1012
        for sound in (clients[1], clients[0]):
            sound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        answers = [
            b"".join(iter(lambda client=client: client.recv(1 << 16), b""))
            for client in (clients[0], clients[1], clients[3], clients[4])
        ]
        with contextlib.suppress(ConnectionClosed):
            while True:
                answers.append(speaking.recv(timeout=PATIENCE, decode=False))
        assert server.process.wait(PATIENCE) == 0
        log = server.log()
    assert begun == [b"HTTP/1.1 200"] * 3
    assert not answers[0].endswith(b"0\r\n\r\n"), "the sound is not whole, and its client must notice"
    assert all(b'"stopping"' in answer for answer in [*answers[1:4], answers[-1]]), answers[1:]
    assert all(answer.startswith(b"HTTP/1.1 503") for answer in answers[2:4])
    assert {record["outcome"] for record in log if record["message"] == "request"} == {"stopped"}
    assert not any("traceback" in record for record in log)


@pytest.fixture(scope="module")
def narrow_server(preloaded_server: Path) -> Iterator[ServerProcess]:
    flags = "--models heart --preload heart --wyoming-port 0 --requests 8 --connections 40"
    with ServerProcess(*flags.split(), preloaded=preloaded_server) as running:
        yield running.wait_until_ready()


@pytest.mark.parametrize("protocol", ["wyoming", "websocket"])
def test_connections_without_a_text_take_no_place(narrow_server: ServerProcess, protocol: str) -> None:
    """More of them than the server takes requests, or may have open."""
    server = narrow_server
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            if protocol == "wyoming":
                events = {"type": "synthesize-start"}, {"type": "synthesize-chunk", "data": {"text": " "}}
                stack.enter_context(server.wyoming(*events))
            else:
                stack.enter_context(web_socket(server, " "))
        assert max(seconds_of_a_short_request(server) for _ in range(3)) < PATIENCE / 2
        assert server.metric("ane_active_requests") == 0


def test_clients_that_stop_writing_make_room_when_others_need_it(preloaded_server: Path) -> None:
    flags = "--models heart --preload heart --requests 4 --idle 2"
    with ServerProcess(*flags.split(), preloaded=preloaded_server) as server, contextlib.ExitStack() as stack:
        server.wait_until_ready()
        for _ in range(4):
            stack.enter_context(web_socket(server, "The "))
        wait_until(lambda: server.metric("ane_active_requests") == 4)
        wait_until(lambda: server.metric("ane_active_requests") < 4, 10)
        assert seconds_of_a_short_request(server) < PATIENCE / 2


def slowest_health(server: ServerProcess, connection: socket.socket, data: bytes) -> float:
    """Seconds of the slowest answer of /health while data is sent, until the server ends the connection."""
    ended = []

    def send() -> None:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
            while connection.recv(1 << 16):
                pass
        ended.append(True)

    sending = threading.Thread(target=send)
    sending.start()
    slowest = 0.0
    while sending.is_alive():
        began = time.monotonic()
        server.ask("/health")
        slowest = max(slowest, time.monotonic() - began)
    assert ended
    return slowest


EMPTY_CONTINUATION, PING = b"\x00\x80\0\0\0\0", b"\x89\x80\0\0\0\0"  # masked, without payload
OPENING = b"\x01\x80\0\0\0\0"


@pytest.mark.parametrize(
    "frames", [OPENING + EMPTY_CONTINUATION * 1_000_000, PING * 1_000_000], ids=["continuations", "pings"]
)
def test_frames_that_hold_no_text_hold_nobody_up_and_end_their_connection(server: ServerProcess, frames: bytes) -> None:
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13"
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(
            f"GET /v1/audio/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\n{key}\r\n\r\n".encode()
        )
        assert b" 101 " in connection.recv(1000)
        assert slowest_health(server, connection, frames) < 2


def test_a_body_in_a_million_parts_holds_nobody_up(server: ServerProcess) -> None:
    with server.begin(SPEECH, Transfer_Encoding="chunked") as connection:
        assert slowest_health(server, connection, b"1\r\n \r\n" * 900_000) < 2
    body = json.dumps({"model": "heart", "input": "It rained."}).encode().ljust(300_000)
    parts = b"".join(b"12c\r\n" + body[start : start + 300] + b"\r\n" for start in range(0, len(body), 300))
    with server.begin(SPEECH, parts + b"0\r\n\r\n", Connection="close", Transfer_Encoding="chunked") as connection:
        assert b" 200 " in connection.recv(1000)


def test_refused_requests_are_counted_and_logged(server: ServerProcess) -> None:
    """By every protocol, before and after a request has its place; without their texts."""
    before, logged = server.metric("ane_refused_requests_total"), len(server.log())
    server.speak(model="heart", input="secret words", voice="nobody")
    server.speak(model="heart", input="...")
    server.ask(SPEECH, {}, Origin="http://elsewhere.example")
    server.ask("/v1/audio/nothing", {})
    with web_socket(server, model="nothing") as socket_, contextlib.suppress(ConnectionClosed):
        list(socket_)
    event = {"type": "synthesize", "data": {"text": "...", "voice": {"name": "nothing/x"}}}
    with server.wyoming(event) as connection:
        while connection.recv(1000):
            pass
    assert server.metric("ane_refused_requests_total") - before == 6
    refused = [record for record in server.log()[logged:] if record["message"] == "request refused"]
    assert [(record["kind"], record["status"]) for record in refused] == [
        ("speech", 400),
        ("speech", 400),
        ("speech", 403),
        ("other", 404),
        ("stream", 404),
        ("wyoming", 404),
    ]
    assert "secret" not in server.log_file.read_text()


@pytest.mark.parametrize("text", ["🙂", "...", " "])
@pytest.mark.parametrize("streaming", [False, True])
async def test_home_assistant_is_told_of_a_text_that_cannot_be_spoken(
    server: ServerProcess, text: str, streaming: bool
) -> None:
    """Its integration reads events until the sound ends or the connection does, and nothing of an error."""
    from wyoming.client import AsyncTcpClient

    async with AsyncTcpClient("127.0.0.1", server.wyoming_port) as client:
        if streaming:
            await client.write_event(SynthesizeStart().event())
            await client.write_event(SynthesizeChunk(text).event())
            await client.write_event(SynthesizeStop().event())
        else:
            await client.write_event(Synthesize(text).event())
        kinds = []
        async with asyncio.timeout(5):
            while (event := await client.read_event()) is not None:
                kinds.append(event.type)
                if AudioStop.is_type(event.type):
                    break
    assert kinds == ["error"]
