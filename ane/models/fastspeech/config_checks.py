"""Checks of the network configs in a FastSpeech bundle's bundle.json."""

from typing import Any

from ane.bundles.family import Config
from ane.models.fastspeech.networks.acoustic import PADDINGS, FastSpeechConfig
from ane.models.fastspeech.text import SYMBOLS
from ane.models.vocoders.checkpoints import check_hifigan, check_hifigan_value
from ane.models.vocoders.hifigan import MelHifiganConfig
from ane.models.vocoders.waveglow import WaveglowConfig
from ane.models.vocoders.waveglow_checkpoints import check_waveglow
from ane.system.errors import UserError


def check_value(name: str, value: Any, official: Any, where: str) -> None:
    """Raise UserError unless the JSON ``value`` is like the ``official`` one. ``where`` begins the message."""
    if name == "padding":
        if value not in PADDINGS:
            raise UserError(f"{where}: padding must be {' or '.join(PADDINGS)}, not {value!r}")
    else:
        check_hifigan_value(name, value, official, where)


def check_config(network: str, config: Config, where: str) -> None:
    """Raise UserError for values of the right type that do not describe a network."""
    if isinstance(config, MelHifiganConfig):
        check_hifigan(config, where)
    if isinstance(config, WaveglowConfig):
        check_waveglow(config, where)
    if isinstance(config, FastSpeechConfig):
        if config.fft_conv1d_kernel % 2 == 0:
            raise UserError(f"{where}: fft_conv1d_kernel must be odd, not {config.fft_conv1d_kernel}")
        if config.embeddings < len(SYMBOLS):
            raise UserError(f"{where}: it has embeddings for {config.embeddings} symbols, and English text needs "
                            f"{len(SYMBOLS)}: it was trained on other symbols, which this version does not know")
