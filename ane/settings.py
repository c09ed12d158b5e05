"""Everything that shapes a request apart from its text, voice and seed, and the presets that set it by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from ane.diffusion import Diffusion
from ane.errors import UserError
from ane.sampling import Sampling


@dataclass(frozen=True)
class Preset:
    """How much work a sentence is worth.

    Attributes:
        candidates: readings sampled for each chunk, of which ranking keeps the best.
        diffusion: how the spectrogram is sampled; None: HiFi-GAN makes sound straight from the latents.
    """

    candidates: int
    diffusion: Diffusion | None


# Upstream's four (api.py, tts_with_preset), and `fastest`, its path without diffusion (api_fast.py).
PRESETS = {
    "fastest": Preset(candidates=1, diffusion=None),
    "ultra_fast": Preset(candidates=16, diffusion=Diffusion(steps=30, guidance=None)),
    "fast": Preset(candidates=96, diffusion=Diffusion(steps=80)),
    "standard": Preset(candidates=256, diffusion=Diffusion(steps=200)),
    "high_quality": Preset(candidates=256, diffusion=Diffusion(steps=400)),
}
DEFAULT_PRESET = "ultra_fast"


@dataclass(frozen=True)
class Settings:
    """A preset with changes; ``Settings.of(preset, **changes)`` makes one.

    Attributes:
        candidates: readings sampled for each chunk.
        diffusion: how the spectrogram is sampled; None for the HiFi-GAN path.
        best: how many of the candidates become sound, best first.
        sampling: how codes are drawn.
        cvvp_amount: share of CVVP in the ranking, 0 to 1; it needs a voice of clips.
        normaliser: a name of ``ane.text.NORMALISERS``.
        split: desired and maximum characters of a chunk; None: the text is spoken in one go.
        lanes: candidates sampled at a time.
    """

    candidates: int
    diffusion: Diffusion | None
    best: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    cvvp_amount: float = 0.0
    normaliser: str = "english"
    split: tuple[int, int] | None = (200, 300)
    lanes: int = 8

    def __post_init__(self):
        if not 1 <= self.best <= self.candidates:
            raise UserError(f"cannot keep the best {self.best} of {self.candidates} candidates: "
                            "--best goes from 1 to --candidates")
        if not 0 <= self.cvvp_amount <= 1:
            raise UserError(f"--cvvp-amount {self.cvvp_amount}: it is a share, from 0 to 1")
        if self.lanes < 1:
            raise UserError(f"--lanes {self.lanes}: at least one lane is needed")
        if self.split is not None and not 1 <= self.split[0] <= self.split[1]:
            raise UserError(f"--split {self.split[0]},{self.split[1]}: first the desired number of characters in a "
                            "chunk, then the maximum, which is no smaller")

    @classmethod
    def of(cls, preset: str = DEFAULT_PRESET, model: Mapping[str, Any] = MappingProxyType({}), **changes: Any) -> Self:
        """A preset as it suits a model.

        Args:
            model: the model's own ``settings``: "sampling" (fields of ``Sampling`` that differ from upstream's) and
                "split".

        Raises:
            UserError: there is no such preset, the model's settings are unknown, or a change makes no sense.
        """
        if preset not in PRESETS:
            raise UserError(f"no preset is named {preset!r}; there are {', '.join(PRESETS)}")
        chosen = PRESETS[preset]
        try:
            own = {key: {"sampling": lambda value: Sampling(**value), "split": tuple}[key](value)
                   for key, value in model.items()}
        except (KeyError, TypeError) as error:
            raise UserError(f"the model's settings are not known to this version ({error}): update tortoise-ane, or "
                            "import the model again") from error
        return cls(**{"candidates": chosen.candidates, "diffusion": chosen.diffusion, **own, **changes})

    @property
    def ranked(self) -> bool:
        """Whether candidates are compared at all."""
        return self.candidates > 1
