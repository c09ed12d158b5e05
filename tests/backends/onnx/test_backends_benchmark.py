"""The benchmark of backends over ONNX packages."""

from ane.bundles.packages import PackageRecord
from benchmarks.__main__ import arguments_parser
from benchmarks.stages import measure

SHORT = ["--lanes", "2", "--frames", "16", "--calls", "1", "--rounds", "1", "--threads", "1"]


def weights(packages: list[PackageRecord], precision: str) -> int:
    """Bytes of the decoder's file of weights."""
    package, = (each for each in packages if (each.network, each.precision) == ("autoregressive", precision))
    return next(file.bytes for file in package.files if file.file.endswith("weights.bin"))


def test_onnx_is_compared_with_eager_in_every_part_and_precision_it_has(bundle):
    options = arguments_parser().parse_args(["backends", "--bundle", str(bundle.path), "--competitors", "eager,onnx",
                                             "--precision", "fp32,int4", *SHORT])
    options.checkpoints = None
    rows = {(row.what, row.competitor): row for row in measure(options).rows}
    assert all(row.error is None and row.figures["times_eager_fp32"] > 0 for row in rows.values())
    for what in ("prefill", "decoder step", "guided denoising step", "univnet", "hifigan"):
        assert (what, "onnx:cpu fp32") in rows
    full, quarter = (rows["decoder step", f"onnx:cpu {precision}"] for precision in ("fp32", "int4"))
    assert weights(bundle.onnx_packages, "int4") < 0.5 * weights(bundle.onnx_packages, "fp32")
    moved = [row.figures["share_of_bandwidth"] * row.value.median for row in (full, quarter)]
    assert moved[1] < moved[0]
