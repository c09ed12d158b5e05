"""Damaged packages, and ops that the interpreter does not support, are errors of one line."""

import os
from collections.abc import Callable
from pathlib import Path

import coremltools as ct
import pytest

from ane.backends.mil import Interpreter, Package
from ane.system.errors import UserError
from tests.backends.mil.programs import convert, mb, saved


def data(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML"


def test_a_folder_that_is_not_a_package_is_refused(tmp_path: Path, copy: Path):
    with pytest.raises(UserError, match=r"there is no Core ML package at .*nothing"):
        Package(tmp_path / "nothing.mlpackage")
    (copy / "Manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"copy\.mlpackage is not a Core ML package"):
        Package(copy)
    (copy / "Manifest.json").unlink()
    with pytest.raises(UserError, match=r"copy\.mlpackage is not a Core ML package"):
        Package(copy)


@pytest.mark.parametrize("damage", [lambda file: file.write_text("[" * 100_000), lambda file: os.mkfifo(file)])
def test_a_manifest_that_cannot_be_parsed_or_is_a_fifo_is_refused(copy: Path, damage: Callable):
    (copy / "Manifest.json").unlink()
    damage(copy / "Manifest.json")
    with pytest.raises(UserError, match=r"copy\.mlpackage is not a Core ML package"):
        Package(copy)


def test_a_fifo_in_place_of_the_weight_file_is_refused(copy: Path):
    weights = data(copy) / "weights" / "weight.bin"
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(UserError, match=r"the weight file weight.bin is missing or empty"):
        Package(copy)


def test_a_missing_model_file_is_refused(copy: Path):
    (data(copy) / "model.mlmodel").unlink()
    with pytest.raises(UserError, match=r"copy\.mlpackage is damaged: Data/com.apple.CoreML/model\.mlmodel is missing"):
        Package(copy)


@pytest.mark.parametrize("kept", [0, 1000])
def test_a_truncated_model_file_is_refused(copy: Path, kept: int):
    model = data(copy) / "model.mlmodel"
    model.write_bytes(model.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"copy\.mlpackage is damaged: its model"):
        Package(copy)


@pytest.mark.parametrize("kept", [100, 5000])
def test_a_truncated_weight_file_is_refused_on_opening(copy: Path, kept: int):
    weights = data(copy) / "weights" / "weight.bin"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(UserError, match=rf"copy\.mlpackage is damaged: the weight file weight.bin ends early.* {kept}"):
        Package(copy)


def test_an_overwritten_weight_file_is_refused_on_opening(copy: Path):
    weights = data(copy) / "weights" / "weight.bin"
    weights.write_bytes(bytes(weights.stat().st_size))
    with pytest.raises(UserError, match=r"the weight file weight.bin has no fp16 \(64, 64, 1, 1\) at byte 64"):
        Package(copy)


@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_weight_file_is_refused(copy: Path, empty: bool):
    weights = data(copy) / "weights" / "weight.bin"
    weights.unlink()
    if empty:
        weights.touch()
    with pytest.raises(UserError, match=r"the weight file weight.bin is missing or empty"):
        Package(copy)


def test_a_missing_function_is_refused_by_name(plain: Path):
    with pytest.raises(UserError, match=r"model\.mlpackage has no function 'decode'; it has main"):
        Interpreter(Package(plain), "decode")


def test_an_unsupported_argument_is_refused_by_name(copy: Path):
    model = data(copy) / "model.mlmodel"
    spec = ct.utils.load_spec(str(copy))
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    relu = next(operation for operation in block.operations if operation.type == "relu")
    relu.inputs["slope"].arguments.add().name = "x"
    model.write_bytes(spec.SerializeToString())
    with pytest.raises(UserError, match=r"does not support the argument slope of the op relu \(relu_0\) in function"):
        Interpreter(Package(copy))


def test_an_unsupported_op_is_refused_by_name(tmp_path: Path):
    path = saved(convert(lambda x: mb.sliding_windows(x=x, axis=3, size=2)), tmp_path)
    with pytest.raises(UserError, match=r"does not support the op sliding_windows \(sliding_windows_0\) in "
                                        r"function 'main' of .*model\.mlpackage"):
        Interpreter(Package(path))
