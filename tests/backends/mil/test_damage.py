"""A package that is damaged, or asks for what the interpreter does not know, is told in a line."""

from pathlib import Path

import coremltools as ct
import pytest

from ane.backends.mil import Interpreter, Package
from ane.system.errors import UserError
from tests.backends.mil.programs import convert, mb, saved


def data(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML"


def test_opening_what_is_not_a_package(tmp_path: Path, copy: Path):
    with pytest.raises(UserError, match=r"there is no Core ML package at .*nothing"):
        Package(tmp_path / "nothing.mlpackage")
    (copy / "Manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"copy\.mlpackage is not a Core ML package"):
        Package(copy)
    (copy / "Manifest.json").unlink()
    with pytest.raises(UserError, match=r"copy\.mlpackage is not a Core ML package"):
        Package(copy)


def test_a_missing_model_file(copy: Path):
    (data(copy) / "model.mlmodel").unlink()
    with pytest.raises(UserError, match=r"copy\.mlpackage is damaged: Data/com.apple.CoreML/model\.mlmodel is missing"):
        Package(copy)


@pytest.mark.parametrize("kept", [0, 1000])
def test_a_truncated_model_file(copy: Path, kept: int):
    model = data(copy) / "model.mlmodel"
    model.write_bytes(model.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"copy\.mlpackage is damaged: its model"):
        Package(copy)


@pytest.mark.parametrize("kept", [100, 5000])
def test_a_truncated_weight_file_is_found_on_opening(copy: Path, kept: int):
    weights = data(copy) / "weights" / "weight.bin"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(UserError, match=rf"copy\.mlpackage is damaged: the weight file weight.bin ends early.* {kept}"):
        Package(copy)


def test_an_overwritten_weight_file_is_found_on_opening(copy: Path):
    weights = data(copy) / "weights" / "weight.bin"
    weights.write_bytes(bytes(weights.stat().st_size))
    with pytest.raises(UserError, match=r"the weight file weight.bin has no fp16 \(64, 64, 1, 1\) at byte 64"):
        Package(copy)


@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_weight_file(copy: Path, empty: bool):
    weights = data(copy) / "weights" / "weight.bin"
    weights.unlink()
    if empty:
        weights.touch()
    with pytest.raises(UserError, match=r"the weight file weight.bin is missing or empty"):
        Package(copy)


def test_a_function_that_is_not_there(plain: Path):
    with pytest.raises(UserError, match=r"model\.mlpackage has no function 'decode'; it has main"):
        Interpreter(Package(plain), "decode")


def test_an_argument_that_is_not_known(copy: Path):
    model = data(copy) / "model.mlmodel"
    spec = ct.utils.load_spec(str(copy))
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    relu = next(operation for operation in block.operations if operation.type == "relu")
    relu.inputs["slope"].arguments.add().name = "x"
    model.write_bytes(spec.SerializeToString())
    with pytest.raises(UserError, match=r"does not know the argument slope of the op relu \(relu_0\) in function"):
        Interpreter(Package(copy))


def test_an_op_that_is_not_known(tmp_path: Path):
    path = saved(convert(lambda x: mb.local_response_norm(x=x, size=3)), tmp_path)
    with pytest.raises(UserError, match=r"does not know the op local_response_norm \(local_response_norm_0\) in "
                                        r"function 'main' of .*model\.mlpackage"):
        Interpreter(Package(path))
