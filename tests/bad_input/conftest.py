"""Runs commands that must fail: with status 1, one clear line, and no file written."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ane.cli import main

RATE = 22050


@pytest.fixture
def complain(capsys, tmp_path, monkeypatch):
    """``complain(*arguments)``: run the command, check that it fails by the rules, return the line it prints."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    workplace = tmp_path / "work"
    workplace.mkdir(exist_ok=True)
    monkeypatch.chdir(workplace)

    def run(*arguments: str) -> str:
        before = files(tmp_path)
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if line.startswith("ane: error:")]
        assert code == 1
        assert len(lines) == 1, err
        assert err.splitlines()[-1] == lines[0]
        assert "Traceback" not in err
        assert out == ""
        assert files(tmp_path) == before
        return lines[0]

    return run


def files(directory: Path) -> set[Path]:
    """All files except the cache's, which may change at any time."""
    return {path for path in directory.rglob("*") if path.is_file() and "cache" not in path.parts}


@pytest.fixture
def speech() -> np.ndarray:
    """A second of a buzzing tone at 22050 Hz."""
    t = np.arange(RATE) / RATE
    return (0.3 * np.sin(2 * np.pi * 140 * t) * np.sin(2 * np.pi * 3 * t)).astype(np.float32)


@pytest.fixture
def say(complain):
    """``say(...)``: `ane say` with the fastest preset, a seed and a file to write."""
    return lambda *arguments: complain("say", *tortoise(arguments), "--preset", "fastest", "--seed", "1", "-o",
                                       "out.wav", *arguments)


def tortoise(arguments: tuple) -> list[str]:
    """The flag for the small Tortoise, unless the arguments name a model."""
    return [] if {"--bundle", "--checkpoints"} & set(map(str, arguments)) else ["--bundle", "demo"]


@pytest.fixture
def checkpoints(golden_checkpoints, golden_config, tmp_path) -> Path:
    """A writable copy of tiny official-layout checkpoints."""
    directory = tmp_path / "checkpoints"
    shutil.copytree(golden_checkpoints, directory, copy_function=shutil.copyfile)
    shutil.copyfile(golden_config, directory / "config.json")
    return directory
