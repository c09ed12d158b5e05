"""Test `ane import` and `ane say` with FastSpeech checkpoints, as a user runs them."""

import json
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


@pytest.mark.parametrize(("command", "fault"), rows(__file__, "refusals_of_models.tsv", "FastSpeech"))
def test_what_cannot_be_done_is_one_line(fastspeech, complain, command, fault):
    assert fault in complain(*command.split())


def test_lines_share_passes(fastspeech, tmp_path, monkeypatch):
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
    assert (len(together), len(alone) % 256) == (len(alone), 0)
    assert np.abs(together - alone).max() < 1e-3
