"""Test `ane import` and `ane say` with FastSpeech checkpoints, as a user runs them."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

import ane
from ane.backends.torch.backend import TorchBackend
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import sha256_of
from ane.cli import main
from tests.fastspeech_files import write_fastspeech, write_hifigan
from tests.tables import rows


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A working folder with checkpoint.pt and generator.pth."""
    write_fastspeech(tmp_path / "checkpoint.pt")
    write_hifigan(tmp_path / "generator.pth")
    return tmp_path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those checkpoints and the bundle that they become; tests must not change them."""
    folder = tmp_path_factory.mktemp("fastspeech")
    checkpoint, vocoder = write_fastspeech(folder / "checkpoint.pt"), write_hifigan(folder / "generator.pth")
    assert main(["import", str(checkpoint), "--vocoder", str(vocoder), "-o", str(folder / "bundle")]) == 0
    return folder


@pytest.fixture
def bundle(folder: Path, tmp_path: Path) -> Path:
    """A bundle next to its checkpoints in the working folder."""
    return shutil.copytree(folder, tmp_path, dirs_exist_ok=True) / "bundle"


def test_import_and_say_in_processes_of_their_own(files, python):
    for command in (
        ["import", "checkpoint.pt", "--vocoder", "generator.pth", "-o", "./bundle"],
        ["say", "Hello, world.", "--bundle", "./bundle", "--speed", "1.2", "-o", "x.wav"],
    ):
        result = subprocess.run(
            [python, "-m", "ane", *command], cwd=files, capture_output=True, text=True, timeout=300, check=False
        )
        assert result.returncode == 0, result.stderr
    assert "speed 1.2" in result.stderr
    assert "Griffin-Lim" not in result.stderr
    info = soundfile.info(files / "x.wav")
    assert (info.samplerate, info.frames % 256) == (22050, 0)
    assert info.frames > 0


def test_a_vocoder_with_the_name_of_the_checkpoint_keeps_its_hash(files):
    (files / "sub").mkdir()
    (files / "generator.pth").rename(files / "sub" / "checkpoint.pt")
    assert main(["import", "checkpoint.pt", "--vocoder", "sub/checkpoint.pt", "-o", "./bundle"]) == 0
    assert Bundle(files / "bundle").manifest.source["files"] == {
        "checkpoint.pt": sha256_of(files / "checkpoint.pt"),
        "vocoder/checkpoint.pt": sha256_of(files / "sub" / "checkpoint.pt"),
    }
    assert "tokenizer" not in json.loads((files / "bundle" / "bundle.json").read_text())


@pytest.mark.parametrize("name", ["checkpoint.pt", "weights.bin"])
def test_a_checkpoint_is_known_by_its_content(files, name, succeed):
    (files / "checkpoint.pt").rename(files / name)
    succeed("import", name, "-o", "./bundle")
    assert ane.load("./bundle").model.family.name == "fastspeech"


def test_without_a_vocoder_a_line_says_how_to_add_one_and_padding_is_chosen_at_import(files, succeed):
    (files / "padding.json").write_text('{"padding": "published"}')
    succeed("import", "checkpoint.pt", "-o", "./bundle", "--precision", "fp16", "--config", "padding.json")
    assert "import the model again with --vocoder" in succeed("say", "Hello.", "--bundle", "./bundle", "-o", "x.wav")
    assert Bundle(files / "bundle").config("fastspeech").padding == "published"


def test_lines_and_json(bundle, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("One line.\n\nAnother line.\n", encoding="utf-8")
    assert main(["say", "-f", "text.txt", "--lines", "--json", "--bundle", "./bundle", "-o", "x.wav"]) == 0
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [fact["chunks"] for fact in facts] == [["One line."], ["Another line."]]
    assert facts[0]["speed"] == 1.0
    assert not {"seed", "voice", "codes", "preset"} & set(facts[0])
    assert (tmp_path / "x-3.wav").is_file()


@pytest.mark.parametrize(("command", "fault"), rows(__file__, "refusals_of_models.tsv", "FastSpeech"))
def test_what_cannot_be_done_is_one_line(bundle, complain, command, fault):
    assert fault in complain(*command.split())


def test_a_book_is_narrated(bundle, tmp_path, succeed, complain):
    (tmp_path / "book.txt").write_text("One line.\n\nAnother line.\n", encoding="utf-8")
    command = ["read", "book.txt", "-o", "book.wav", "--bundle", "./bundle", "--speed", "1.1"]
    assert main(command) == 0
    assert soundfile.info("book.wav").samplerate == 22050
    assert "0 of 2 chunks spoken now" in succeed(*command)
    assert "--voice has no effect on FastSpeech models" in complain(*command, "--voice", "michael")


def test_lines_share_passes(bundle, tmp_path, monkeypatch):
    """Nine lines take two calls of each side of FastSpeech, of eight lines and of one, and sound as each does alone."""
    lines = [f"This is line {number}." for number in range(9)]
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    calls, run = [], TorchBackend.run

    def counted(self, stage, **inputs):
        calls.append((stage, len(next(iter(inputs.values())))))
        return run(self, stage, **inputs)

    monkeypatch.setattr(TorchBackend, "run", counted)
    assert main(["say", "-f", "text.txt", "--lines", "--bundle", "./bundle", "-o", "x.wav"]) == 0
    assert [call for call in calls if call[0] != "vocoder"] == [("text", 8), ("text", 1), ("mel", 8), ("mel", 1)]
    assert main(["say", lines[3], "--bundle", "./bundle", "-o", "alone.wav"]) == 0
    together, alone = (soundfile.read(tmp_path / name)[0] for name in ("x-4.wav", "alone.wav"))
    assert len(together) == len(alone)
    assert np.abs(together - alone).max() < 1e-3
