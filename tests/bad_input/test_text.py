"""A text that cannot be spoken is one clear line."""

import io
import subprocess
import sys

import pytest


@pytest.mark.parametrize("text", ["", "   \n"])
def test_empty_text(say, text):
    assert "nothing to say" in say(text)


def test_text_of_only_symbols(say):
    assert "*** --- ***" in say("*** --- ***")


def test_text_over_the_decoders_limit_with_splitting_off(say):
    line = say("--no-split", "several thousand words and more " * 60)
    assert "tokens" in line
    assert "allow it to be split" in line


def test_text_file_that_is_not_there_or_not_text(say, tmp_path):
    assert "missing.txt" in say("-f", "missing.txt")
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    assert "UTF-8" in say("-f", tmp_path / "latin.txt")


def test_bytes_that_are_not_text_on_standard_input_or_the_command_line(tmp_path):
    """Through a real process: what Python makes of such bytes is decided before the command runs."""
    for arguments, given, where in ((("-f", "-"), b"h\xff", "standard input"),
                                    ((b"h\xff",), b"", "the text on the command line")):
        result = subprocess.run([sys.executable, "-m", "ane", "say", *arguments, "-o", "x.wav"], input=given,
                                cwd=tmp_path, capture_output=True, timeout=60, check=False)
        assert result.returncode == 1
        assert f"ane: error: {where} is not text in UTF-8 (byte 1)" in result.stderr.decode()
        assert b"Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_lone_surrogate_is_not_text(say):
    assert "not text in UTF-8" in say("hello \ud800")


def test_two_texts_or_none(complain, monkeypatch):
    assert "either TEXT or -f FILE" in complain("say", "hello", "-f", "x.txt", "-o", "out.wav")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert "no text given: pass TEXT, -f FILE or pipe it in" in complain("say", "-o", "out.wav")


def test_nothing_piped_in(complain, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "no text given" in complain("say", "--preset", "fastest", "-o", "out.wav")
