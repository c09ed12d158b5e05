"""Test ``ane import`` from a folder: where it writes the bundle, its output, and which files it leaves unchanged.

tests/bundles/test_hub.py tests imports from a hub.
"""

import hashlib
from pathlib import Path

import pytest

from ane.bundles.bundle import Bundle
from tests.imported import imported

pytestmark = pytest.mark.usefixtures("directory")


@pytest.fixture
def directory(golden_copy: Path) -> Path:
    """The folder "checkpoints" in the working folder."""
    return golden_copy


def test_a_directory_becomes_a_bundle_that_loads(succeed, directory):
    out = succeed("import", "checkpoints", "-o", "./out")
    bundle, checkpoints = Bundle("out"), imported(directory)
    bundle.verify()
    assert bundle.networks == checkpoints.networks
    assert bundle.precision == "fp32", "unless another is chosen"
    assert bundle.manifest.source == {
        "files": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in directory.glob("*.pth")
            if path.name not in ("classifier.pth", "cvvp.pth")
        },
        "decoder_md5": hashlib.md5((directory / "autoregressive.pth").read_bytes()).hexdigest(),
    }
    assert "Use it with --bundle ./out" in out


def test_networks_and_left_out_entries_are_reported(succeed):
    out = succeed("import", "checkpoints", "-o", "./out", "--precision", "fp16")
    rows = {
        cells[0]: cells[1:]
        for line in out.splitlines()
        if "│" in line
        for cells in [[cell.strip() for cell in line.strip("│").split("│")]]
    }
    stated = Bundle("out").manifest.networks
    assert rows.keys() == {*stated, "all"}
    for name, network in stated.items():
        assert rows[name] == [f"{network.parameters:,}", f"{network.weights.bytes / 1e6:.1f}"]
    left_out = [line for line in out.splitlines() if line.startswith("Left out")]
    assert len(left_out) == 1
    layers = stated["autoregressive"].config.layers
    assert f"autoregressive.pth: {layers} × gpt.h.N.attn.bias, {layers} × gpt.h.N.attn.masked_bias" in left_out[0]
    assert "diffusion_decoder.pth: code_embedding.weight" in left_out[0]
