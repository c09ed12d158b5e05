"""Test that one clear line rejects bad texts, options, files and foreign checkpoints, and reports stopped runs."""

import io
import re
import shlex
import sys
from pathlib import Path

import pytest
import soundfile
import torch

from ane.cli import main
from tests.commands.conftest import RATE

LONG = "n" * 300


def table(name: str) -> list[tuple[str, str]]:
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines if not line.startswith("#")]


def words(command: str) -> list[str]:
    if command.startswith("serve"):
        pytest.importorskip("fastapi", reason="needs the extra server")
    return [word.replace("LONG", LONG).replace("\\n", "\n") for word in shlex.split(command)]


@pytest.mark.parametrize(("command", "fault"), table("usage.tsv"))
def test_wrong_usage_is_named(capsys, command, fault):
    with pytest.raises(SystemExit, match="2"):
        main(words(command))
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize(("command", "fault"), table("refusals.tsv"))
def test_what_cannot_be_done_is_one_line(complain, monkeypatch, speech, command, fault):
    monkeypatch.delenv("ANE_TOKEN", raising=False)
    Path("book.md").write_text("# One\n\nHello there.\n", encoding="utf-8")
    soundfile.write("clip.wav", speech, RATE)
    Path("folder.wav").mkdir()
    parts = map(re.escape, fault.replace("LONG", LONG).split(" … "))
    assert re.search(".*".join(parts), complain(*words(command)))


def test_no_text(complain, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "no text given" in complain("say", "-o", "out.wav")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert "no text given: name TEXT or -f FILE, or pipe the text in" in complain("say", "-o", "out.wav")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"layer.weight": torch.zeros(2)}, "is not a checkpoint that this version can read: it holds layer.weight. "),
        ({letter: torch.zeros(2) for letter in "abcdefgh"}, "it holds a, b, c, d, e, f and 2 more. A FastSpeech"),
        ({"epoch": 3, "optimizers": []}, "is a trainer's state, and its weights are in another file"),
        ([1, 2], "contains a list, not a state dict"),
        (torch.zeros(3), "contains a Tensor, not a state dict"),
        ({"model_state_dict": {}}, "Whisper checkpoint has dims and model_state_dict"),
        (b"junk", "is not a PyTorch checkpoint"),
    ],
)
def test_a_checkpoint_of_no_model_that_is_known(complain, workplace, content, fault):
    """tests/models has those that are incomplete or damaged."""
    if isinstance(content, bytes):
        (workplace / "foreign.pt").write_bytes(content)
    else:
        torch.save(content, workplace / "foreign.pt")
    assert fault in complain("import", "foreign.pt", "-o", "./out")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device: CUDA_VISIBLE_DEVICES= pytest tests/commands")
def test_device_that_is_not_there(complain):
    assert "torch:cpu" in complain("say", "hello", "--bundle", "demo", "--backend", "torch:cuda", "-o", "out.wav")
