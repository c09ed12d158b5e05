"""Test the server behind nginx with the documented settings, and with the headers that Caddy sends."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi", reason="needs the extra server: pip install '.[server]'")

from websockets.sync.client import connect

from ane.server.guard import forwarded_for
from ane.server.settings import ServerSettings
from tests.refusals import assert_refused
from tests.server.server_process import ServerProcess, ask, wait_until
from tests.server.speech_requests import END, send
from tests.server.test_guard import answer

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
NAME = "tts.example"
SPEECH = {"model": "heart", "input": "It rained.", "response_format": "wav"}
CONFIG = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
  server {{
    listen 127.0.0.1:{port};
    location /tts/ {{
      proxy_pass http://127.0.0.1:{server}{path};
      proxy_http_version 1.1;
      proxy_buffering off;
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
    }}
  }}
}}
"""


@pytest.fixture(scope="module")
def server(preloaded_server: Path) -> Iterator[ServerProcess]:
    flags = "--models heart --preload heart --hosts TTS.example --base-path /tts"
    with ServerProcess(*flags.split(), preloaded=preloaded_server) as running:
        yield running.wait_until_ready()


@pytest.fixture(scope="module", params=["/", ""], ids=["path-removed", "path-kept"])
def proxy(
    request: pytest.FixtureRequest, server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The port of an nginx in front of the server, which removes /tts from paths or leaves it."""
    if NGINX is None:
        pytest.skip("needs nginx: apt-get install nginx-light")
    folder = tmp_path_factory.mktemp("nginx")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, port=port, server=server.port, path=request.param))
    with subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]) as process:
        wait_until(lambda: answers(port))
        yield port
        process.terminate()


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def status(port: int, path: str, body: dict[str, str] | None = None, **headers: str) -> int:
    return ask(f"http://127.0.0.1:{port}", path, body, **{"Host": NAME, **headers}).status


def test_the_page_the_api_and_text_while_it_is_written_work_behind_nginx(proxy: int) -> None:
    for path in ("/tts/", "/tts/health", "/tts/docs", "/tts/openapi.json", "/tts/v1/models"):
        assert status(proxy, path) == 200
    assert status(proxy, "/tts/v1/audio/speech", SPEECH, Origin=f"https://{NAME}") == 200
    with connect(f"ws://{NAME}/tts/v1/audio/stream", sock=socket.create_connection(("127.0.0.1", proxy))) as socket_:
        send(socket_, {"type": "start", "model": "heart"}, "It rained.", END)
        *sound, done = list(socket_)
    assert json.loads(done)["type"] == "done"
    assert sum(map(len, sound)) > 10_000


def test_behind_nginx_strangers_need_a_token_and_pages_of_others_are_refused(proxy: int, server: ServerProcess) -> None:
    """The address for which nginx passes a request on counts as the client's."""
    assert status(proxy, "/tts/v1/models", X_Forwarded_For="203.0.113.9") == 403
    assert status(proxy, "/tts/v1/audio/speech", SPEECH, Origin="https://elsewhere.example") == 403
    assert status(proxy, "/tts/v1/models", Host="elsewhere.example") == 403
    # a health check that bypasses the proxy
    assert status(server.port, "/v1/models", Host=f"127.0.0.1:{server.port}") == 200


def test_without_the_name_of_the_proxy_the_error_says_what_to_do(preloaded_server: Path) -> None:
    with ServerProcess("--models", "heart", preloaded=preloaded_server) as server:
        assert f"`ane serve --hosts {NAME}`" in server.ask("/v1/models", Host=NAME).error["message"]


# Headers that Caddy 2 sends for `reverse_proxy 127.0.0.1:8880`. It keeps Host, and adds these
CADDY = {"host": NAME, "x-forwarded-for": "127.0.0.1", "x-forwarded-host": NAME, "x-forwarded-proto": "https"}


@pytest.mark.parametrize(
    ("headers", "token", "passes"),
    [
        ({}, "", True),
        ({"origin": f"https://{NAME}"}, "", True),
        ({"origin": "https://elsewhere.example"}, "", False),
        ({"x-forwarded-for": "203.0.113.9"}, "", False),
        ({"x-forwarded-for": "203.0.113.9"}, "secret", True),
        ({"forwarded": 'for="[2001:db8::1]:4711";proto=https'}, "", False),
        ({"forwarded": 'for="[::1]"'}, "", True),
        ({"x-forwarded-for": "127.0.0.1, 127.0.0.1"}, "", True),
        ({"x-real-ip": "203.0.113.9"}, "", False),
    ],
)
def test_requests_that_caddy_passes_on(headers: dict[str, str], token: str, passes: bool) -> None:
    lines = {**CADDY, **headers, **({"authorization": f"Bearer {token}"} if token else {})}
    sent = [(key, value.encode()) for key, value in lines.items()]
    assert answer(ServerSettings(hosts=(NAME,), token=token), *sent)[0] == (200 if passes else 403)


def test_addresses_of_clients_are_read_in_each_form() -> None:
    headers = SimpleNamespace(
        getlist=lambda key: {
            "x-forwarded-for": ["203.0.113.9, 10.0.0.1:80", " 2001:db8::1 "],
            "x-real-ip": [],
            "forwarded": ['for=192.0.2.60;proto=http, For="[2001:db8:cafe::17]:4711"'],
        }[key]
    )
    assert forwarded_for(headers) == ["203.0.113.9", "10.0.0.1", "2001:db8::1", "192.0.2.60", "2001:db8:cafe::17"]


@pytest.mark.parametrize("path", ["tts", "/tts/", "/", "/a//b", "/a?b"])
def test_a_base_path_must_be_one(path: str) -> None:
    assert_refused("base_path must be a path such as /tts", ServerSettings, base_path=path)


def test_the_page_calls_its_server_by_relative_addresses() -> None:
    page = Path("ane/server/page.html").read_text(encoding="utf-8")
    assert 'fetch("/' not in page
    assert '"/v1' not in page
    assert 'href="/' not in page
