"""A folder to run the documentation's commands in, with what their reader would have."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.docs.preloaded import CLIENT

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def ane_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for PATH in which `ane` is a client of a preloaded server."""
    folder = tmp_path_factory.mktemp("bin")
    address = folder / "socket"
    server = subprocess.Popen([sys.executable, ROOT / "tests/docs/preloaded.py", address],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
    assert server.stdout.readline() == "ready\n"
    client = folder / "ane"
    client.write_text(CLIENT.format(python=sys.executable, socket=str(address)))
    client.chmod(0o755)
    yield folder
    server.stdin.close()
    server.wait(timeout=30)


@pytest.fixture
def reader(tmp_path: Path, ane_command: Path) -> tuple[Path, dict[str, str]]:
    """The working directory and the environment of somebody who follows a page.

    The embedded voice stands for the official weights: it is the bundle `tortoise`.
    """
    home, folder = tmp_path / "home", tmp_path / "work"
    folder.mkdir()
    shutil.copytree(ROOT / "ane" / "demo" / "bundle", home / "bundles" / "tortoise")
    (folder / "clips").mkdir()
    rng = np.random.default_rng(0)
    for number in (1, 2):
        soundfile.write(folder / "clips" / f"{number}.wav", 0.1 * rng.standard_normal(2 * 22050), 22050)
    (folder / "book.txt").write_text("It was late. The lamp was out, and the door stood open.\n")
    (folder / "lines.txt").write_text("The first line.\nThe second line.\n")
    path = os.pathsep.join([str(ane_command), str(Path(sys.executable).parent), os.environ["PATH"]])
    return folder, os.environ | {"ANE_HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
