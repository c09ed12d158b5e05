"""Test that commands open only regular files of limited size, and report a damaged file in one line."""

import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ane.bundles.opening import demo_bundle
from ane.cli import main
from ane.commands import say_text
from ane.system.file_gate import open_regular, read_regular
from ane.text.cast import Cast, read_cast
from ane.text.user_lexicon import MAX_LEXICON

PIPES = [
    ("say hello --lexicon pipe -o x.wav", "cannot read the lexicon pipe: it is not a regular file"),
    ("say hello --lexicon /dev/zero -o x.wav", "cannot read the lexicon /dev/zero: it is not a regular file"),
    ("say hello --bundle demo --cast pipe -o x.wav", "cannot read the cast pipe: it is not a regular file"),
    ("say hello --bundle demo --cast /dev/zero -o x.wav", "cannot read the cast /dev/zero: it is not a regular file"),
    ("say hello --bundle demo -v ./pipe -o x.wav", "pipe: is not a regular file"),
    ("say hello --bundle demo -v folder/pipe.wav -o x.wav", "pipe.wav: is not a regular file"),
    ("say hello --bundle demo -v folder -o x.wav", "has neither clips"),
    ("say hello --bundle ./piped -o x.wav", "tokenizer.json"),
    ("read book.md --lexicon pipe -o x.wav", "cannot read the lexicon pipe: it is not a regular file"),
    ("read book.md --cover pipe -o x.mp3", "cannot read pipe: it is not a regular file"),
    ("transcribe pipe --model pipe", "pipe"),
    ("import pipe -o ./out", "pipe"),
    ("import checkpoints -o ./out --config pipe", "cannot read pipe: it is not a regular file"),
    ("import checkpoints -o ./out --expect pipe", "cannot read pipe: it is not a regular file"),
    ("verify --package p.mlpackage --inputs pipe", "cannot read pipe as an .npz file: it is not a regular file"),
    ("voices add folder/pipe.wav -o me --bundle demo", "is not a regular file"),
]


@pytest.mark.timeout(60)  # opening a pipe waits for ever
@pytest.mark.parametrize(("command", "message"), PIPES, ids=[command for command, _ in PIPES])
def test_a_named_pipe_and_a_device_are_refused_at_once(complain, golden_copy, command, message):
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("p.mlpackage").mkdir()
    os.mkfifo("folder/pipe.wav")
    Path("folder/weights.pt").write_bytes(b"PK")
    Path("book.md").write_text("# One\n\nHello.\n")
    shutil.copytree(demo_bundle("demo"), "piped")
    Path("piped/tokenizer.json").unlink()
    os.mkfifo("piped/tokenizer.json")
    assert message in complain(*command.split())


@pytest.mark.timeout(10)
def test_a_file_that_becomes_a_pipe_after_it_was_looked_at_is_not_waited_for(workplace, monkeypatch):
    os.mkfifo("pipe")
    Path("text").write_text("a")
    monkeypatch.setattr("ane.system.file_gate.check_regular", lambda *_: None)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular("pipe")
    with pytest.raises(OSError, match="it has more than 0 MB"):
        read_regular("text", 0)
    assert read_regular("text", 1) == b"a"


def test_large_files_are_refused_before_they_are_read(complain, workplace):
    with Path("large").open("wb") as file:
        file.truncate(MAX_LEXICON + 1)
    assert "cannot read the lexicon large: it has more than 8 MB" in complain(
        "say", "a", "--lexicon", "large", "-o", "x.wav"
    )
    assert "it has more than 4 MB" in complain("say", "a", "--cast", "large", "--bundle", "demo", "-o", "x.wav")


