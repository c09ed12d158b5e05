"""The tiny bundle with ONNX packages in every precision, made once for all tests of a run."""

from pathlib import Path

from filelock import FileLock

from ane.bundles.bundle import Bundle
from converters.conversion import convert
from converters.onnx.package import OnnxTarget, OnnxOptions
from tests.random_model import write_random_bundle

DECODER, CLVP = ["autoregressive"], ["clvp"]


def onnx_bundle(folder: Path) -> Bundle:
    """``folder``/onnx: every network in fp32, CLVP in fp16 and the decoder in int8, int4 and fp16 too; not to be
    changed."""
    place = folder / "onnx"
    with FileLock(f"{place}.lock"):
        if not place.exists():
            write_random_bundle(folder / "onnx-plain")
            source = convert(Bundle(folder / "onnx-plain"), folder / "onnx-decoder",
                             [OnnxOptions(precision) for precision in ("fp32", "int8", "int4", "fp16")], DECODER,
                             target=OnnxTarget())
            source = convert(source, folder / "onnx-clvp", [OnnxOptions("fp32"), OnnxOptions("fp16")], CLVP,
                             target=OnnxTarget())
            rest = sorted(source.networks - set(DECODER) - set(CLVP))
            convert(source, place, [OnnxOptions()], rest, target=OnnxTarget())
    return Bundle(place)
