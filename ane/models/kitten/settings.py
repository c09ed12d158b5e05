"""The settings of a request, apart from its text and voice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ane.bundles.model import Model
from ane.system.errors import UserError

MIN_SPEED, MAX_SPEED = 0.1, 10.0
OPTIONS = frozenset(("voice", "speed", "published", "stream"))


@dataclass(frozen=True)
class KittenSettings:
    """Settings of a request.

    Attributes:
        speed: speed of speech, 1 as trained, 2 twice as fast; it is multiplied by the voice's own factor.
        published: exactly the chunks and the cut of KittenTTS 0.8.1: each sentence on its own, without its mark, 5000
            samples less. False: sentences keep their marks, and silence at the end of a chunk is trimmed.

    Raises:
        UserError: the speed is out of range.
    """

    speed: float = 1.0
    published: bool = False

    def __post_init__(self) -> None:
        if not MIN_SPEED <= self.speed <= MAX_SPEED:
            raise UserError(f"speed must be from {MIN_SPEED:g} to {MAX_SPEED:g}, got {self.speed:g}")


def read_options(options: Mapping[str, Any], model: Model) -> KittenSettings:
    """Settings from the options of `ane say`. Raises UserError for a speed out of range."""
    return KittenSettings(options.get("speed", 1.0), options.get("published", False))
