"""Requests that cannot be met are refused; nothing that a client sends or leaves undone harms the server."""

import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest

from tests.server.server_process import PATIENCE, wait_until
from tests.server.speech_requests import (
    LONGEST,
    TEXT,
    TOKEN,
    active,
    begin,
    error_of,
    post,
    sound_of,
)

pytest.importorskip("fastapi", reason="needs the extra server")




@pytest.mark.parametrize(("fields", "message"), [
    ({"input": "x" * 4097}, "input must have at most 4096 characters, got 4097"),
    ({"instructions": "whisper"}, "no model here follows instructions"),
    ({"preset": "fastest"}, "preset has no effect on hibari models"),
    ({"speed": 9}, "speed: Input should be less than or equal to 4"),
    ({"speed": 0.2}, "speed: Input should be greater than or equal to 0.25"),
    ({"voice": "../../etc/passwd"}, "has no voice '../../etc/passwd'"),
    ({"model": "/etc"}, "no model is named '/etc' here"),
    ({"input": "\ud800"}, "input: Input should be a valid string"),
    ({"input": " … "}, "nothing to say"),
    ({"model": "demo", "input": "[voice:/etc/passwd]Hello."}, "demo has no voice '/etc/passwd'"),
    ({"model": "demo", "cast": {"speakers": {"Anna": "../a"}}}, "demo has no voice '../a'"),
    ({"cast": {"speakers": {"Anna": "heart"}}}, "cast has no effect on demo-fast, which has one voice"),
    ({"input": "[voice:heart]Hello."}, "voice has no effect on hibari models"),
    ({"loud": True}, "loud: Extra inputs are not permitted"),
    ({"lexicon": {"wind": "a", "Wind": "b"}}, "has an entry already"),
    ({"unreadable": "refuse", "input": "Привет"}, "the text has Cyrillic letters"),
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
    assert sound(voice={"id": "default"}) == sound() == sound(voice="alloy")      # mapped to a voice of demo's alone


def test_a_cast_speaks_quotations_with_the_voices_of_their_speakers(server):
    text = '"Come in," said Anna. It was late.'
    request = {"model": "demo", "voice": "heart", "preset": "fastest", "input": text, "seed": 3}

    def sound(**fields: Any) -> bytes:
        status, data = post(server, **{**request, **fields})
        assert status == 200, data
        return data

    cast = sound(cast={"speakers": {"Anna": "michael"}})
    assert cast == sound(input='[voice:michael]"Come in,"[voice] said Anna. It was late.')
    assert cast != sound()
    assert sound(cast={"speakers": {"Bella": "michael"}}) != cast


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


@pytest.mark.parametrize("form", ["pcm", "mp3"])
def test_pauses_neither_fill_the_memory_nor_hold_the_others_up(server, form):
    """As many as are allowed, to a client that does not read; beyond them the request is refused."""
    status, _ = answer = post(server, input="A." + " [pause:60s]" * 340)
    assert (status, "20400 s of silence" in error_of(answer)["message"]) == (400, True)
    memory, slowest = server.status()["memory_kib"], 0.0
    connections = [begin(server, "A." + " [pause:60s]" * 10, form=form) for _ in range(4)]
    for _ in range(40):
        began = time.monotonic()
        urllib.request.urlopen(f"{server.address}/health").read()
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.02)
    assert slowest < 0.5
    assert server.status()["memory_kib"] - memory < 200 << 10
    for connection in connections:
        connection.close()
    wait_until(lambda: active(server) == 0)


# Clients that go, or dawdle

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
    explained = re.findall(r"<tr><td><code>([^<]+)</code><td>[^<]*<td>([^<]*)</tr>", page)
    assert len(explained) > 20
    assert [name for name, text in explained if not text] == []
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
