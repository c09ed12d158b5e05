"""The tiny bundle with ONNX packages in every precision, converted once for all tests of a run."""

from pathlib import Path

from filelock import FileLock

from ane.bundles.bundle import Bundle
from converters.conversion import convert
from converters.onnx.package import OnnxOptions, OnnxTarget
from tests.random_model import write_random_bundle

DECODER, CLVP = ["autoregressive"], ["clvp"]


def onnx_bundle(folder: Path) -> Bundle:
    """``folder``/onnx: every network in fp32, CLVP also in fp16, the decoder also in int8, int4 and fp16.

    Tests must not change it.
    """
    bundle = folder / "onnx"
    with FileLock(f"{bundle}.lock"):
        if not bundle.exists():
            write_random_bundle(folder / "onnx-plain")
            source = convert(Bundle(folder / "onnx-plain"), folder / "onnx-decoder",
                             [OnnxOptions(precision) for precision in ("fp32", "int8", "int4", "fp16")], DECODER,
                             target=OnnxTarget())
            source = convert(source, folder / "onnx-clvp", [OnnxOptions("fp32"), OnnxOptions("fp16")], CLVP,
                             target=OnnxTarget())
            rest = sorted(source.networks - set(DECODER) - set(CLVP))
            convert(source, bundle, [OnnxOptions()], rest, target=OnnxTarget())
    return Bundle(bundle)
