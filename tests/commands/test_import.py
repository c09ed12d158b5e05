"""Test ``ane import`` from a folder: where it writes the bundle, its output, and which files it leaves unchanged.

tests/bundles/test_hub.py tests imports from a hub.
"""

import hashlib
import json
from pathlib import Path

import pytest

from ane.bundles import bundle_names, open_model
from ane.bundles.bundle import Bundle
from tests.imported import imported
from tests.tables import rows

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


def test_a_bare_name_is_stored_where_the_bundle_flag_finds_it(succeed, workplace):
    succeed("import", "checkpoints", "-o", "mine", "--name", "My voice")
    assert (workplace / "home" / "bundles" / "mine" / "bundle.json").is_file()
    assert bundle_names() == ["demo", "heart", "mine"]
    assert open_model("mine").name == "My voice"


def test_random_weights_are_reported(succeed, directory):
    assert "the weights are random" not in succeed("import", "checkpoints", "-o", "./out")
    stated = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(stated | {"trained": False}))
    assert "the weights are random" in succeed("import", "checkpoints", "-o", "./random")
    assert not Bundle("random").trained


def test_files_are_compared_with_the_expected_hashes(succeed, complain, directory):
    recorded = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("r*.pth")}
    Path("good.json").write_text(json.dumps(recorded))
    Path("bad.json").write_text(json.dumps(recorded | {"clvp2.pth": "0" * 64}))
    succeed("import", "checkpoints", "-o", "./out", "--expect", "good.json")
    succeed("import", "checkpoints", "-o", "./again", "--expect", "out/bundle.json")
    line = complain("import", "checkpoints", "-o", "./no", "--expect", "bad.json")
    assert "clvp2.pth has SHA-256" in line
    assert f"bad.json records {'0' * 64}" in line


@pytest.mark.parametrize(("arguments", "message"), rows(__file__, "refusals_of_models.tsv", "imports"))
def test_a_refused_import_prints_one_line_and_changes_no_file(complain, arguments, message):
    Path("letters/deep").mkdir(parents=True)
    Path("letters/letter.txt").write_text("x")
    assert message in complain("import", *arguments.split())
