"""Programs that people use speak through the server unmodified; nothing of a client harms the server."""

import base64
import io
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.server.server_process import PATIENCE, ServerProcess, wait_until

av = pytest.importorskip("av", reason="needs the extra server")
pytest.importorskip("fastapi", reason="needs the extra server")

TEXT = "The wind blew over the hill. It rained in the valley."
LONG = " ".join([TEXT] * 12)
LONGEST = " ".join([TEXT] * 75)         # 12 MB of sound: more than a connection's buffers hold
TOKEN = "secret"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--models", "demo-fast,demo", "--preload", "demo-fast", "--token", TOKEN, "--wyoming-port", "0",
                       "--map-voice", "alloy=rms", "--body", "1", "--idle", "2", "--requests", "40", "--add-voices",
                       "--sound-ahead", "2") as running:
        yield running.wait_until_ready()


def post(server: ServerProcess, path: str = "/v1/audio/speech", token: str = TOKEN, body: bytes | None = None,
         **fields: Any) -> tuple[int, bytes]:
    """Status and body of the answer."""
    body = json.dumps({"model": "demo-fast", "input": TEXT, "response_format": "wav", **fields}).encode() \
        if body is None else body
    request = urllib.request.Request(server.address + path, body, {
        "Authorization": f"Bearer {token}", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def error_of(answer: tuple[int, bytes]) -> dict[str, Any]:
    return json.loads(answer[1])["error"]


def sound_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data[44:], "<i2")


# Clients

def openai_client(server: ServerProcess) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key=TOKEN, max_retries=0)


@pytest.mark.parametrize(("form", "rate"), [("wav", 22050), ("flac", 22050), ("mp3", 22050), ("opus", 48000)])
def test_the_openai_client_streams_a_file_that_can_be_read(server, form, rate):
    client = openai_client(server)
    with client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="default", input=TEXT, response_format=form) as response:
        pieces = list(response.iter_bytes())
    with av.open(io.BytesIO(b"".join(pieces))) as container:
        assert container.streams.audio[0].rate == rate
        audio = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    assert 3 < len(audio) / rate < 7
    assert np.ptp(audio) > (0.2 if audio.dtype == np.float32 else 6000)


def test_the_openai_client_receives_events_with_the_same_sound_and_the_usage(server):
    client = openai_client(server)
    whole = client.audio.speech.create(model="demo-fast", voice="default", input=TEXT, response_format="pcm").content
    with client.audio.speech.with_streaming_response.create(
            model="demo-fast", voice="default", input=TEXT, response_format="pcm", stream_format="sse") as response:
        events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
    *deltas, done = events
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == whole
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["input_tokens"] == len(TEXT)
    assert done["usage"]["output_tokens"] > 100


def test_the_openai_client_gets_its_own_errors(server):
    openai = pytest.importorskip("openai")
    client = openai_client(server)
    with pytest.raises(openai.NotFoundError, match="no model is named 'other' here"):
        client.audio.speech.create(model="other", voice="default", input=TEXT)
    with pytest.raises(openai.BadRequestError, match="no voice is set for OpenAI's name 'nova'"):
        client.audio.speech.create(model="demo", voice="nova", input=TEXT)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.address}/v1", api_key="wrong", max_retries=0).models.list()
    assert [model.id for model in client.models.list()] == ["demo-fast", "demo"]


NODE_PROGRAM = """
const OpenAI = require('openai');
const client = new OpenAI({baseURL: process.argv[1] + '/v1', apiKey: process.argv[2]});
(async () => {
  const response = await client.audio.speech.create(
    {model: 'demo-fast', voice: 'default', input: process.argv[3], response_format: 'wav'});
  let pieces = 0, bytes = 0;
  for await (const piece of response.body) { pieces += 1; bytes += piece.length; }
  console.log(JSON.stringify({pieces, bytes, status: response.status}));
})();
"""


def test_the_node_client_streams(server):
    if shutil.which("node") is None or subprocess.run(
            ["node", "-e", "require.resolve('openai')"], capture_output=True, check=False).returncode:
        pytest.skip("needs node and its package openai: npm install --prefix DIR openai, then set "
                    "NODE_PATH=DIR/node_modules")
    found = subprocess.run(["node", "-e", NODE_PROGRAM, server.address, TOKEN, TEXT], capture_output=True, text=True,
                           timeout=PATIENCE, check=True)
    answer = json.loads(found.stdout)
    assert answer["status"] == 200
    assert answer["pieces"] > 1
    assert answer["bytes"] == len(post(server)[1])


