"""A text that cannot be spoken, and a voice or a model that cannot be used, are one clear line of `ane say`."""

import io
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

RATE = 22050


LONG = "n" * 300


def refusals() -> list[tuple[str, str]]:
    lines = (Path(__file__).parent / "refusals.tsv").read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines if not line.startswith("#")]


@pytest.mark.parametrize(("command", "fault"), refusals())
def test_what_cannot_be_done_is_one_line(complain, monkeypatch, speech, command, fault):
    if command.startswith("serve"):
        pytest.importorskip("fastapi", reason="needs the extra server")
    monkeypatch.delenv("ANE_TOKEN", raising=False)
    Path("book.md").write_text("# One\n\nHello there.\n", encoding="utf-8")
    soundfile.write("clip.wav", speech, RATE)
    Path("folder.wav").mkdir()
    line = complain(*(word.replace("LONG", LONG).replace("\\n", "\n") for word in shlex.split(command)))
    assert fault.replace("LONG", LONG) in line


def test_text_over_the_decoders_limit_with_splitting_off(say):
    line = say("--no-split", "several thousand words and more " * 60)
    assert "tokens" in line
    assert "allow it to be split" in line


def test_text_that_is_not_in_utf_8(say, tmp_path):
    assert "not text in UTF-8" in say("hello \ud800")
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
    assert not (tmp_path / "x.wav").exists()


def test_no_text(complain, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "no text given" in complain("say", "-o", "out.wav")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert "no text given: pass TEXT, -f FILE or pipe it in" in complain("say", "-o", "out.wav")


def test_a_clip_that_cannot_be_used_is_named(say, speech, tmp_path):
    """What else reading a clip refuses is in tests/audio/test_reader.py."""
    soundfile.write(tmp_path / "silent.wav", 0 * speech, RATE, subtype="FLOAT")
    assert "silent.wav: is silent" in say("hello", "-v", tmp_path / "silent.wav")
