"""Sizes and constants of hibari's network, without torch: bundles and the steps in NumPy need no more."""

from dataclasses import dataclass
from typing import ClassVar

from ane.bundles.family import Config, Network
from ane.models.vocoders.margins import FRAME_KERNEL, frame_margin

MAX_GRAPH = 64 << 20  # bytes
PITCH_SCALE = 100.0  # f0 in Hz = 100 · output
TEXT_KERNEL = 5
TEXT_CONVS = 2
PROSODY_DILATIONS = 1, 2, 4, 8, 1, 2


@dataclass(frozen=True)
class HibariConfig(Config):
    """Sizes of the sound's text encoder, of the prosody and of the decoder; the defaults are those of hibari 0.2.1."""

    symbols: int = 178  # rows of the phoneme table, which is Kokoro's
    width: int = 128  # channels, here and below
    inner: int = 256  # channels within a block
    repeats: int = 4  # how often the one attention layer of a text encoder is applied
    prosody_width: int = 192
    prosody_inner: int = 384
    prosody_repeats: int = 6
    decoder_width: int = 256
    decoder_inner: int = 768
    decoder_layers: int = 8  # blocks
    heads: int = 2

    split_widths: ClassVar = (("width", "heads"), ("prosody_width", "heads"))


def margins(config: HibariConfig) -> dict[str, int]:
    """Return the positions on either side that an output depends on, by stage."""
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
