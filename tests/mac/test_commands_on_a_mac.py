"""Speaking on Core ML itself; on the stand-in it is tested in tests/commands/test_on_a_mac.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_bundle import write_small_bundle

pytestmark = pytest.mark.skipif(sys.platform != "darwin",
                                reason="Core ML runs on macOS only; on a Mac (macOS 15 or newer): pytest tests/mac -rA")


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_small_bundle(tmp_path_factory.mktemp("bundles"))


@pytest.fixture
def ane(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))

    def run(*arguments) -> str:
        result = subprocess.run([sys.executable, "-m", "ane", *map(str, arguments)], cwd=tmp_path, capture_output=True,
                                text=True, timeout=1800, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def test_auto_speaks(ane, small, tmp_path):
    facts = json.loads(ane("say", "Hi.", "--bundle", small, "--preset", "fastest", "--seed", "0", "--json", "-o",
                           "hi.wav"))
    assert facts["backend"].startswith("coreml")
    assert (tmp_path / "hi.wav").stat().st_size > 1000