@pytest.mark.parametrize("piped", [False, True])
def test_a_text_without_end_is_refused_where_it_is_longer_than_say_speaks(complain, workplace, monkeypatch, piped):
    monkeypatch.setattr(say_text, "MAX_SPOKEN", 1 << 20)
    if piped:
        monkeypatch.setattr(sys, "stdin", open("/dev/zero"))  # noqa: SIM115 (closed with the test's process)
    line = complain("say", "-f", "-" if piped else "/dev/zero", "-o", "x.wav")
    assert f"the text from {'standard input' if piped else '/dev/zero'} has more than 1 MB" in line
    assert "ane read" in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("narrator = " + "9" * 5000, "cast.toml is not TOML in UTF-8"),
        ("narrator = " + "[" * 5000, "cast.toml"),
        ("narrator = 1\n", "cast.toml: narrator must be"),
    ],
)
def test_a_damaged_cast_is_one_line(complain, workplace, content, message):
    Path("cast.toml").write_text(content)
    assert message in complain("say", "hello", "--bundle", "demo", "--cast", "cast.toml", "-o", "x.wav")


def test_quotations_cost_the_same_time_whatever_the_size_of_the_cast():
    """Prepared again for each quotation, four times as many names and lines would take four times as long."""
    text = [f'"Some words {number} here," said Name{number}. "And more," said Nobody{number}.' for number in range(200)]

    def seconds(count: int) -> float:
        names = [f"Speaker{number} Name{number}" for number in range(count)]
        cast = Cast(
            speakers=dict.fromkeys(names, "random"),
            lines={f"Line number {number} says": names[number] for number in range(count)},
        )
        cast.quoted(text[:1])
        start = time.process_time()
        found = cast.quoted(text)
        taken = time.process_time() - start
        assert [line.speaker for line in found[:2]] == ["Speaker0 Name0", "Nobody0"]
        return taken

    assert min(seconds(4000) for _ in range(3)) < 2.5 * min(seconds(1000) for _ in range(3))


def test_the_lines_of_a_cast_are_found_by_their_beginnings_in_their_order(tmp_path):
    path = tmp_path / "cast.toml"
    path.write_text('[speakers]\nAnn = "a"\nBob = "b"\n[lines]\n"I have been here" = "Bob"\n"I have" = "Ann"\n')
    found = read_cast(path).quoted(['"I have been here before," he said.', '"I have it," he said.', '"Here," he said.'])
    assert [(line.speaker, line.doubtful) for line in found[:2]] == [("Bob", False), ("Ann", False)]
    assert found[2].rule != found[0].rule


@pytest.mark.parametrize("content", ["header", "member", "empty", "text"])
def test_a_damaged_archive_of_arrays_is_one_line(complain, workplace, content):
    Path("p.mlpackage").mkdir()
    np.savez("a.npz", x=np.zeros(4))
    data = Path("a.npz").read_bytes()
    if content == "header":
        data = data.replace(b"'descr'", b"'de(cr'")
    elif content == "member":
        import zipfile

        with zipfile.ZipFile("a.npz", "w") as archive:
            archive.writestr("x.npy", b"no array")
        data = Path("a.npz").read_bytes()
    Path("a.npz").write_bytes({"empty": b"", "text": b"hello"}.get(content, data))
    assert "cannot read a.npz" in complain("verify", "--package", "p.mlpackage", "--inputs", "a.npz")


def test_a_voice_in_a_manifest_is_a_name(complain, workplace):
    shutil.copytree(demo_bundle("demo"), "bundle")
    manifest = Path("bundle/bundle.json")
    for name in ("../../etc/passwd", "/etc/passwd", "a/b", ".hidden"):
        content = manifest.read_text().replace('"default_voice": "', f'"default_voice": "{name}", "former": "', 1)
        Path("bundle/bundle.json").write_text(content)
        line = complain("say", "hello", "--bundle", "./bundle", "-o", "x.wav")
        assert "default_voice" in line
        assert "must be the name of a voice" in line
        shutil.copy(demo_bundle("demo") / "bundle.json", manifest)
    assert main(["voices", "list", "--bundle", "./bundle"]) == 0
