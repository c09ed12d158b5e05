"""The benchmarks of stages over ONNX packages."""

import pytest

from benchmarks.__main__ import BENCHMARKS, arguments_parser

SHORT = ["--calls", "1", "--rounds", "1", "--threads", "1", "--competitors", "onnx", "--precision", "fp32,int4"]


@pytest.mark.parametrize(("name", "flags"), [("decode", ["--lanes", "2"]), ("diffusion", ["--frames", "16"]),
                                             ("vocoders", ["--frames", "16"])])
def test_onnx_is_measured_in_every_precision_it_has(bundle, name, flags):
    options = arguments_parser().parse_args([name, "--bundle", str(bundle.path), *SHORT, *flags])
    rows = BENCHMARKS[name].measure(options).rows
    assert all(row.error is None and row.value.median > 0 for row in rows)
    assert {row.competitor for row in rows} == {"onnx:cpu fp32", "onnx:cpu int4"}
