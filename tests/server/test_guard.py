"""Test which requests the server answers: tokens, origins, limits, permissions."""

import asyncio
import itertools
import json
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra server")
pytest.importorskip("starlette.testclient", reason="needs httpx")

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from ane.server.app import make_app
from ane.server.errors import RefusedError
from ane.server.guard import SLOWEST, Guard, LimitedBody
from ane.server.lifecycle import REPEATS, JsonHandler, json_log
from ane.server.schemas import StreamStart
from ane.server.settings import Limits, ServerSettings
from ane.server.websocket import websocket_routes
from tests.server.speech_requests import service_of


def answer(
    settings: ServerSettings, *headers: tuple[str, bytes], client: str = "127.0.0.1"
) -> tuple[int, dict[str, Any]]:
    """Status and content for a request with these headers."""
    sent: list[dict[str, Any]] = []

    async def reach(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"{}"})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/models",
        "client": (client, 1),
        "headers": [(name.encode(), value) for name, value in headers],
    }
    asyncio.run(Guard(reach, settings)(scope, None, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize("header", [("host", b"["), ("host", b"[::1"), ("origin", b"http://[")])
def test_a_malformed_host_or_origin_is_refused(header):
    status, content = answer(ServerSettings(), header)
    assert status == 400
    assert content["error"]["type"] == "invalid_request_error"


def test_a_token_outside_ascii_is_compared_as_the_bytes_that_were_sent():
    settings = ServerSettings(token="schlüssel")
    assert answer(settings, ("authorization", "Bearer schlüssel".encode()))[0] == 200
    assert answer(settings, ("authorization", b"Bearer schlussel"))[0] == 401
    protocols = "realtime, openai-insecure-api-key.schlüssel"
    assert answer(settings, ("sec-websocket-protocol", protocols.encode()))[0] == 200


@pytest.mark.parametrize(
    ("settings", "client", "host", "status"),
    [
        (ServerSettings(), "127.0.0.1", b"localhost", 200),
        (ServerSettings(), "192.0.2.1", b"localhost", 403),
        (ServerSettings(token="x", hosts=("tts.example",)), "192.0.2.1", b"tts.example:443", 401),
        (ServerSettings(token="x", hosts=("tts.example",)), "192.0.2.1", b"localhost", 403),
        (ServerSettings(token="x", hosts=("[2001:db8::7]",)), "192.0.2.1", b"[2001:db8::7]:8880", 401),
        (ServerSettings(token="x", hosts=("2001:db8::7",)), "192.0.2.1", b"[2001:db8::7]", 401),
        (ServerSettings(token="x", hosts=("[::1]",)), "192.0.2.1", b"[2001:db8::7]", 403),
    ],
)
def test_a_client_of_another_machine_needs_a_token_and_the_name_of_the_server(settings, client, host, status):
    """Also where something else listens, as Ray Serve does: a header alone makes nobody local."""
    assert answer(settings, ("host", host), client=client)[0] == status


def test_the_page_states_the_limits():
    """In the rows of its table: one or two options, and as many numbers."""
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`--.*?) \| ([\d, ]+)( MB)?[ s]* \|", page.partition("## Limits")[2], re.MULTILINE)
    stated = {
        name.replace("-", "_"): int(number) << (20 if unit else 0)
        for names, numbers, unit in rows
        for name, number in zip(re.findall(r"`--(.*?)`", names), numbers.split(","), strict=True)
    }
    assert len(stated) > 10
    assert stated == {name: getattr(Limits(), name) for name in stated}
    seconds, memory = Limits().decoder_seconds, Limits().decoder_memory
    assert f"for at most {seconds:g} s and with at most {memory / 2**30:g} GB of memory" in " ".join(page.split())


def file_request(
    length: int, kind: str = "multipart/form-data; boundary=x", path: str = "/v1/audio/voices"
) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(b"content-type", kind.encode()), (b"content-length", str(length).encode())],
    }


async def statuses(guard: Guard, *scopes: dict[str, Any]) -> list[int]:
    """The statuses of requests at a time."""
    sent: list[int] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("status", 0))

    await asyncio.gather(*(guard(scope, None, send) for scope in scopes))
    return [status for status in sent if status]


@pytest.mark.parametrize(
    "scope",
    [
        file_request(2 << 20, "multipart/x"),
        file_request(2 << 20, "multipart/form-data", "/v1/audio/speech"),
        file_request(27 << 20),
    ],
)
def test_a_body_is_large_only_where_files_are_taken(scope):
    assert asyncio.run(statuses(Guard(None, ServerSettings()), scope)) == [413]


def test_files_are_refused_before_they_are_read_when_others_take_their_room():
    read: list[int] = []

    async def hold(scope: dict[str, Any], receive: Any, send: Any) -> None:
        read.append(1)
        await asyncio.sleep(0.05)
        await send({"type": "http.response.start", "status": 200})

    guard = Guard(hold, ServerSettings(limits=Limits(files=100 << 20)))
    many = asyncio.run(statuses(guard, *[file_request(25 << 20)] * 60))
    assert (many.count(200), many.count(429), len(read)) == (4, 56, 4)
    assert asyncio.run(statuses(guard, *[file_request(100)] * 60)).count(200) == Limits().uploads + 3


@pytest.mark.parametrize(("sizes", "arrives"), [([1, 1, 1, 0], False), ([SLOWEST * 20] * 5 + [0], True)])
def test_a_body_that_trickles_holds_its_place_for_as_long_as_its_bytes_deserve(monkeypatch, sizes, arrives):
    clock, parts = itertools.count(), iter(sizes)
    # 20 s pass between two parts
    monkeypatch.setattr("ane.server.guard.time", SimpleNamespace(monotonic=lambda: 20.0 * next(clock)))

    async def receive():
        size = next(parts)
        return {"type": "http.request", "body": bytes(size), "more_body": size > 0}

    async def read():
        body = LimitedBody(receive, 25 << 20, 30.0, 600.0)
        while (await body())["more_body"]:
            pass

    if arrives:
        asyncio.run(read())
    else:
        with pytest.raises(HTTPException) as raised:
            asyncio.run(read())
        assert raised.value.status_code == 408


def test_a_fault_within_a_websocket_is_logged_and_told_with_a_reason(caplog):
    def request(start: StreamStart) -> None:
        raise RefusedError("é" * 100) if start.model == "unknown" else RuntimeError("the model is broken")

    app = FastAPI()
    app.include_router(
        websocket_routes(
            SimpleNamespace(
                settings=ServerSettings(),
                speak=None,
                catalogue=SimpleNamespace(request=request),
                count_refusal=lambda *refusal: refusals.append(refusal),
            )
        )
    )
    closed, refusals = [], []
    for name, kind in (("demo", "server_error"), ("unknown", "invalid_request_error")):
        with TestClient(app).websocket_connect("/v1/audio/stream") as socket:
            socket.send_json({"type": "start", "model": name})
            assert socket.receive_json()["error"]["type"] == kind
            closed.append(socket.receive())
    assert (closed[0]["code"], "its log says why" in closed[0]["reason"]) == (1011, True)
    assert (closed[1]["code"], closed[1]["reason"]) == (1008, "é" * 61), "RFC 6455: at most 123 bytes"
    assert "the model is broken" in caplog.text
    assert refusals == [("stream", 500), ("stream", 400)]


def test_the_log_counts_what_it_repeats(capsys):
    handler = JsonHandler()
    for number in range(1000):
        record = logging.LogRecord("asyncio", logging.ERROR, "", 1, "no descriptor is free", (), None)
        record.created = 1000.0 + number * 0.01
        handler.emit(record)
    record.created += 100
    handler.emit(record)
    lines = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == REPEATS + 2
    assert f"{1000 - REPEATS} more of: no descriptor is free" in lines


def test_the_log_has_what_backends_report_and_only_warnings_of_libraries(capsys):
    with json_log():
        for name in ("ane.server", "ane.backends", "uvicorn.error", "asyncio"):
            logging.getLogger(name).info(name)
            logging.getLogger(name).warning(f"{name} warns")
        warnings.warn("a library warns in its own way", UserWarning, stacklevel=1)
        warnings.warn("The 'alias' attribute with value 'body' has no effect", UserWarning, stacklevel=1)
    lines = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "ane.server",
        "ane.server warns",
        "ane.backends",
        "ane.backends warns",
        "uvicorn.error warns",
        "asyncio warns",
        lines[-1],
    ]
    assert "UserWarning: a library warns in its own way" in lines[-1]


ORIGIN, OTHER = "http://page.example:3000", "http://other.example"
TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Of an application that is served by something else, and counts no connections."""
    options = {"origins": (ORIGIN,), "ignore_instructions": True, "log_texts": True, "limits": Limits(characters=40)}
    with service_of("heart", hosts=("testserver",), token="secret", **options) as service:
        yield TestClient(make_app(service))


def speak(client: TestClient, text: str, **fields: Any) -> Any:
    return client.post(
        "/v1/audio/speech", headers=TOKEN, json={"model": "heart", "input": text, "response_format": "pcm", **fields}
    )


def test_a_page_of_a_named_origin_may_speak_reads_why_it_is_refused_and_no_other_may(client):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    answer = client.options("/v1/audio/speech", headers={"Origin": ORIGIN, **asked})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
    assert {"POST", "DELETE"} <= {*answer.headers["access-control-allow-methods"].split(", ")}
    assert "access-control-allow-credentials" not in answer.headers
    for token, status in ((TOKEN, 200), ({}, 401)):
        answer = client.get("/v1/models", headers={"Origin": ORIGIN, **token})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, ORIGIN)
        assert {"X-Notes", "Retry-After"} <= {*answer.headers["access-control-expose-headers"].split(", ")}
    assert "token" in answer.json()["error"]["message"]
    answer = client.options("/v1/audio/speech", headers={"Origin": OTHER, **asked})
    assert answer.status_code >= 400
    assert "access-control-allow-origin" not in answer.headers
    answer = client.get("/v1/models", headers={"Origin": OTHER, **TOKEN})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_instructions_are_ignored_and_texts_logged_where_the_settings_say_so(client, caplog):
    with caplog.at_level(logging.INFO, "ane.server"):
        answer = speak(client, "Rain fell.", instructions="Whisper.")
    assert (answer.status_code, answer.content) == (200, speak(client, "Rain fell.").content)
    assert caplog.records[-1].fields["text"] == "Rain fell."
    assert "ane_loaded_models 1.0" in client.get("/metrics", headers=TOKEN).text


def test_errors_are_those_that_the_schema_states(client):
    answer = speak(client, "x" * 41)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "input must have at most 40 characters, got 41"
    assert client.get("/v1/nothing", headers=TOKEN).json()["error"]["type"] == "not_found_error"
    answer = client.delete("/v1/audio/voices/heart", headers=TOKEN)
    assert (answer.status_code, "--add-voices" in answer.json()["error"]["message"]) == (403, True)
    assert client.delete("/v1/audio/voices/heart").status_code == 401
    paths = client.get("/openapi.json", headers=TOKEN).json()["paths"]
    assert paths["/v1/audio/voices/{voice}"].keys() == {"delete"}
    assert paths["/v1/audio/speech"]["post"]["responses"].keys() == {
        "200",
        *map(str, (400, 401, 403, 404, 408, 413, 429, 500, 503, 504)),
    }
