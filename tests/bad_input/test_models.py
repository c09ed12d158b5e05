"""A damaged, malicious or unsuitable model or voice file is one clear line."""

import pickle
import shutil
from pathlib import Path

import torch


def test_unknown_bundle(say):
    assert "demo" in say("hello", "--bundle", "dmo")


def test_truncated_checkpoint(say, checkpoints):
    file = checkpoints / "autoregressive.pth"
    file.write_bytes(file.read_bytes()[:100_000])
    assert "autoregressive.pth" in say("hello", "-v", "random", "--checkpoints", checkpoints)


def test_checkpoint_of_another_model(say, checkpoints):
    shutil.copyfile(checkpoints / "clvp2.pth", checkpoints / "autoregressive.pth")
    line = say("hello", "-v", "random", "--checkpoints", checkpoints)
    assert "autoregressive.pth" in line


class Malice:
    """Unpickling this makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_malicious_checkpoint_is_refused_and_not_run(say, checkpoints, tmp_path):
    trap = tmp_path / "sprung"
    torch.save({"mel_head.bias": Malice(trap)}, checkpoints / "autoregressive.pth")
    assert "autoregressive.pth" in say("hello", "-v", "random", "--checkpoints", checkpoints)
    assert not trap.exists()


def test_malicious_voice_is_refused_and_not_run(say, tmp_path):
    trap = tmp_path / "sprung"
    (tmp_path / "voice.pth").write_bytes(pickle.dumps(Malice(trap)))
    assert "voice.pth" in say("hello", "-v", tmp_path / "voice.pth")
    assert not trap.exists()


def test_voice_of_another_model(say, tmp_path, random_bundle):
    torch.save((torch.zeros(1, 1024), torch.zeros(1, 2048)), tmp_path / "wide.pth")
    line = say("hello", "-v", tmp_path / "wide.pth", "--bundle", random_bundle)
    assert "1024" in line
    assert "64" in line
