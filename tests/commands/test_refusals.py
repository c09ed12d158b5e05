"""Test that one clear line rejects bad texts, options, files and foreign checkpoints, and reports stopped runs."""

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
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


def test_text_over_the_decoders_limit_with_splitting_off(say):
    line = say("--no-split", "several thousand words and more " * 60)
    assert "tokens" in line
    assert "allow it to be split" in line


def test_text_that_is_not_in_utf_8(say, tmp_path):
    assert "not text in UTF-8" in say("hello \ud800")
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    assert "UTF-8" in say("-f", tmp_path / "latin.txt")


def test_no_text(complain, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "no text given" in complain("say", "-o", "out.wav")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert "no text given: name TEXT or -f FILE, or pipe the text in" in complain("say", "-o", "out.wav")


def test_a_clip_that_cannot_be_used_is_named(say, speech, tmp_path):
    """What else reading a clip refuses is in tests/audio/test_reader.py."""
    soundfile.write(tmp_path / "silent.wav", 0 * speech, RATE, subtype="FLOAT")
    assert "silent.wav: is silent" in say("hello", "-v", tmp_path / "silent.wav")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"layer.weight": torch.zeros(2)}, "is not a checkpoint that this version can read: it holds layer.weight. "),
        ({letter: torch.zeros(2) for letter in "abcdefgh"}, "it holds a, b, c, d, e, f and 2 more. A FastSpeech"),
        ({"epoch": 3, "optimizers": []}, "is the state of a trainer, whose weights are in another file"),
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
def test_device_that_is_not_there(say):
    assert "torch:cpu" in say("hello", "--backend", "torch:cuda")


@pytest.mark.parametrize("command", [("plan",), ("verify",), ("say", "hello", "--backend", "mil", "-o", "x.wav")])
def test_a_home_that_is_not_a_folder_is_one_line(complain, monkeypatch, command):
    monkeypatch.setenv("ANE_HOME", "/dev/null")
    assert "set ANE_HOME to a folder that can be written" in complain(*command)


def test_a_home_that_is_not_a_folder_does_not_stop_torch(complain, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANE_HOME", "/dev/null")
    assert (
        main(["say", "hello", "--bundle=demo", "--preset=fastest", "--max-codes", "20", "-o", str(tmp_path / "a.wav")])
        == 0
    )


def test_a_disk_that_fills_up_leaves_the_old_file_and_no_temporary_files(tmp_path, python):
    """The process may write files of 4 KB at most, which fails in mid-write as a full disk does."""
    output = tmp_path / "out.wav"
    output.write_bytes(b"precious")
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "from ane.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [python, "-c", limited, "say", "hello", "--bundle=demo", "--preset=fastest", "-o", output],
        cwd=tmp_path,
        env=os.environ | {"ANE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "ane: error: cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert output.read_bytes() == b"precious"
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["out.wav"]


def test_ctrl_c_ends_the_run_at_once_and_writes_nothing(tmp_path, random_bundle):
    command = [
        sys.executable,
        "-m",
        "ane",
        "say",
        "hello there, this will take a while",
        "--candidates",
        "10000",
        "-o",
        tmp_path / "out.wav",
        "--bundle",
        random_bundle,
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"ANE_HOME": str(tmp_path / "home")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # a shell's background job would ignore it
    try:
        assert process.stderr is not None
        assert "random weights" in process.stderr.readline()  # the model is open, and the work begins
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("*out*"))
