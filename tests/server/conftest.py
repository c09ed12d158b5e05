"""Provide the server that the tests of requests, clients and the web page share."""

import json
from collections.abc import Iterator

import pytest

from tests.server.server_process import ServerProcess
from tests.server.speech_requests import guarded_server


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with guarded_server() as running:
        yield running.wait_until_ready()
        assert running.stop() == 0
        assert not any("Traceback" in json.dumps(record) for record in running.log())
