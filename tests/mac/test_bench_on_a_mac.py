"""`ane bench` on Core ML itself; the rest is tested in tests/bench."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ane.bundles.bundle import Bundle
from converters.conversion import convert
from converters.coreml.package import CoreMLOptions

pytestmark = pytest.mark.skipif(sys.platform != "darwin",
                                reason="Core ML runs on macOS only; on a Mac (macOS 15 or newer): pytest tests/mac -rA")


@pytest.fixture(scope="module")
def converted(random_bundle, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "converted"
    buckets = {"prefill": (64,), "step": (1088,), "clvp_text": (64,), "clvp_speech": (128,)}
    convert(Bundle(random_bundle), path, [CoreMLOptions(lanes=(2,), buckets=buckets)], ["autoregressive", "clvp"])
    return path


def test_every_function_is_measured_on_all_compute_units_and_one_is_chosen(converted, tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))

    def run(*arguments) -> str:
        result = subprocess.run([sys.executable, "-m", "ane", *arguments, "--bundle", str(converted)], cwd=tmp_path,
                                capture_output=True, text=True, timeout=1800, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    found = json.loads(run("bench", "--runs", "3", "--preset", "fastest", "--text", "Hi.", "-o", "-"))
    core_ml = [row for row in found["rows"] if row["competitor"] == "coreml" and row["what"] != "sentence"]
    assert {row["settings"]["compute_units"] for row in core_ml} == {"CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE"}
    on_cpu = [row for row in core_ml if row["settings"]["compute_units"] == "CPU_ONLY"]
    assert all(row["error"] is None and row["value"]["median"] > 0 for row in on_cpu)
    assert len([row for row in core_ml if "compile_s" in row["figures"]]) == 2
    spoken = [row["competitor"] for row in found["rows"] if row["what"] == "sentence"]
    assert {re.split("[:, ]", competitor)[0] for competitor in spoken} == {"coreml", "torch"}
    assert found["chosen"]["backend"].partition(":")[0] in ("coreml", "torch")
