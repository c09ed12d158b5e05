"""Test that invalid requests are rejected, and that nothing which a client sends or leaves undone harms the server."""

import json
import re
import socket
import time
import urllib.error
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.server.server_process import PATIENCE, ServerProcess, wait_until
from tests.server.speech_requests import AUTHORIZED, LONG, LONGEST, TEXT, active, begin, error_of, post

pytest.importorskip("fastapi", reason="needs the extra server")

SPEECH = "/v1/audio/speech"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": "x" * 4097}, "input must have at most 4096 characters, got 4097"),
        ({"instructions": "whisper"}, "no model here follows instructions"),
        ({"preset": "fastest"}, "preset has no effect on heart models"),
        ({"speed": 9}, "speed: Input should be less than or equal to 4"),
        ({"speed": 0.2}, "speed: Input should be greater than or equal to 0.25"),
        ({"voice": "../../etc/passwd"}, "has no voice '../../etc/passwd'"),
        ({"model": "/etc"}, "no model is named '/etc' here"),
        ({"input": "\ud800"}, "input: Input should be a valid string"),
        ({"input": " … "}, "nothing to say"),
        ({"model": "demo", "input": "[voice:/etc/passwd]Hello."}, "demo has no voice '/etc/passwd'"),
        ({"model": "demo", "cast": {"speakers": {"Anna": "../a"}}}, "demo has no voice '../a'"),
        ({"cast": {"speakers": {"Anna": "heart"}}}, "cast has no effect on heart, which has one voice"),
        ({"input": "[voice:heart]Hello."}, "voice has no effect on heart, whose only voice is heart"),
        ({"loud": True}, "loud is unknown: leave it out"),
        ({"lexicon": {"wind": "a", "Wind": "b"}}, "has an entry already"),
        ({"unreadable": "refuse", "input": "Привет"}, "the text has Cyrillic letters"),
        ({"input": "<speak><break time='9d'/></speak>"}, "break"),
        ({"model": "demo", "voice": "alloy", "speed": 4}, "speed must be from 0.5 to 2"),
        ({"voice": {"id": 3}}, "voice.id: Input should be a valid string"),
        ({"voice": {"name": "heart"}}, "voice.id is missing"),
        ({"voice": 3}, "voice: Input should be a valid string"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_in_openais_shape(server, fields, message):
    status, _ = answer = post(server, **fields)
    assert status in (400, 404)
    assert message in error_of(answer)["message"]
    named = re.match(r"(speed|voice[.\w]*)(:| must)", message)
    assert not named or error_of(answer)["param"] == named[1]
    assert error_of(answer)["type"] in ("invalid_request_error", "not_found_error")


def spoken(server: ServerProcess, **fields: Any) -> bytes:
    status, data = post(server, **fields)
    assert status == 200, data
    return data


def test_extensions_change_the_sound(server):
    sound = partial(spoken, server)
    tortoise = {"model": "demo", "voice": "alloy", "preset": "fastest", "input": "The wind."}
    assert sound(**tortoise, seed=3) == sound(**tortoise, seed=3) != sound(**tortoise, seed=4)
    assert len(sound(speed=2)) < 0.7 * len(sound())
    assert sound(lexicon={"wind": "water"}) == sound(input=TEXT.replace("wind", "water")) != sound()
    # the name is mapped to a voice that only demo has
    assert sound(voice={"id": "default"}) == sound() == sound(voice="alloy")


def test_a_cast_speaks_quotations_with_the_voices_of_their_speakers(server):
    text = '"Come in," said Anna. It was late.'
    sound = partial(spoken, server, model="demo", voice="heart", preset="fastest", seed=3)
    cast = sound(input=text, cast={"speakers": {"Anna": "michael"}})
    assert cast == sound(input='[voice:michael]"Come in,"[voice] said Anna. It was late.')
    assert cast != sound(input=text, cast={"speakers": {"Bella": "michael"}})


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (
            b'{"model": "heart", "input": "Hi."}',
            "application/x-www-form-urlencoded",
            "send Content-Type: application/json",
        ),
        (b'{"model": "heart", "input": "Hi."}', "text/plain", "send Content-Type: application/json"),
        (b"[]", "application/json", "the body must be a JSON object, but it is a list"),
        (b'"Hi."', "application/json", "the body must be a JSON object, but it is a string"),
        (b"3", "application/json", "the body must be a JSON object, but it is a number"),
        (b" null\n", "application/json", "the body must be a JSON object, but it is null"),
        (b"false", "application/json", "the body must be a JSON object, but it is a truth value"),
        (b"", "application/json", "the body must be a JSON object, but it is missing"),
    ],
)
def test_a_body_that_is_no_json_object_is_named(server, body, kind, message):
    status, _ = answer = post(server, body=body, kind=kind)
    assert (status, error_of(answer)["message"], error_of(answer)["param"]) == (400, message, None)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"model": 3}', b"[" * 100_000, b"x" * 3_000_000])
