"""Test `ane import` and `ane say` with FastSpeech checkpoints, as a user runs them."""

import json
from pathlib import Path

import numpy as np
import soundfile

from ane.backends.torch.backend import TorchBackend
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import sha256_of
from ane.cli import main


def test_a_vocoder_with_the_name_of_the_checkpoint_keeps_its_hash(fastspeech):
    (fastspeech / "sub").mkdir()
    (fastspeech / "generator.pth").rename(fastspeech / "sub" / "checkpoint.pt")
    assert main(["import", "checkpoint.pt", "--vocoder", "sub/checkpoint.pt", "-o", "./other"]) == 0
    assert Bundle("other").manifest.source["files"] == {
        "checkpoint.pt": sha256_of(fastspeech / "checkpoint.pt"),
        "vocoder/checkpoint.pt": sha256_of(fastspeech / "sub" / "checkpoint.pt"),
    }
    assert "tokenizer" not in json.loads(Path("other/bundle.json").read_text())


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
