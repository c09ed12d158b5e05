"""Give each test of a command a separate home and working folder, and a terminal that breaks no lines."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ane.cli import main

RATE = 22050
Complain = Callable[..., str]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    for variable in ("ANE_VOICE", "ANE_BUNDLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def complain(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Complain:
    """``complain(*arguments)``: the one line of a command that must fail with status 1 and write no file."""

    def run(*arguments: object) -> str:
        before = files(tmp_path)
        capsys.readouterr()
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
def succeed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``succeed(*arguments)``: all that a command prints, which must succeed."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 0
        return "".join(capsys.readouterr())

    return run


@pytest.fixture
def speech() -> np.ndarray:
    """A second of a buzzing tone at 22050 Hz."""
    t = np.arange(RATE) / RATE
    return (0.3 * np.sin(2 * np.pi * 140 * t) * np.sin(2 * np.pi * 3 * t)).astype(np.float32)


@pytest.fixture
def say(complain: Complain) -> Complain:
    """``say(...)``: what `ane say` complains of, on the small Tortoise unless the arguments name a model."""

    def run(*arguments: object) -> str:
        model = [] if "--bundle" in map(str, arguments) else ["--bundle", "demo"]
        return complain("say", *model, "--preset", "fastest", "--seed", "1", "-o", "out.wav", *arguments)

    return run


@pytest.fixture
def golden_copy(golden_checkpoints: Path, golden_config: Path, tmp_path: Path) -> Path:
    """A writable copy of tiny official-layout checkpoints."""
    directory = tmp_path / "checkpoints"
    shutil.copytree(golden_checkpoints, directory, copy_function=shutil.copyfile)
    shutil.copyfile(golden_config, directory / "config.json")
    return directory
