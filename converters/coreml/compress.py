"""Fewer bits a weight, by coremltools' own tools: 8-bit linear by channel, 6- and 4-bit palettes by k-means.

What a chip gains by them differs: palettes of 4 bits are streamed as they are from M1 on, 8-bit weights are expanded to
fp16 on M1 and streamed from M3 or M5 on (sources conflict; ``ane bench`` on the device says).
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ane.system.errors import UserError
from converters.coreml.graph import ct
from converters.quiet import quiet


@dataclass(frozen=True)
class Compression:
    """A way to store weights. ``bar`` is the least signal-to-noise ratio in dB against float32 that is published."""

    bits: int
    bar: float
    palette: bool


# random weights are the hardest to compress: 36, 23 and 11 dB in a decoder of 3 layers of 64
COMPRESSIONS = {
    "8bit": Compression(8, 33.0, palette=False),
    "6bit": Compression(6, 20.0, palette=True),
    "4bit": Compression(4, 8.0, palette=True),
}


def compressed(model: Any, compression: Compression) -> Any:
    """The one-function MLModel with its weights (those of more than 2048 values) stored in fewer bits.

    Raises:
        UserError: coremltools makes palettes with scikit-learn, which is not installed.
    """
    if compression.palette and find_spec("sklearn") is None:
        raise UserError(f"{compression.bits}-bit palettes are made with scikit-learn: pip install "
                        "'tortoise-ane[palettes]', or choose --precision 8bit")
    optimize = ct.optimize.coreml
    with quiet():
        if compression.palette:
            config = optimize.OpPalettizerConfig(mode="kmeans", nbits=compression.bits)
            return optimize.palettize_weights(model, optimize.OptimizationConfig(global_config=config))
        # with a zero point a channel: trained weights lean to a side (1.4 dB more in an embedded decoder)
        config = optimize.OpLinearQuantizerConfig(mode="linear", dtype=f"uint{compression.bits}")
        return optimize.linear_quantize_weights(model, optimize.OptimizationConfig(global_config=config))
