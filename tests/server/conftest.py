"""The server that the tests of requests and of clients share."""

from collections.abc import Iterator

import pytest

from tests.server.server_process import ServerProcess
from tests.server.speech_requests import guarded_server


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with guarded_server() as running:
        yield running.wait_until_ready()
