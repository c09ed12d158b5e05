"""Test that the stand-in of coremltools' native module refuses what Core ML refuses, with coremltools' own code."""

import gc
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.backends.coreml.packages import X, save_two_functions


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    save_two_functions(folder / "both.mlpackage")
    return folder


@pytest.fixture
def compiled(unguarded_mac, packages, tmp_path) -> Path:
    from coremltools.models.utils import compile_model

    return Path(compile_model(str(packages / "both.mlpackage"), str(tmp_path / "both.mlmodelc")))


def opened(compiled: Path, function: str = "double"):
    import coremltools

    return coremltools.models.CompiledMLModel(str(compiled), coremltools.ComputeUnit.CPU_ONLY, function)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x[:, ::2],
        lambda x: x.astype(np.int64),
        lambda x: x.astype(np.uint8),
        lambda x: x.tolist(),
        lambda x: np.lib.stride_tricks.as_strided(x, writeable=False),
    ],
)
def test_an_array_that_the_binding_cannot_convert_is_refused(compiled, spoil):
    model = opened(compiled)
    with pytest.raises(RuntimeError, match="value type not convertible"):
        model.predict({"x": spoil(X.copy())}, model.make_state())


def test_a_state_serves_the_functions_of_its_own_model_only(compiled, packages, tmp_path):
    double, triple = opened(compiled), opened(compiled, "triple")
    state, x = double.make_state(), X.copy()
    double.predict({"x": x}, state)
    np.testing.assert_array_equal(triple.predict({"x": x}, state)["sum"], 2 * X)
    with pytest.raises(RuntimeError, match="needs a state"):
        double.predict({"x": x})
    shutil.copytree(compiled, tmp_path / "other.mlmodelc")
    with pytest.raises(RuntimeError, match="made by another model"):
        opened(tmp_path / "other.mlmodelc").predict({"x": x}, state)


def test_the_plan_has_devices_for_the_default_function_only(compiled):
    import coremltools
    from coremltools.models.compute_plan import MLComputePlan

    plan = MLComputePlan.load_from_path(str(compiled), coremltools.ComputeUnit.CPU_AND_NE)
    usages = {
        name: [plan.get_compute_device_usage_for_mlprogram_operation(one) for one in function.block.operations]
        for name, function in plan.model_structure.program.functions.items()
    }
    assert None not in usages["double"]
    assert set(usages["triple"]) == {None}


def test_an_array_that_dies_while_core_ml_reads_it_is_noticed(unguarded_mac, packages, tmp_path):
    from coremltools.models.utils import compile_model

    model = opened(Path(compile_model(str(packages / "both.mlpackage"), str(tmp_path / "both.mlmodelc"))))
    model.predict({"x": X.copy()}, model.make_state())
    gc.collect()
    assert unguarded_mac.log[-1] == "freed too early: x"
