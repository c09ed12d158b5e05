"""Test that every op that is lowered to Core AI computes what torch computes, in a package that coremltools wrote."""

import pytest

from tests.backends.mil.op_cases import OP_CASES, PackageOfCases, assert_equals_torch
from tests.refusals import assert_refused

pytest.importorskip("coreai", reason="needs Core AI: pip install '.[coreai]'")

from ane.backends.coreai.lowering import LOWERINGS
from ane.backends.coreai.runtime import CoreAIRuntime

# arguments that lowered ops have in MIL, but never in converted networks
REFUSED = {
    "conv same",
    "conv same, even and odd sizes",
    "conv same_lower",
    "conv rank 3",
    "conv_transpose same",
    "conv_transpose output shape",
    "conv_transpose output beyond the last input",
    "conv_transpose output beyond the last input, cropped before",
    "conv_transpose groups, dilation",
    "concat interleaved",
    "squeeze all",
    "slice_by_index at run time",
    "slice_update strides",
    "slice_update squeezed, backwards",
}
CASES = [case for case in OP_CASES if case.op in LOWERINGS and case.name not in REFUSED]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    cases = PackageOfCases(CASES)
    path = cases.save(tmp_path_factory.mktemp("ops") / "ops.mlpackage")
    return cases.by_case(CoreAIRuntime().load(path, "main", "ALL").predict(cases.arrays))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_op_computes_what_torch_computes(case, results):
    assert_equals_torch(case, results[case.name], atol=2e-6)


def test_every_lowering_is_tested():
    assert set(LOWERINGS) == {case.op for case in CASES}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cumsum", r"op cumsum \(.*\) in function 'main' of .*op.mlpackage is not supported$"),
        ("conv same", "op conv .* is not supported: pad_type same"),
        ("concat interleaved", "op concat .* is not supported: interleave"),
    ],
)
def test_an_unsupported_op_is_named_with_its_function(tmp_path, name, message):
    path = PackageOfCases([case for case in OP_CASES if case.name == name]).save(tmp_path / "op.mlpackage")
    assert_refused(message, lambda: CoreAIRuntime().load(path, "main", "ALL"))
