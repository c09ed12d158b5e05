"""``ane import`` from a directory: where it writes the bundle, what it prints, what it leaves unchanged.

Imports from a hub are in test_hub.py.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ane.bundles import bundle_names, open_model
from ane.bundles.bundle import Bundle
from ane.cli import main
from ane.models.tortoise.checkpoints import CheckpointDirectory

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run(*arguments)``: `ane import` in a folder of its own; its status, output and errors, each on one line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "2000")

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["import", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_a_directory_becomes_a_bundle_that_loads(run, directory):
    status, out, err = run("checkpoints", "-o", "./out")
    assert (status, err) == (0, "")
    bundle, checkpoints = Bundle("out"), CheckpointDirectory(directory)
    bundle.verify()
    assert bundle.networks == checkpoints.networks
    assert bundle.precision == "fp32", "unless another is chosen"
    assert bundle.manifest.source == {"files": {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("*.pth")},
        "decoder_md5": hashlib.md5((directory / "autoregressive.pth").read_bytes()).hexdigest()}
    assert "Use it with --bundle ./out" in out


def test_networks_and_left_out_entries_are_reported(run):
    _, out, _ = run("checkpoints", "-o", "./out", "--precision", "fp16")
    rows = {cells[0]: cells[1:] for line in out.splitlines() if "│" in line
            for cells in [[cell.strip() for cell in line.strip("│").split("│")]]}
    stated = Bundle("out").manifest.networks
    assert rows.keys() == {*stated, "all"}
    for name, network in stated.items():
        assert rows[name] == [f"{network.parameters:,}", f"{network.weights.bytes / 1e6:.1f}"]
    left_out = [line for line in out.splitlines() if line.startswith("Left out")]
    assert len(left_out) == 1
    layers = stated["autoregressive"].config.layers
    assert f"autoregressive.pth: {layers} × gpt.h.N.attn.bias, {layers} × gpt.h.N.attn.masked_bias" in left_out[0]
    assert "diffusion_decoder.pth: code_embedding.weight" in left_out[0]


def test_a_bare_name_is_stored_where_the_bundle_flag_finds_it(run, home):
    assert run("checkpoints", "-o", "mine", "--name", "My voice")[0] == 0
    assert (home / "bundles" / "mine" / "bundle.json").is_file()
    assert bundle_names() == ["demo", "demo-fast", "mine"]
    assert open_model("mine").name == "My voice"


def test_a_bundle_is_replaced_only_with_force(run):
    assert run("checkpoints", "-o", "./out")[0] == 0
    before = Bundle("out").identity
    status, _, err = run("checkpoints", "-o", "./out", "--precision", "bf16")
    assert status == 1
    assert "--force" in err
    assert Bundle("out").identity == before
    assert run("checkpoints", "-o", "./out", "--precision", "bf16", "--force")[0] == 0
    assert Bundle("out").precision == "bf16"


def test_random_weights_are_reported(run, directory, edit_json):
    assert "random numbers" not in run("checkpoints", "-o", "./out")[1]
    edit_json(directory / "config.json", lambda config: config.update(trained=False))
    assert "random numbers" in run("checkpoints", "-o", "./random")[1]
    assert not Bundle("random").trained


def test_files_are_compared_with_the_expected_hashes(run, directory):
    recorded = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("r*.pth")}
    Path("good.json").write_text(json.dumps(recorded))
    Path("bad.json").write_text(json.dumps(recorded | {"cvvp.pth": "0" * 64}))
    assert run("checkpoints", "-o", "./out", "--expect", "good.json")[0] == 0
    assert run("checkpoints", "-o", "./again", "--expect", "out/bundle.json")[0] == 0
    status, _, err = run("checkpoints", "-o", "./no", "--expect", "bad.json")
    assert status == 1
    assert "cvvp.pth has SHA-256" in err
    assert f"bad.json records {'0' * 64}" in err
    assert not Path("no").exists()


def test_a_config_is_read_from_a_file(run, directory):
    shutil.move(directory / "config.json", "sizes.json")
    status, _, err = run("checkpoints", "-o", "./out")
    assert status == 1
    assert "--config" in err
    assert run("checkpoints", "-o", "./out", "--config", "sizes.json")[0] == 0


@pytest.mark.parametrize(("arguments", "message"), [
    (("nowhere", "-o", "./out"), "nowhere is neither a directory, a file nor a repository OWNER/NAME"),
    (("checkpoints", "-o", "demo"), "the name demo belongs to an embedded bundle"),
    (("checkpoints", "-o", "demo-fast"), "the name demo-fast belongs to an embedded bundle"),
    (("checkpoints", "-o", "./checkpoints", "--force"), "contains the checkpoints to import"),
    (("checkpoints", "-o", ".", "--force"), "contains the checkpoints to import"),
    (("checkpoints", "-o", "./letters", "--force"), "letters exists and is not a bundle"),
    (("checkpoints", "-o", "./letters/letter.txt", "--force"), "letter.txt is a file"),
    (("checkpoints", "-o", "./letters/letter.txt/out"), "cannot write"),
    (("letters", "-o", "./out"), "letters has no autoregressive.pth"),
    (("checkpoints", "-o", "./out", "--revision", "main"), "--revision is for the hub"),
    (("checkpoints", "-o", "./out", "--config", "none.json"), "cannot read none.json"),
    (("checkpoints", "-o", "./out", "--expect", "none.json"), "cannot read none.json"),
])
def test_a_refused_import_prints_one_line_and_changes_no_file(run, tmp_path, arguments, message):
    Path("letters").mkdir()
    Path("letters/letter.txt").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    status, out, err = run(*arguments)
    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("ane: error: ")
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_leaves_no_partial_bundle(directory, tmp_path, home):
    """Simulated by a limit on the size of files."""
    limited = ("import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
               "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
               "from ane.cli import main; sys.exit(main(sys.argv[1:]))")
    result = subprocess.run([sys.executable, "-c", limited, "import", str(directory), "-o",
                             str(tmp_path / "out")],
                            capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("ane: error: cannot write")
    assert len(result.stderr.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]
