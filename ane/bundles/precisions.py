"""List the precisions of weights, one per row. Flags, checks, thresholds and conversions are made from these rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ane.bundles.family import Network

TORCH = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}  # bytes per weight
GGUF = {"fp16": "MOSTLY_F16", "fp32": "ALL_F32", "q8_0": "MOSTLY_Q8_0"}  # names of gguf.LlamaFileType


@dataclass(frozen=True)
class PackagePrecision:
    """A precision of packages.

    Attributes:
        decibels: Signal-to-noise ratio that a function must reach with float32 arithmetic.
        rounded: Signal-to-noise ratio that a Core ML function must reach with every operation rounded to fp16. ``None``
            means that this is not measured.
        bits: Bits per compressed weight. 0 means that weights are not compressed.
        flag: Attribute of ``Network`` that says whether the network may be stored in this precision. "" means that
            every network may.
        otherwise: Precision for the networks that may not be stored in this one.
        bytes: Bytes per weight on disk during conversion.
        on_cpu: Devices of ONNX Runtime whose provider computes this precision on the CPU, with copies there and back.
            CUDA lacks the operations that int8 rounds activations with. TensorRT also lacks the product of int4
            (MatMulNBits).
    """

    decibels: float
    rounded: float | None = None
    bits: int = 0
    flag: str = ""
    otherwise: str = "fp32"
    bytes: int = 4
    on_cpu: tuple[str, ...] = ()


# The first row is the default. Random weights at the official size reach 54 dB with rounding, and are the hardest to
# compress. 8 bits are linear by channel, fewer bits are palettes by k-means. The gain depends on the chip. Every chip
# since the M1 streams 4-bit palettes as stored. An M1 expands 8-bit weights to fp16, while later chips stream them,
# starting with the M3 or the M5 (sources conflict: measure with `ane bench`).
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
NAMES = tuple(dict.fromkeys((*TORCH, *CORE_ML, *ONNX)))  # the values of `ane say --precision`


def stored_precision(precisions: Mapping[str, PackagePrecision], network: "Network", precision: str) -> str:
    """Return the precision of a network's package when a model is converted with ``precision``.

    Vocoders whose rounding is audible stay in fp32, and so do small networks that gain nothing.
    """
    row = precisions[precision]
    if not row.flag or getattr(network, row.flag):
        return precision
    return stored_precision(precisions, network, row.otherwise)
