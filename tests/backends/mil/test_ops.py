"""Compare every op of the interpreter with torch, in a package that coremltools wrote."""

import numpy as np
import pytest

from ane.backends.mil import Arithmetic, Interpreter, Package
from ane.backends.mil.registry import OPS
from tests.backends.mil.op_cases import OP_CASES, PACKAGES, MilOpCase, assert_equals_torch
from tests.backends.mil.test_converted_modules import CASES as MODULE_CASES


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, list[np.ndarray]]:
    """What the interpreter returns for each case."""
    found = {}
    for number, cases in enumerate(PACKAGES):
        package = Package(cases.save(tmp_path_factory.mktemp("ops") / f"{number}.mlpackage"))
        plain, rounded = (
            cases.by_case(Interpreter(package, arithmetic=arithmetic).predict(cases.arrays))
            for arithmetic in (Arithmetic(), Arithmetic(fp16=True, narrow_norms=True))
        )
        for name in plain:  # the interpreter never rounds a program that declares only float32
            assert all(map(np.array_equal, plain[name], rounded[name])), name
        found |= plain
    return found


def test_every_op_is_tested():
    tested = {op.op_type for cases in PACKAGES for op in cases.program().functions["main"].operations}
    assert set(OPS) - tested == {op for case in MODULE_CASES for op in case.ops} - tested


@pytest.mark.parametrize("case", OP_CASES, ids=lambda case: case.name)
def test_an_op_computes_what_torch_computes(case: MilOpCase, results):
    assert_equals_torch(case, results[case.name])
