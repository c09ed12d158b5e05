"""Provide a folder in which tests run the commands of the documentation, with the files that a reader would have."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.preloaded import EXECUTABLE, write_client
from tests.random_model import sized, write_random_bundle

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def ane_command(preloaded_server: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH in which `ane` and `python` are clients of the preloaded server."""
    folder = tmp_path_factory.mktemp("bin")
    write_client(folder / "python", preloaded_server)
    write_client(folder / "ane", preloaded_server, ("-m", "ane"), one_network=True)
    return folder


@pytest.fixture
def reader(tmp_path: Path, ane_command: Path, request: pytest.FixtureRequest) -> tuple[Path, dict[str, str]]:
    """The working directory and the environment of somebody who follows a page.

    The embedded voice stands for the official weights, on the page that converts to ONNX a random one: it is the bundle
    `tortoise`.
    """
    home, folder = tmp_path / "home", tmp_path / "work"
    folder.mkdir()
    if request.node.callspec.params["page"].stem == "onnx":  # the ONNX exporter takes seconds for each layer
        with sized(stop_bias=4.0, autoregressive={"layers": 1}):  # and a bias of 4 ends the speech after a second
            write_random_bundle(home / "bundles" / "tortoise")
    else:
        shutil.copytree(ROOT / "ane" / "demo" / "bundle", home / "bundles" / "tortoise")
    (folder / "clips").mkdir()
    rng = np.random.default_rng(0)
    for number in (1, 2):
        soundfile.write(folder / "clips" / f"{number}.wav", 0.1 * rng.standard_normal(2 * 22050), 22050)
    (folder / "book.txt").write_text("It was late. The lamp was out, and the door stood open.\n")
    (folder / "lines.txt").write_text("The first line.\nThe second line.\n")
    path = os.pathsep.join([str(ane_command), str(Path(sys.executable).parent), os.environ["PATH"]])
    return folder, os.environ | {
        "ANE_HOME": str(home),
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        EXECUTABLE: str(ane_command / "python"),
    }
