"""What a server allows only with an option: pages of other origins, instructions, texts in its log."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra server")

from tests.server.server_process import PATIENCE, ServerProcess

ORIGIN, OTHER = "http://page.example:3000", "http://other.example"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--models", "demo-fast", "--preload", "demo-fast", "--cors", ORIGIN, "--ignore-instructions",
                       "--log-texts", "--token", "secret", "--characters", "40") as running:
        yield running.wait_until_ready()


def ask(server: ServerProcess, path: str, method: str = "GET", body: bytes | None = None,
        **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer."""
    request = urllib.request.Request(server.address + path, body, {
        name.replace("_", "-"): value for name, value in headers.items()}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, {key.lower(): value for key, value in response.headers.items()}, response.read()
    except urllib.error.HTTPError as error:
        return error.code, {key.lower(): value for key, value in error.headers.items()}, error.read()


def speak(server: ServerProcess, **fields: Any) -> tuple[int, dict[str, str], bytes]:
    return ask(server, "/v1/audio/speech", "POST", json.dumps({"model": "demo-fast", **fields}).encode(),
               Authorization="Bearer secret", Content_Type="application/json")


def test_a_page_of_a_named_origin_may_speak_and_no_other(server):
    asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization,content-type"}
    status, headers, _ = ask(server, "/v1/audio/speech", "OPTIONS", Origin=ORIGIN, **asked)
    assert status == 200
    assert headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in headers
    status, headers, _ = ask(server, "/v1/models", Origin=ORIGIN, Authorization="Bearer secret")
    assert (status, headers["access-control-allow-origin"]) == (200, ORIGIN)
    status, headers, _ = ask(server, "/v1/audio/speech", "OPTIONS", Origin=OTHER, **asked)
    assert status >= 400
    assert "access-control-allow-origin" not in headers
    status, headers, _ = ask(server, "/v1/models", Origin=OTHER, Authorization="Bearer secret")
    assert status == 403
    assert "access-control-allow-origin" not in headers


def test_a_page_of_a_named_origin_reads_why_it_was_refused(server):
    status, headers, body = ask(server, "/v1/models", Origin=ORIGIN)
    assert status == 401
    assert headers["access-control-allow-origin"] == ORIGIN
    assert "token" in json.loads(body)["error"]["message"]


def test_instructions_are_ignored_when_the_server_was_told_to(server):
    status, _, sound = speak(server, input="Rain fell.", response_format="pcm", instructions="Whisper.")
    assert status == 200
    assert sound == speak(server, input="Rain fell.", response_format="pcm")[2]


def test_the_log_has_texts_when_the_server_was_told_to(server):
    assert speak(server, input="Snow fell.")[0] == 200
    assert server.log()[-1]["text"] == "Snow fell."


def test_the_length_of_a_text_is_limited_by_an_option(server):
    status, _, body = speak(server, input="x" * 41)
    assert status == 400
    assert json.loads(body)["error"]["message"] == "input must have at most 40 characters, got 41"
