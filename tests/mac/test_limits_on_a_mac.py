"""What only a Mac can show of its limits: MPS, playback, the cache, 4-bit weights, first loads."""

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
from tests.random_model import RandomModel, write_random_bundle
from tests.small_bundle import OPTIONS, write_small_bundle

pytestmark = pytest.mark.skipif(sys.platform != "darwin",
                                reason="Core ML runs on macOS only; on a Mac (macOS 15 or newer): pytest tests/mac -rA")


@pytest.fixture(scope="module")
def four_bit(tmp_path_factory) -> Path:
    """A bundle with HiFi-GAN and CLVP, the latter with 4-bit weights."""
    pytest.importorskip("sklearn", reason="4-bit weights need scikit-learn: pip install '.[palettes]'")
    folder = tmp_path_factory.mktemp("bundles")
    write_random_bundle(folder / "plain")
    return convert(Bundle(folder / "plain"), folder / "small", [replace(OPTIONS, precision="4bit")],
                   ["clvp", "hifigan"]).path


@pytest.fixture
def ane(tmp_path, monkeypatch):
    """Run a command: its exit status, and all that it prints."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))

    def run(*arguments) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-m", "ane", *map(str, arguments)], cwd=tmp_path, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=1800, check=False)
        return done.returncode, done.stdout

    return run


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="torch has no MPS here")
def test_torch_on_mps_renders_more_than_2_73_seconds():
    """Before macOS 15.1 MPS refuses rows above 65,536 samples, and the vocoder runs on the CPU."""
    rng = np.random.default_rng(0)
    inputs = {"frames": rng.standard_normal((1, 64, 300), dtype=np.float32),
              "conditioning": rng.standard_normal((1, 64), dtype=np.float32)}
    expected, found = (load_backend(f"torch:{device}", RandomModel()).run("hifigan", **inputs)
                       for device in ("cpu", "mps"))
    assert expected.shape[-1] > 65536
    assert snr_db(expected, found) > 40


@pytest.mark.parametrize("cache", ["io", "state"])
def test_two_decoders_stepped_in_turn_equal_each_alone(tmp_path_factory, tmp_path, monkeypatch, cache):
    """A cache belongs to its decoder: the functions that both call are loaded once."""
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    small = Bundle(write_small_bundle(tmp_path_factory.mktemp("bundles"), ["autoregressive"]))
    backend, width = load_backend("coreml", small, cache=cache), small.widths[0]

    def calls(seed: int):
        decoder, rng = backend.decoder(2, 12), np.random.default_rng(seed)
        yield decoder.prefill(rng.standard_normal((9, width), dtype=np.float32))[1]
        for length in range(12):
            yield decoder.step(rng.standard_normal((2, 1, width), dtype=np.float32), np.full(2, length))[1]

    alone = [list(calls(seed)) for seed in (0, 1)]
    for expected, found in zip(alone, zip(*zip(calls(0), calls(1), strict=True), strict=True), strict=True):
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_first_load_is_announced_once_and_its_compiled_model_is_listed(ane, four_bit):
    status, printed = ane("verify", "--bundle", four_bit, "--against", "coreml", "--networks", "hifigan")
    assert status == 0, printed
    assert "for the first time" in printed
    assert "for the first time" not in ane("verify", "--bundle", four_bit, "--against", "coreml", "--networks",
                                           "hifigan")[1]
    status, printed = ane("cache", "list")
    assert status == 0, printed
    assert re.search(r"compiled models\W+1\b", printed)


def test_a_stream_is_played_without_other_programs(ane, four_bit, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")         # no ffmpeg, no sox
    status, printed = ane("say", "Hi.", "--bundle", four_bit, "--preset", "fastest", "--seed", "0", "--stream")
    if status and "no sound device" in printed:
        pytest.skip("there is no sound device")
    assert status == 0, printed


def test_four_bit_weights_are_right_on_this_mac(ane, four_bit):
    """apple/coremltools#2716: crashes, and wrong values."""
    status, printed = ane("verify", "--bundle", four_bit, "--against", "coreml", "--networks", "clvp")
    assert status == 0, printed
