"""Provide the server that the tests of requests, clients and the web page share."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.server_process import ServerProcess
from tests.server.speech_requests import GUARDED


@pytest.fixture
def voices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's voices, which is empty."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    (tmp_path / "voices").mkdir()
    return tmp_path / "voices"


@pytest.fixture(scope="session")
def server(preloaded_server: Path) -> Iterator[ServerProcess]:
    with ServerProcess(*GUARDED.split(), preloaded=preloaded_server) as running:
        yield running.wait_until_ready()
        assert running.stop() == 0
        assert not any("Traceback" in json.dumps(record) for record in running.log())
