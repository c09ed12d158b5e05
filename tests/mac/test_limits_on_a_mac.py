"""Test limits that only a real Mac has: MPS, playback, the cache, 4-bit weights, first loads."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ane.backends import load_backend
from ane.bundles.bundle import Bundle
from ane.system.decibels import snr_db
from converters.conversion import convert
from tests.random_model import random_model, write_random_bundle
from tests.small_bundle import OPTIONS

pytestmark = pytest.mark.skipif(
    sys.platform != "darwin", reason="Core ML runs on macOS only; on a Mac (macOS 15 or newer): pytest tests/mac -rA"
)


@pytest.fixture(scope="module")
def four_bit(tmp_path_factory) -> Path:
    """A bundle with HiFi-GAN and CLVP, the latter with 4-bit weights."""
    pytest.importorskip("sklearn", reason="4-bit weights need scikit-learn: pip install '.[palettes]'")
    folder = tmp_path_factory.mktemp("bundles")
    write_random_bundle(folder / "plain")
    return convert(
        Bundle(folder / "plain"), folder / "small", [replace(OPTIONS, precision="4bit")], ["clvp", "hifigan"]
    ).path


@pytest.fixture
def ane(tmp_path, monkeypatch):
    """Run a command: its exit status, and all that it prints."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))

    def run(*arguments) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "ane", *map(str, arguments)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1800,
            check=False,
        )
        return done.returncode, done.stdout

    return run


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="torch has no MPS here")
def test_torch_on_mps_renders_more_than_2_73_seconds():
    """Before macOS 15.1 MPS refuses rows above 65,536 samples, and the vocoder runs on the CPU."""
    rng = np.random.default_rng(0)
    inputs = {
        "frames": rng.standard_normal((1, 64, 300), dtype=np.float32),
        "conditioning": rng.standard_normal((1, 64), dtype=np.float32),
    }
    expected, found = (
        load_backend(f"torch:{device}", random_model()).run("hifigan", **inputs) for device in ("cpu", "mps")
    )
    assert expected.shape[-1] > 65536
    assert snr_db(expected, found) > 40


def test_a_first_load_is_announced_once_and_its_compiled_model_is_listed(ane, four_bit):
    status, printed = ane("verify", "--bundle", four_bit, "--against", "coreml", "--networks", "hifigan")
    assert status == 0, printed
    assert "for the first time" in printed
    assert (
        "for the first time"
        not in ane("verify", "--bundle", four_bit, "--against", "coreml", "--networks", "hifigan")[1]
    )
    status, printed = ane("cache", "list")
    assert status == 0, printed
    assert re.search(r"compiled models\W+1\b", printed)


def test_a_stream_is_played_without_other_programs(ane, four_bit, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")  # folders without ffmpeg and sox
    status, printed = ane("say", "Hi.", "--bundle", four_bit, "--preset", "fastest", "--seed", "0", "--stream")
    if status and "no sound device" in printed:
        pytest.skip("there is no sound device")
    assert status == 0, printed


def test_four_bit_weights_are_right_on_this_mac(ane, four_bit):
    """apple/coremltools#2716: crashes, and wrong values."""
    status, printed = ane("verify", "--bundle", four_bit, "--against", "coreml", "--networks", "clvp")
    assert status == 0, printed
