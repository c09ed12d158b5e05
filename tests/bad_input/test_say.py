"""A text that cannot be spoken, and a voice or a model that cannot be used, are one clear line of `ane say`."""

import io
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

RATE = 22050


# Text

@pytest.mark.parametrize(("text", "fault"), [
    ("", "nothing to say"), ("   \n", "nothing to say"), ("*** --- ***", "*** --- ***"),
    ("hello \ud800", "not text in UTF-8")])
def test_a_text_that_cannot_be_spoken(say, text, fault):
    assert fault in say(text)


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


def test_two_texts_or_none(complain, monkeypatch):
    assert "either TEXT or -f FILE" in complain("say", "hello", "-f", "x.txt", "-o", "out.wav")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "no text given" in complain("say", "-o", "out.wav")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert "no text given: pass TEXT, -f FILE or pipe it in" in complain("say", "-o", "out.wav")


# Voices; what reading a clip refuses is in tests/audio/test_reader.py

@pytest.mark.parametrize(("voice", "fault"), [("rmss", "rms"), ("", "a name is missing")])
def test_a_voice_of_another_name(say, voice, fault):
    assert fault in say("hello", "-v", voice)


@pytest.mark.parametrize(("name", "content", "fault"), [
    ("three.wav", lambda speech: speech[:3], "at least 0.5 s"), ("silent.wav", lambda speech: 0 * speech, "silent"),
    ("nan.wav", lambda speech: np.where(np.arange(RATE) == 500, np.nan, speech), "NaN"),
    ("note.wav", lambda speech: b"this is a letter, not a sound\n" * 50, "convert it"),
    ("x.raw", lambda speech: speech.tobytes(), "wav")])
def test_a_clip_that_cannot_be_used(say, speech, tmp_path, name, content, fault):
    made = content(speech)
    if isinstance(made, bytes):
        (tmp_path / name).write_bytes(made)
    else:
        soundfile.write(tmp_path / name, made, RATE, subtype="FLOAT")
    line = say("hello", "-v", tmp_path / name)
    assert name in line
    assert fault in line


def test_voice_of_another_model(say, tmp_path, random_bundle):
    torch.save((torch.zeros(1, 1024), torch.zeros(1, 2048)), tmp_path / "wide.pth")
    line = say("hello", "-v", tmp_path / "wide.pth", "--bundle", random_bundle)
    assert "1024" in line
    assert "64" in line


# Models

def test_unknown_bundle(say):
    assert "demo" in say("hello", "--bundle", "dmo")


def test_a_checkpoint_that_is_truncated_or_of_another_model(say, checkpoints):
    file = checkpoints / "autoregressive.pth"
    for content in (file.read_bytes()[:100_000], (checkpoints / "clvp2.pth").read_bytes()):
        file.write_bytes(content)
        assert "autoregressive.pth" in say("hello", "-v", "random", "--checkpoints", checkpoints)


class Malice:
    """Unpickling this makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_malicious_files_are_refused_and_not_run(say, checkpoints, tmp_path):
    trap = tmp_path / "sprung"
    torch.save({"mel_head.bias": Malice(trap)}, checkpoints / "autoregressive.pth")
    assert "autoregressive.pth" in say("hello", "-v", "random", "--checkpoints", checkpoints)
    (tmp_path / "voice.pth").write_bytes(pickle.dumps(Malice(trap)))
    assert "voice.pth" in say("hello", "-v", tmp_path / "voice.pth")
    assert not trap.exists()