def test_curl_receives_sound_while_it_is_made(server):
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    body = json.dumps({"model": "demo-fast", "input": LONG, "response_format": "pcm"})
    found = subprocess.run(["curl", "-sN", "-o", os.devnull, "-w", "%{time_starttransfer} %{time_total} %{http_code}",
                            "-H", f"Authorization: Bearer {TOKEN}", "-H", "Content-Type: application/json", "-d", body,
                            f"{server.address}/v1/audio/speech"], capture_output=True, text=True, timeout=120,
                           check=True)
    first, total, status = map(float, found.stdout.split())
    assert status == 200
    assert first < 0.8 * total              # not at its end


def test_a_wyoming_client_hears_a_text_and_a_text_in_chunks(server):
    tts = pytest.importorskip("wyoming.tts")
    import asyncio

    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.client import AsyncTcpClient
    from wyoming.info import Describe, Info

    async def sound(client: AsyncTcpClient) -> tuple[int, bytes]:
        data, rate = b"", 0
        while not AudioStop.is_type((event := await client.read_event()).type):
            if AudioStart.is_type(event.type):
                rate = AudioStart.from_event(event).rate
            elif AudioChunk.is_type(event.type):
                data += AudioChunk.from_event(event).audio
        return rate, data

    async def converse() -> None:
        async with AsyncTcpClient("127.0.0.1", server.wyoming_port) as client:
            await client.write_event(Describe().event())
            [program] = Info.from_event(await client.read_event()).tts
            assert program.supports_synthesize_streaming
            assert "demo/rms" in [voice.name for voice in program.voices]
            await client.write_event(tts.Synthesize(TEXT).event())
            rate, data = await sound(client)
            assert (rate, data) == (22050, sound_of(post(server)[1]).tobytes())
            await client.write_event(tts.SynthesizeStart().event())
            for piece in (TEXT[:10], TEXT[10:33], TEXT[33:]):
                await client.write_event(tts.SynthesizeChunk(piece).event())
            await client.write_event(tts.Synthesize(TEXT).event())       # Home Assistant sends it too
            await client.write_event(tts.SynthesizeStop().event())
            rate, data = await sound(client)
            assert len(data) > 2 * rate
            assert tts.SynthesizeStopped.is_type((await client.read_event()).type)
            await client.write_event(tts.Synthesize(TEXT, voice=tts.SynthesizeVoice("demo/nobody")).event())
            error = await client.read_event()
            assert error.type == "error"
            assert "no voice 'nobody'" in error.data["text"]

    asyncio.run(converse())


def test_a_websocket_hears_the_first_clause_before_the_last_is_written(server):
    client = pytest.importorskip("websockets.sync.client")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with client.connect(f"ws://127.0.0.1:{server.port}/v1/audio/stream", additional_headers=headers) as socket_:
        socket_.send(json.dumps({"type": "start", "model": "demo-fast"}))
        socket_.send(json.dumps({"type": "text", "text": "The wind blew over the hill. And then "}))
        sound = socket_.recv(timeout=PATIENCE)
        assert isinstance(sound, bytes)
        socket_.send(json.dumps({"type": "text", "text": "it rained."}))
        socket_.send(json.dumps({"type": "end"}))
        *pieces, done = list(socket_)
    assert json.loads(done)["type"] == "done"
    assert json.loads(done)["usage"]["input_tokens"] == 48
    assert len(sound) + sum(map(len, pieces)) > 2 * 24000 * 2
    with pytest.raises(Exception, match="403"), client.connect(f"ws://127.0.0.1:{server.port}/v1/audio/stream"):
        pass