def test_malformed_and_huge_bodies_are_refused(server, body):
    try:
        status, _ = answer = post(server, body=body)
    except (ConnectionError, urllib.error.URLError):
        assert len(body) > 1 << 20  # the server rejects the body before all of it was sent
        return
    assert status == (413 if len(body) > 1 << 20 else 400)
    assert error_of(answer)["message"]


def test_a_chunked_body_is_measured_as_it_arrives(server):
    with server.begin(SPEECH, Authorization=AUTHORIZED, Transfer_Encoding="chunked") as connection:
        with suppress(ConnectionError):
            for _ in range(40):
                connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        assert b"413" in connection.recv(1000).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": ""}, 401),
        ({"Authorization": "Basic c2VjcmV0"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
def test_clients_without_the_token_and_foreign_pages_are_refused(server, headers, status):
    answer = server.ask("/v1/models", **{"Authorization": AUTHORIZED, **headers})
    assert answer.status == status
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("form", ["pcm", "mp3"])
def test_pauses_neither_fill_the_memory_nor_hold_the_others_up(server, form):
    """As many as are allowed, to a client that does not read; beyond them the request is refused."""
    status, _ = answer = post(server, input="A." + " [pause:60s]" * 340)
    assert (status, "20400 s of silence" in error_of(answer)["message"]) == (400, True)
    memory, slowest = server.status()["memory_kib"], 0.0
    connections = [begin(server, LONGEST, form=form) for _ in range(4)]
    for _ in range(40):
        began = time.monotonic()
        server.ask("/health")
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.02)
    assert slowest < 0.5
    assert server.status()["memory_kib"] - memory < 200 << 10
    for connection in connections:
        connection.close()
    wait_until(lambda: active(server) == 0)


# Clients that leave or are slow


def test_requests_of_clients_that_leave_or_do_not_read_end(server):
    """A minute of sound fits into the buffers that Linux gives a connection, so the server would compute all of it."""
    files = server.status()["files"]
    connections = [*(begin(server, LONGEST) for _ in range(3)), begin(server, LONG, form="pcm")]
    wait_until(lambda: active(server) == 4)
    for connection in connections[:2]:
        connection.close()
    wait_until(lambda: active(server) == 0)  # the others take no sound, so --idle closes them
    outcomes = [record["outcome"] for record in server.log() if record["message"] == "request"]
    assert outcomes[-4:] == ["client gone"] * 4
    assert post(server)[0] == 200
    for connection in connections:
        connection.close()
    wait_until(lambda: server.status()["files"] <= files + 1)


def test_connections_that_send_no_complete_request_are_closed(server):
    silent = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
    half = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
    half.sendall(f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {AUTHORIZED}\r\nX-Slow: ".encode())
    for connection in (silent, half, server.begin(SPEECH, b"{", Authorization=AUTHORIZED, Content_Length="100")):
        with connection:
            received = connection.recv(10_000)
            assert received == b"" or b" 408 " in received


def test_more_requests_than_fit_are_told_when_to_try_again(server):
    connections = [begin(server) for _ in range(40)]
    wait_until(lambda: active(server) == 40)
    refused = server.ask(SPEECH, {"model": "heart", "input": "No."}, Authorization=AUTHORIZED)
    assert (refused.status, int(refused.headers["Retry-After"]) >= 1) == (429, True)
    for connection in connections:
        connection.close()
    wait_until(lambda: active(server) == 0)


def test_the_server_watches_itself(server):
    assert server.ask("/health").json["status"] == "ok"
    page = server.ask("/docs").data.decode()
    assert "POST /v1/audio/speech" in page
    explained = re.findall(r"<tr><td><code>([^<]+)</code><td>[^<]*<td>(.*?)</tr>", page)
    assert len(explained) > 20
    assert [name for name, text in explained if not text] == []
    spoken(server)
    wait_until(lambda: any(record["message"] == "request" and record["outcome"] == "ok" for record in server.log()))
    assert not any("text" in record or TEXT in json.dumps(record) for record in server.log())
