"""Test that the flags of `ane serve` become settings, and that a server that cannot start says why in one line."""

import argparse

import pytest

pytest.importorskip("fastapi", reason="needs the extra server")

from ane.cli import parser
from ane.commands.serve import announce, read_server_settings
from ane.server.settings import Limits, ServerSettings


def settings_of(*options: str) -> ServerSettings:
    args: argparse.Namespace = parser().parse_args(["serve", *options])
    return read_server_settings(args)


def test_the_start_line_has_the_path_of_the_proxy(capsys):
    announce("http://0.0.0.0:8880", settings_of("--base-path", "/tts", "--host", "0.0.0.0", "--token", "secret"))
    assert "Try it at http://0.0.0.0:8880/tts/. The API is described at http://0.0.0.0:8880/tts/docs" in (
        capsys.readouterr().out
    )


def test_nothing_is_allowed_unless_it_is_asked_for(monkeypatch):
    monkeypatch.delenv("ANE_TOKEN", raising=False)
    settings = settings_of()
    assert settings == ServerSettings()
    assert settings.host == "127.0.0.1"
    assert not settings.origins
    assert not any((settings.add_voices, settings.log_texts, settings.ignore_instructions))


def test_options_become_settings(monkeypatch):
    monkeypatch.setenv("ANE_TOKEN", "secret")
    settings = settings_of(
        "--host",
        "0.0.0.0",
        "--models",
        "heart,demo",
        "--map-voice",
        "alloy=heart",
        "--map-voice",
        "nova=michael",
        "--cors",
        "http://a.example,http://b.example",
        "--memory",
        "1.5",
        "--idle-release",
        "60",
        "--body",
        "2",
        "--seconds",
        "9",
        "--sound-ahead",
        "3",
        "--stream-characters",
        "500",
    )
    assert settings.token == "secret"
    assert settings.models == ("heart", "demo")
    assert settings.voices == {"alloy": "heart", "nova": "michael"}
    assert settings.origins == ("http://a.example", "http://b.example")
    assert (settings.memory, settings.idle_release) == (1_500_000_000, 60.0)
    assert settings.limits == Limits(body=2 << 20, seconds=9.0, sound_ahead=3.0, stream_characters=500)
