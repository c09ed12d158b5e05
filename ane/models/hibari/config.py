"""Define the sizes and constants of hibari's network, for code that must not import torch."""

from dataclasses import dataclass
from typing import ClassVar

from ane.bundles.family import Config, Network
from ane.models.vocoders.margins import FRAME_KERNEL, frame_margin

MAX_GRAPH = 64 << 20  # largest size of a published graph in bytes
PITCH_SCALE = 100.0  # f0 in Hz is 100 times the network's output
TEXT_KERNEL = 5
TEXT_CONVS = 2
PROSODY_DILATIONS = 1, 2, 4, 8, 1, 2


@dataclass(frozen=True)
class HibariConfig(Config):
    """Sizes of the two text encoders, the prosody network and the decoder.

    The defaults are the sizes of hibari 0.2.1.
    """

    symbols: int = 178  # rows of the phoneme table, which hibari shares with Kokoro
    # The text encoder for the sound: its channels, the channels within its blocks, and how often it applies its only
    # attention layer. The next three fields are the same sizes of the text encoder for the prosody.
    width: int = 128
    inner: int = 256
    repeats: int = 4
    prosody_width: int = 192
    prosody_inner: int = 384
    prosody_repeats: int = 6
    decoder_width: int = 256
    decoder_inner: int = 768
    decoder_layers: int = 8  # number of blocks in the decoder
    heads: int = 2

    split_widths: ClassVar = (("width", "heads"), ("prosody_width", "heads"))


def margins(config: HibariConfig) -> dict[str, int]:
    """Return, for each stage (network call), on how many positions before and after a position an output depends."""
    return {"prosody": FRAME_KERNEL // 2 * sum(PROSODY_DILATIONS), "spectra": frame_margin(config.decoder_layers)}


NETWORKS = {
    "hibari": Network(
        "hibari",
        "ane.models.hibari.networks:Hibari",
        HibariConfig,
        "hibari's model",
        half_precision=True,
        for_speech=True,
        random=True,
    )
}
