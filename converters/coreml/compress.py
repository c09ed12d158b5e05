"""Compresses weights with coremltools: 8-bit linear by channel, 6- and 4-bit palettes by k-means.

The gain depends on the chip: 4-bit palettes are streamed as stored from the M1 on; 8-bit weights are expanded to fp16
on an M1 and streamed from the M3 or M5 on (sources conflict; measure with ``ane bench``).
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ane.system.errors import UserError
from converters.coreml.graph import ct
from converters.quiet import quiet


@dataclass(frozen=True)
class Compression:
    """A way to store weights. ``threshold``: SNR against float32, in dB, that a published function must reach."""

    bits: int
    threshold: float
    palette: bool


# random weights are the hardest to compress: 36, 23 and 11 dB in a decoder of 3 layers of width 64
COMPRESSIONS = {
    "8bit": Compression(8, 33.0, palette=False),
    "6bit": Compression(6, 20.0, palette=True),
    "4bit": Compression(4, 8.0, palette=True),
}


def compressed(model: Any, compression: Compression) -> Any:
    """Compress the weights of a one-function MLModel, except those of 2048 values or fewer.

    Raises:
        UserError: palettes need scikit-learn, which is not installed.
    """
    if compression.palette and find_spec("sklearn") is None:
        raise UserError(f"{compression.bits}-bit palettes are made with scikit-learn: pip install "
                        "'tortoise-ane[palettes]', or choose precision=8bit")
    optimize = ct.optimize.coreml
    with quiet():
        if compression.palette:
            config = optimize.OpPalettizerConfig(mode="kmeans", nbits=compression.bits)
            return optimize.palettize_weights(model, optimize.OptimizationConfig(global_config=config))
        # with a zero point for each channel, since trained weights are not centred: 1.4 dB more in the embedded decoder
        config = optimize.OpLinearQuantizerConfig(mode="linear", dtype=f"uint{compression.bits}")
        return optimize.linear_quantize_weights(model, optimize.OptimizationConfig(global_config=config))
