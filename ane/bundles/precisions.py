"""List the precisions of weights, one per row. Flags, checks, thresholds and conversions all use these rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ane.bundles.family import Network

TORCH = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}  # bytes per weight
GGUF = {"fp16": "MOSTLY_F16", "fp32": "ALL_F32", "q8_0": "MOSTLY_Q8_0"}  # names of gguf.LlamaFileType


@dataclass(frozen=True)
class PackagePrecision:
    """A precision of the weights in packages.

    Attributes:
        decibels: Smallest signal-to-noise ratio, in dB, that the converter accepts for a function in float32
            arithmetic.
        rounded: Smallest signal-to-noise ratio, in dB, that the converter accepts for a Core ML function if every op is
            rounded to fp16. ``None`` means that it does not measure this.
        bits: Bits per compressed weight. 0 means that weights are not compressed.
        flag: Attribute of ``Network`` that says whether the network may have this precision. "" means that every
            network may have it.
        otherwise: Precision of the networks that may not have this precision.
        bytes: Bytes per weight on disk during the conversion.
        on_cpu: ONNX Runtime devices that compute this precision on the CPU, and copy the data there and back. CUDA has
            no ops to round activations for int8. TensorRT lacks these ops, and also the int4 product (MatMulNBits).
    """

    decibels: float
    rounded: float | None = None
    bits: int = 0
    flag: str = ""
    otherwise: str = "fp32"
    bytes: int = 4
    on_cpu: tuple[str, ...] = ()


# The first row is the default. 8 bits are linear quantisation by channel, and fewer bits are palettes from k-means.
# Random weights are the hardest to compress: at the sizes of the official networks they have 54 dB with rounding to
# fp16. The chip decides how much faster compressed weights are. Every chip since the M1 reads 4-bit palettes directly.
# An M1 expands 8-bit weights to fp16, and later chips read them directly. Sources conflict on whether the M3 or the M5
# is the first such chip: measure with `ane bench`.
CORE_ML = {
    "fp16": PackagePrecision(60.0, 50.0, flag="fp16_package", bytes=2),
    "fp32": PackagePrecision(100.0),
    "8bit": PackagePrecision(33.0, 33.0, 8, "compressed", "fp16", bytes=2),
    "6bit": PackagePrecision(20.0, 20.0, 6, "compressed", "fp16", bytes=2),
    "4bit": PackagePrecision(8.0, 8.0, 4, "compressed", "fp16", bytes=2),
}
ONNX = {
    "fp32": PackagePrecision(90.0),
    "fp16": PackagePrecision(45.0, flag="half_precision", bytes=2),
    "int8": PackagePrecision(20.0, bits=8, flag="quantised", on_cpu=("cuda", "tensorrt")),
    "int4": PackagePrecision(8.0, bits=4, flag="quantised", on_cpu=("tensorrt",)),
}
PACKAGES = {"coreml": CORE_ML, "onnx": ONNX}
NAMES = tuple(dict.fromkeys((*TORCH, *CORE_ML, *ONNX)))  # values that `ane say --precision` takes


def stored_precision(precisions: Mapping[str, PackagePrecision], network: "Network", precision: str) -> str:
    """Return the precision in which a conversion to ``precision`` stores a network.

    Some networks stay in fp32: vocoders whose rounding you can hear, and small networks, which would gain nothing.
    """
    row = precisions[precision]
    if not row.flag or getattr(network, row.flag):
        return precision
    return stored_precision(precisions, network, row.otherwise)
