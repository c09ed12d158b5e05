"""Test the output, the files and the errors of ``ane verify``, also for any package with --package."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from ane.cli import main
from ane.commands import packages
from tests.backends.mil.programs import WEIGHT, X, convert, mb, saved
from tests.sessions import table_rows
from tests.small_bundle import spoil

DECODER, RANDOM_LATENTS = (f"packages/{network}-fp16.mlpackage" for network in ("autoregressive", "rlg_auto"))


pytestmark = pytest.mark.usefixtures("no_progress")


@pytest.fixture
def copy(small, tmp_path) -> Path:
    return shutil.copytree(small, tmp_path / "copy")


@pytest.fixture
def run(capsys):
    """Run the command: exit status, standard output, standard error."""

    def running(*arguments) -> tuple[int, str, str]:
        status = main(["verify", *map(str, arguments)])
        return status, *capsys.readouterr()

    return running


def test_the_values_of_one_function_are_shown(run, small):
    _, out, _ = run("--bundle", small, "--function", "step_2_64", "--against", "mil:fp16", "--layers")
    assert [row[0] for row in table_rows(out) if row[0].startswith("gpt.h.1")] == [
        f"gpt.h.1{inside}" for inside in (".ln_1", ".attn", ".ln_2", ".mlp.c_fc", ".mlp", "")
    ]
    assert [row[-1] for row in table_rows(out)].count("worst") == 1


def test_several_functions_are_shown_in_one_row_each_and_json_has_their_values(run, small, tmp_path):
    status, out, _ = run("--bundle", small, "--layers", "--against", "mil:fp16", "--json", tmp_path / "found.json")
    assert status == 0
    assert ["autoregressive-fp16", "step_2_64", "21"] in [row[:3] for row in table_rows(out)]
    assert "gpt.h.1.mlp.c_fc" not in out
    report = json.loads((tmp_path / "found.json").read_text())
    step = next(one for one in report["functions"] if one["function"] == "step_2_64")
    assert step["passed"]
    assert step["values"][0]["module"] == "gpt.h.0.ln_1"
    _, out, _ = run("--bundle", small, "--networks", "rlg_auto", "--json", "-")
    assert json.loads(out)["against"] == "mil", "standard output has JSON alone"


def test_a_wrong_weight_is_reported_in_one_line_with_its_layer(run, copy, tmp_path):
    spoil(copy, DECODER, "step_2_64", "gpt__h__1__mlp__c_fc")
    status, out, err = run("--bundle", copy, "--layers", "--json", tmp_path / "found.json")
    assert status == 1
    assert err.count("\n") == 1
    assert "4 of 5 functions failed: autoregressive-fp16, prefill_32: " in err
    assert "starting at the operation conv gpt__h__1__mlp__c_fc" in err
    assert "fails" in out
    assert json.loads((tmp_path / "found.json").read_text())["functions"][0]["drift"] == "gpt__h__1__mlp__c_fc"


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML runs on a Mac")
@pytest.mark.parametrize("named", [True, False])
def test_core_ml_off_macos_is_refused_before_the_embedded_bundle_is_converted(complain, small, monkeypatch, named):
    monkeypatch.setattr(packages, "cached_packages", lambda *_: pytest.fail("it converts"))
    bundle = ["--bundle", small] if named else []
    assert "ane: error: Core ML runs only on macOS: use --against mil to interpret the same packages here" in complain(
        "verify", *bundle, "--against", "coreml"
    )


@pytest.fixture
def verify(package, run):
    """Run the command: exit status, standard output, standard error."""
    return lambda *arguments, path=package: run("--package", path, *arguments)


def arrays(path: Path, **content: np.ndarray) -> Path:
    np.savez(path, **content)
    return path


def test_the_values_inside_are_shown_and_compared(verify, package, tmp_path):
    inputs = arrays(tmp_path / "x.npz", x=X)
    product = np.einsum("oihw,bihs->bohs", WEIGHT.astype(np.float64), X)
    expected = arrays(tmp_path / "inside.npz", product=product, sum=np.zeros(X.shape))
    status, out, err = verify("--inputs", inputs, "--layers", "--expect", expected, "--json", tmp_path / "run.json")
    assert status == 1
    assert "The first is sum" in err  # the product before the sum is right
    assert [line.split("│")[2].strip() for line in out.splitlines() if "│" in line][-3:] == ["conv", "relu", "add"]
    values = {one["name"]: one for one in json.loads((tmp_path / "run.json").read_text())["layers"]}
    assert values["product"]["compared"]["snr"] > 60


def test_calls_in_turn_share_one_state(verify, tmp_path):
    def count(x, total):
        total = mb.coreml_update_state(state=total, value=mb.add(x=mb.read_state(input=total), y=x))
        return mb.identity(x=total, name="y")

    from coremltools.converters.mil.mil import types

    counting = saved(
        convert(
            count, mb.TensorSpec(shape=(1, 8), dtype=types.fp16), mb.StateTensorSpec(shape=(1, 8), dtype=types.fp16)
        ),
        tmp_path,
    )
    calls = [arrays(tmp_path / f"{n}.npz", x=np.full((1, 8), n, np.float32)) for n in (1, 2)]
    assert verify("--inputs", *calls, "--output", tmp_path / "y.npz", path=counting)[0] == 0
    with np.load(tmp_path / "y.npz") as written:
        assert {name: float(array[0, 0]) for name, array in written.items()} == {"y": 3, "total": 3}
