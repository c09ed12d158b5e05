"""Test `ane serve` on Ray Serve: sound arrives while it is made, and equals the sound of a server without a cluster."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

import ane
from ane.audio.writer import pcm16
from tests.refusals import assert_refused

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]' makes these tests run")
serve = pytest.importorskip("ray.serve", reason="Ray Serve needs more packages: pip install '.[ray-serve]'")

TEXT = "The wind blew over the hill. It rained in the valley all night."
REQUEST = {"model": "demo", "input": TEXT, "seed": 3, "preset": "fastest", "response_format": "pcm"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from ane.cluster.deployment import application
    from ane.cluster.workers import connected

    with connected(None):
        serve.start(http_options={"host": "127.0.0.1", "port": 8937})
        serve.run(
            application({"models": "demo", "threads": "1", "token": "secret", "hosts": "127.0.0.1,tts.example"}),
            route_prefix="/",
        )
        yield "http://127.0.0.1:8937"
        serve.shutdown()


def ask(address: str, token: str = "secret", **headers: str):
    return urllib.request.urlopen(
        urllib.request.Request(
            f"{address}/v1/audio/speech",
            json.dumps(REQUEST).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {token}", **headers},
        ),
        timeout=120,
    )


def test_sound_is_streamed_and_that_of_one_machine(address):
    with ask(address) as response:
        first = response.read1()
        began = time.perf_counter()
        rest = response.read()
    assert time.perf_counter() - began > 0.02  # the sound was not made before the request
    stream = ane.load("demo", threads=1).stream(TEXT, seed=3, preset="fastest")
    expected = pcm16(np.concatenate(list(stream))).tobytes()
    assert 0 < len(first) < len(expected)
    assert abs(len(first + rest) - len(expected)) <= 2
    difference = np.frombuffer(first + rest, "<i2").astype(int) - np.frombuffer(expected, "<i2")
    assert np.abs(difference).max() <= 1


def test_a_wrong_token_or_name_of_the_server_is_refused(address):
    for token, host, status in (
        ("wrong", "tts.example", 401),
        ("secret", "localhost", 403),
        ("secret", "evil.example", 403),
    ):
        with pytest.raises(urllib.error.HTTPError) as error:
            ask(address, token, Host=host)
        assert error.value.code == status
    with ask(address, Host="tts.example") as response:
        assert response.status == 200


def test_nobody_speaks_without_a_token_where_other_machines_listen(monkeypatch):
    from ane.cluster import deployment

    monkeypatch.setattr(deployment, "listening_host", lambda: "0.0.0.0")
    assert_refused(
        r"Ray Serve listens on 0\.0\.0\.0, where other machines reach it: give",
        deployment.application,
        {"models": "demo"},
    )
    assert deployment.application({"models": "demo", "token": "secret"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": "no-such-model"}, "no-such-model"),
        ({"lines": "3"}, "there is no option lines"),
        ({"lanes": "many"}, "a number is expected"),
        ({"least_replicas": "2"}, "replicas must be"),
    ],
)
def test_options_are_checked(options, message):
    from ane.cluster.deployment import application

    assert_refused(message, application, options)
