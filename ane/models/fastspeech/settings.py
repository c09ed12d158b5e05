"""The settings of a request, apart from its text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ane.bundles.model import Model
from ane.models.fastspeech.regulator import ROUNDINGS, Rounding
from ane.system.errors import UserError

MIN_SPEED, MAX_SPEED = 0.25, 4.0
OPTIONS = frozenset(("speed", "split", "no_split", "stream", "seed"))


@dataclass(frozen=True)
class FastSpeechSettings:
    """Settings of a request.

    Attributes:
        speed: speed of speech, 1 as trained; 2 is twice as fast.
        split: desired and maximum characters of a chunk; None: the text is one chunk. A chunk that takes more positions
            than the model has is split further, or with None an error.
        pause: seconds of silence between two chunks.
        batch: chunks that are spoken in one pass, at most.
        rounding: of a duration that lies halfway between two numbers of frames: "half_to_even" as NVIDIA's PyTorch
            class, "half_up" as its TensorRT graph.
        seed: of WaveGlow's noise, the same for every chunk; nothing else is random.

    Raises:
        UserError: a value is out of range.
    """

    speed: float = 1.0
    split: tuple[int, int] | None = (150, 250)
    pause: float = 0.15
    batch: int = 8
    rounding: Rounding = "half_to_even"
    seed: int = 0

    def __post_init__(self) -> None:
        if not MIN_SPEED <= self.speed <= MAX_SPEED:
            raise UserError(f"speed must be from {MIN_SPEED:g} to {MAX_SPEED:g}, got {self.speed:g}")
        if self.split is not None and not 1 <= self.split[0] <= self.split[1]:
            raise UserError("split must be the desired number of characters in a chunk, then the maximum, which is no "
                            f"smaller; got {self.split[0]},{self.split[1]}")
        if not 0 <= self.pause <= 10:
            raise UserError(f"pause must be from 0 to 10 seconds, got {self.pause:g}")
        if self.batch < 1:
            raise UserError(f"batch must be at least 1, got {self.batch}")
        if self.rounding not in ROUNDINGS:
            raise UserError(f"rounding must be {' or '.join(ROUNDINGS)}, got {self.rounding!r}")
        if self.seed < 0:
            raise UserError(f"seed must not be negative, got {self.seed}")


def read_options(options: Mapping[str, Any], model: Model) -> FastSpeechSettings:
    """Settings from the options of `ane say`. Raises UserError for a value out of range, or one without effect."""
    if "no_split" in options and "split" in options:
        raise UserError("split has no effect: no_split makes one chunk of the text")
    split = None if "no_split" in options else options.get("split", FastSpeechSettings.split)
    if "seed" in options and "waveglow" not in model.networks:
        raise UserError(f"seed has no effect on {model.name}: only a WaveGlow vocoder draws random numbers, and it has "
                        "none; leave it out")
    return FastSpeechSettings(options.get("speed", 1.0), split, seed=options.get("seed", 0))
