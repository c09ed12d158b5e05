"""The benchmark of backends with ONNX packages."""

import json

from ane.bundles.packages import PackageRecord
from benchmarks import backends

SHORT = ["--lanes", "2", "--prefix", "8", "--steps", "2", "--frames", "16", "--sound", "16", "--max-codes", "8",
         "--rounds", "1", "--threads", "1"]


def weights(packages: list[PackageRecord], precision: str) -> int:
    """Bytes of the decoder's weights."""
    package, = (each for each in packages if (each.network, each.precision) == ("autoregressive", precision))
    return next(file.bytes for file in package.files if file.file.endswith("weights.bin"))


def test_onnx_is_measured_in_every_part_and_precision_it_has(bundle, tmp_path):
    output = tmp_path / "backends.json"
    backends.main(["--bundle", str(bundle.path), "--engines", "eager:cpu,onnx:cpu", "--precisions", "fp32,int4",
                   *SHORT, "--output", str(output)])
    rows = {(r["part"], r["name"], r.get("batch"), r.get("vocoder")): r
            for r in json.loads(output.read_text())["results"]}
    onnx = {part: {r["precision"] for r in rows.values() if r["engine"] == "onnx:cpu" and r["part"] == part}
            for part in backends.PARTS}
    assert onnx == {"decoder": {"fp32", "int4"}, "diffusion": {"fp32"}, "vocoders": {"fp32"},
                    "sentence": {"fp32", "int4"}}
    assert all(r["times_eager"] > 0 for r in rows.values())
    full, quarter = (rows["decoder", f"onnx:cpu {precision}", None, None] for precision in ("fp32", "int4"))
    assert weights(bundle.onnx_packages, "int4") < 0.5 * weights(bundle.onnx_packages, "fp32")
    bytes_read = [r["share_of_bandwidth"] * r["step_ms"]["median"] for r in (full, quarter)]
    assert bytes_read[1] < bytes_read[0]