@pytest.mark.parametrize("model", [{"model": "demo-fast"}, {"model": "demo", "preset": "fastest", "seed": 1}])
def test_a_websocket_states_when_the_words_of_all_texts_are_heard(server, model):
    client = pytest.importorskip("websockets.sync.client")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with client.connect(f"ws://127.0.0.1:{server.port}/v1/audio/stream", additional_headers=headers) as socket_:
        socket_.send(json.dumps({"type": "start", "word_times": True, **model}))
        for text in ("The wind blew over the hill. ", "It rained."):
            socket_.send(json.dumps({"type": "text", "text": text}))
        socket_.send(json.dumps({"type": "end"}))
        *messages, done = list(socket_)
    assert json.loads(done)["type"] == "done"
    sound = sum(len(message) for message in messages if isinstance(message, bytes)) / 2 / 24000
    events = [json.loads(message) for message in messages if isinstance(message, str)]
    assert {event["type"] for event in events} == {"speech.audio.words"}
    words = [word for event in events for word in event["words"]]
    assert " ".join(word["word"] for word in words) == "The wind blew over the hill. It rained."
    starts = [word["start"] for word in words]
    assert starts == sorted(starts)
    assert sound - 2 < starts[-1] < sound           # of the whole sound, not of the last text alone


def test_a_text_in_pieces_has_a_limit_of_its_own(server):
    client = pytest.importorskip("websockets.sync.client")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with client.connect(f"ws://127.0.0.1:{server.port}/v1/audio/stream", additional_headers=headers) as socket_:
        socket_.send(json.dumps({"type": "start", "model": "demo-fast"}))
        for _ in range(26):
            socket_.send(json.dumps({"type": "text", "text": "…" * 4000}))
        error = json.loads(socket_.recv(timeout=PATIENCE))
    assert error["error"]["message"] == "the text of a stream must have at most 100000 characters"


# Requests

@pytest.mark.parametrize(("fields", "message"), [
    ({"input": "x" * 4097}, "input must have at most 4096 characters, got 4097"),
    ({"instructions": "whisper"}, "no model here follows instructions"),
    ({"preset": "fastest"}, "preset has no effect on FastSpeech models"),
    ({"speed": 9}, "speed: Input should be less than or equal to 4"),
    ({"voice": "../../etc/passwd"}, "has no voice '../../etc/passwd'"),
    ({"model": "/etc"}, "no model is named '/etc' here"),
    ({"input": "\ud800"}, "input: Input should be a valid string"),
    ({"input": " … "}, "nothing to say"),
    ({"loud": True}, "loud: Extra inputs are not permitted"),
    ({"lexicon": {"wind": "a", "Wind": "b"}}, "has an entry already"),
    ({"input": "<speak><break time='9d'/></speak>"}, "break"),
    ({"model": "demo", "voice": "alloy", "speed": 4}, "speed must be from 0.5 to 2"),
])
def test_a_request_that_cannot_be_met_is_refused_in_openais_shape(server, fields, message):
    status, _ = answer = post(server, **fields)
    assert status in (400, 404)
    assert message in error_of(answer)["message"]
    assert error_of(answer)["type"] in ("invalid_request_error", "not_found_error")


def test_extensions_change_the_sound(server):
    def sound(**fields: Any) -> bytes:
        status, data = post(server, **fields)
        assert status == 200, data
        return data

    tortoise = {"model": "demo", "voice": "alloy", "preset": "fastest", "input": "The wind."}
    assert sound(**tortoise, seed=3) == sound(**tortoise, seed=3) != sound(**tortoise, seed=4)
    assert len(sound(speed=2)) < 0.7 * len(sound())
    assert sound(lexicon={"wind": "water"}) == sound(input=TEXT.replace("wind", "water")) != sound()
    assert sound(voice={"id": "default"}) == sound()


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"model": 3}', b"[" * 100_000,
                                  b"x" * 3_000_000])
def test_malformed_and_huge_bodies_are_refused(server, body):
    try:
        status, _ = answer = post(server, body=body)
    except (ConnectionError, urllib.error.URLError):
        assert len(body) > 1 << 20      # refused before all of it was sent
        return
    assert status == (413 if len(body) > 1 << 20 else 400)
    assert error_of(answer)["message"]


def test_a_chunked_body_is_measured_as_it_arrives(server):
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
                           "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        try:
            for _ in range(40):
                connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        except ConnectionError:
            pass
        assert b"413" in connection.recv(1000).partition(b"\r\n")[0]


@pytest.mark.parametrize(("headers", "status"), [
    ({"Authorization": "Bearer wrong"}, 401), ({}, 401), ({"Authorization": "Basic c2VjcmV0"}, 401),
    ({"Host": "evil.example"}, 403), ({"Origin": "http://evil.example"}, 403)])
