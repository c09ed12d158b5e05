"""The Core ML graphs of FastSpeech and its vocoders: the functions of each package, in default or requested lengths.

A text and its frames get their buckets independently: the text's by its symbols, then, when the durations are known,
the mel's by its frames.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ane.bundles import Model
from ane.models.vocoders.hifigan import MelHifigan
from ane.models.vocoders.waveglow import HOP, Waveglow
from ane.system.errors import UserError
from converters.coreml.graph import CoreMLGraph
from converters.coreml.options import CoreMLOptions
from converters.engine_limits import MAX_AXIS
from converters.fastspeech import acoustic
from converters.vocoders.hifigan import hifigan
from converters.vocoders.waveglow import waveglow

SYMBOLS = 32, 64, 96, 128, 192, 256, 384        # 384 symbols fill about 2048 frames
FRAMES = 256, 512, 768, 1024, 1536, 2048
SHORT_WINDOW = 14                               # frames of the vocoder's smaller bucket

# kind → what its length counts, for messages about --buckets
LENGTH_UNITS = {"text": "symbols", "mel": "frames", "vocoder": "frames", "waveglow": "frames"}
# kind → smallest length that its probe supports
SMALLEST = {"text": 8, "mel": 8, "vocoder": 4, "waveglow": 4}
VOCODERS = "vocoder", "waveglow"     # of which a model has one, or none


def scale_of(network: str, reference: Any) -> float:
    """The factor that the host multiplies inputs by: none of these streams is scaled."""
    return 1.0


def graphs_of(network: str, reference: Any, model: Model, options: CoreMLOptions, scale: float) -> list[CoreMLGraph]:
    """The functions of a network's package. Raises UserError for a bucket that is too long for the engine."""
    return GRAPHS[network](reference, lengths(model) | dict(options.buckets))


def check_buckets(options: CoreMLOptions, model: Model) -> None:
    """Raise UserError for lengths that are too small, or longer than the model or the engine supports."""
    positions = model.config("fastspeech").max_seq_len
    defaults = lengths(model)
    for kind, sizes in options.buckets.items():
        largest = max(defaults.get(kind, (0,)))
        if kind in VOCODERS and max(sizes) > largest:
            raise UserError(f"buckets={kind}={max(sizes)}: " + (
                f"it takes 1 to {largest} frames" if largest else f"{model.name} has no {kind}"))
        if min(sizes) < SMALLEST[kind]:
            raise UserError(f"buckets={kind}={min(sizes)}: must be at least {SMALLEST[kind]}")
        if kind not in VOCODERS and max(sizes) > positions:
            raise UserError(f"buckets={kind}={max(sizes)}: this model has {positions} positions")
        if max(sizes) > MAX_AXIS:
            raise UserError(f"buckets={kind}={max(sizes)}: the Neural Engine takes no axis above {MAX_AXIS}")


def lengths(model: Model) -> dict[str, tuple[int, ...]]:
    """The default buckets by kind, up to what the model supports."""
    positions = model.config("fastspeech").max_seq_len
    found = {"text": _up_to(positions, SYMBOLS), "mel": _up_to(positions, FRAMES)}
    if "vocoder" in model.networks:
        config = model.config("vocoder")
        found["vocoder"] = windows(config.hop, config.level_margins[-1])
    if "waveglow" in model.networks:
        config = model.config("waveglow")
        found["waveglow"] = windows(HOP // config.n_group, config.margin)
    return found


def _up_to(most: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The ``sizes`` below ``most``, then ``most`` itself or the largest of them, if that is smaller."""
    return (*(size for size in sizes[:-1] if size < most), min(most, sizes[-1]))


def windows(rate: int, margin: int) -> tuple[int, ...]:
    """A short window, and the longest that fits on the engine's widest axis, with ``rate`` positions a frame."""
    longest = MAX_AXIS // rate - 2 * margin
    return tuple(dict.fromkeys((min(SHORT_WINDOW, longest), longest)))


def _fastspeech(network: Any, sizes: Mapping[str, tuple[int, ...]]) -> list[CoreMLGraph]:
    symbols = max(sizes["text"])        # the mel side is called with the states of a text in any bucket
    return [*(acoustic.text(network, size) for size in sizes["text"]),
            *(acoustic.mel(network, size, symbols) for size in sizes["mel"])]


def _vocoder(network: MelHifigan, sizes: Mapping[str, tuple[int, ...]]) -> list[CoreMLGraph]:
    return [hifigan(network, size, "vocoder") for size in sizes["vocoder"]]


def _waveglow(network: Waveglow, sizes: Mapping[str, tuple[int, ...]]) -> list[CoreMLGraph]:
    return [waveglow(network, size) for size in sizes["waveglow"]]


GRAPHS: dict[str, Callable[[Any, Mapping[str, tuple[int, ...]]], list[CoreMLGraph]]] = {
    "fastspeech": _fastspeech, "vocoder": _vocoder, "waveglow": _waveglow}
