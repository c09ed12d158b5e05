"""``ane verify --package``: any Core ML package on arrays of a file."""

import json
from pathlib import Path

import numpy as np
import pytest

from ane.cli import main
from tests.backends.mil.programs import WEIGHT, X, convert, mb, normal, run, saved

ONES = np.ones(X.shape, np.float32)


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """relu(conv(x)) + x in fp16."""
    return saved(convert(lambda x: mb.add(x=mb.relu(x=mb.conv(x=x, weight=WEIGHT, name="product")), y=x, name="sum")),
                 tmp_path_factory.mktemp("package"))


@pytest.fixture
def verify(package, capsys, monkeypatch):
    """Run the command: exit status, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")

    def running(*arguments, path: Path = package) -> tuple[int, str, str]:
        status = main(["verify", "--package", str(path), *map(str, arguments)])
        return status, *capsys.readouterr()

    return running


def arrays(path: Path, **content: np.ndarray) -> Path:
    np.savez(path, **content)
    return path


def test_outputs_are_written_and_compared_with_what_is_expected(verify, package, tmp_path):
    inputs = arrays(tmp_path / "x.npz", x=X)
    status, out, err = verify("--inputs", inputs, "--output", tmp_path / "y.npz")
    assert (status, err) == (0, "")
    assert "sum" in out
    with np.load(tmp_path / "y.npz") as written:
        np.testing.assert_array_equal(written["sum"], run(package))
    status, out, _ = verify("--inputs", inputs, "--expect", tmp_path / "y.npz")
    assert status == 0
    assert "200.0" in out
    wrong = arrays(tmp_path / "wrong.npz", sum=run(package) + 0.1)
    status, _, err = verify("--inputs", inputs, "--expect", wrong)
    assert status == 1
    assert "1 of 1 values are below 40 dB; the first is sum" in err
    assert verify("--inputs", inputs, "--expect", wrong, "--threshold", "10")[0] == 0


def test_the_values_inside_are_shown_compared_and_kept(verify, package, tmp_path):
    inputs = arrays(tmp_path / "x.npz", x=X)
    product = np.einsum("oihw,bihs->bohs", WEIGHT.astype(np.float64), X)
    expected = arrays(tmp_path / "inside.npz", product=product, sum=np.zeros(X.shape))
    status, out, err = verify("--inputs", inputs, "--layers", "--expect", expected, "--dump", tmp_path / "all.npz",
                              "--json", tmp_path / "run.json")
    assert status == 1
    assert "the first is sum" in err            # the product is right
    assert [line.split("│")[2].strip() for line in out.splitlines() if "│" in line][-3:] == ["conv", "relu", "add"]
    values = {one["name"]: one for one in json.loads((tmp_path / "run.json").read_text())["layers"]}
    assert values["product"]["compared"]["snr"] > 60
    with np.load(tmp_path / "all.npz") as kept:
        np.testing.assert_allclose(kept["product"], product, atol=0.01)
    status, out, _ = verify("--inputs", inputs, "--layers", "--against", "mil:fp16")
    assert status == 0
    assert "most loss first" in out


def test_calls_in_turn_share_one_state(verify, tmp_path):
    def count(x, total):
        total = mb.coreml_update_state(state=total, value=mb.add(x=mb.read_state(input=total), y=x))
        return mb.identity(x=total, name="y")

    from coremltools.converters.mil.mil import types

    counting = saved(convert(count, mb.TensorSpec(shape=(1, 8), dtype=types.fp16),
                             mb.StateTensorSpec(shape=(1, 8), dtype=types.fp16)), tmp_path)
    calls = [arrays(tmp_path / f"{n}.npz", x=np.full((1, 8), n, np.float32)) for n in (1, 2)]
    assert verify("--inputs", *calls, "--output", tmp_path / "y.npz", path=counting)[0] == 0
    with np.load(tmp_path / "y.npz") as written:
        assert {name: float(array[0, 0]) for name, array in written.items()} == {"y": 3, "total": 3}


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "needs --inputs FILE.npz: function 'main' takes x fp16 (1, 64, 1, 8); returns sum fp16"),
    (["--inputs", "other.npz"], "takes ['x'], got ['y']; the inputs are x fp16 (1, 64, 1, 8)"),
    (["--inputs", "array.npy"], "holds one array without a name"),
    (["--inputs", "missing.npz"], "cannot read"),
    (["--inputs", "x.npz", "--function", "step"], "has no function 'step'"),
    (["--inputs", "x.npz", "--expect", "other.npz"], "y is expected, and function 'main'"),
    (["--inputs", "x.npz", "--bundle", "demo"], "--bundle has no effect with --package"),
    (["--inputs", "x.npz", "--against", "onnx"], "--package is a Core ML package"),
    (["--inputs", "x.npz", "--output", "y.txt"], "must end in .npz"),
])
def test_bad_requests_are_refused_in_one_line(verify, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    arrays(tmp_path / "x.npz", x=X)
    arrays(tmp_path / "other.npz", y=normal(1, 2))
    np.save(tmp_path / "array.npy", X)
    status, _, err = verify(*arguments)
    assert status == 1
    assert message in err
    assert err.count("\n") == 1


def test_its_options_are_refused_for_a_bundle(capsys):
    assert main(["verify", "--inputs", "x.npz"]) == 1
    assert "--inputs has no effect without --package" in capsys.readouterr().err