def test_clients_without_the_token_and_foreign_pages_are_refused(server, headers, status):
    request = urllib.request.Request(f"{server.address}/v1/models",
                                     headers={"Authorization": f"Bearer {TOKEN}", **headers} if "Host" in headers
                                     or "Origin" in headers else headers)
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(request)
    assert found.value.code == status
    assert "access-control-allow-origin" not in found.value.headers


# Clients that go, or dawdle

def begin(server: ServerProcess, text: str = LONG, buffer: int = 4096) -> socket.socket:
    """A connection that requested speech and whose client does not read: it holds as much as ``buffer`` allows."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(PATIENCE)
    connection.connect(("127.0.0.1", server.port))
    body = json.dumps({"model": "demo-fast", "input": text, "response_format": "wav"})
    connection.sendall(f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
                       f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    return connection


def active(server: ServerProcess) -> float:
    with urllib.request.urlopen(urllib.request.Request(
            f"{server.address}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})) as response:
        lines = response.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith("ane_active_requests ")).split()[1])


def test_requests_of_clients_that_leave_or_do_not_read_end(server):
    files = server.status()["files"]
    connections = [begin(server, LONGEST) for _ in range(12)]
    wait_until(lambda: active(server) == 12)
    for connection in connections[::2]:
        connection.close()
    wait_until(lambda: active(server) == 0)         # the others take nothing: after --idle they are closed
    outcomes = [record["outcome"] for record in server.log() if record["message"] == "request"]
    assert outcomes[-12:] == ["client gone"] * 12
    assert post(server)[0] == 200
    for connection in connections:
        connection.close()
    wait_until(lambda: server.status()["files"] <= files + 1)


def test_connections_that_send_no_complete_request_are_closed(server):
    started = time.monotonic()
    for start in (b"", b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
                  f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
                  "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
            connection.sendall(start)
            received = connection.recv(10_000)
            assert received == b"" or b" 408 " in received
    assert time.monotonic() - started < PATIENCE


def test_more_requests_than_fit_are_told_when_to_try_again(server):
    connections = [begin(server) for _ in range(40)]
    wait_until(lambda: active(server) == 40)
    request = urllib.request.Request(f"{server.address}/v1/audio/speech", b'{"model": "demo-fast", "input": "No."}', {
        "Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(request)
    assert found.value.code == 429
    assert int(found.value.headers["Retry-After"]) >= 1
    for connection in connections:
        connection.close()
    wait_until(lambda: active(server) == 0)


def test_seeded_requests_sound_the_same_whatever_their_neighbours(server):
    """The bytes are equal: a lane's step does not depend on the other lanes, nor a piece on when it was made."""
    def sound(number: int) -> np.ndarray:
        fast = number % 2
        status, data = post(server, **({"model": "demo-fast"} if fast else {"model": "demo", "preset": "fastest"}),
                            input=f"{texts[number % 4]}.", seed=number % 3)
        assert status == 200
        return sound_of(data)

    texts = ["One", "The wind blew over the hill", "It rained in the valley. Then it stopped", "Good morning to you"]
    alone = [sound(number) for number in range(12)]
    together: dict[int, np.ndarray] = {}

    def speak(number: int) -> None:
        together[number] = sound(number)

    threads = [threading.Thread(target=speak, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, found in together.items():
        np.testing.assert_array_equal(found, alone[number % 12])


def test_the_server_watches_itself(server):
    status = json.loads(urllib.request.urlopen(f"{server.address}/health").read())
    assert status["status"] == "ok"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    page = urllib.request.urlopen(urllib.request.Request(f"{server.address}/docs", headers=headers)).read().decode()
    assert "POST /v1/audio/speech" in page
    assert "<script" not in page
    log = server.log()
    assert any(record["message"] == "request" and record["outcome"] == "ok" for record in log)
    assert not any("text" in record or TEXT in json.dumps(record) for record in log)


def test_on_sigterm_requests_end_and_new_ones_are_refused(server):
    """The last test: the server is gone after it."""
    speaking = begin(server, buffer=1 << 20)
    assert speaking.recv(1000).startswith(b"HTTP/1.1 200")
    statuses: list[int] = []
    stopping = threading.Thread(target=lambda: statuses.append(server.stop()))
    stopping.start()
    data = b""
    while received := speaking.recv(1 << 16):
        data += received
    assert data.endswith(b"0\r\n\r\n")
    stopping.join()
    assert statuses == [0]
    assert not any("Traceback" in json.dumps(record) for record in server.log())
