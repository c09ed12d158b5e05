"""Presets by name: upstream's four, and `fastest`, the path without diffusion."""

from dataclasses import dataclass

from ane.diffusion import Diffusion
from ane.errors import UserError


@dataclass(frozen=True)
class Preset:
    """How much work a sentence is worth.

    Attributes:
        candidates: readings sampled for each chunk, of which ranking keeps the best.
        diffusion: how the spectrogram is sampled; None: HiFi-GAN makes sound straight from the latents.
    """

    candidates: int
    diffusion: Diffusion | None


PRESETS = {
    "fastest": Preset(candidates=1, diffusion=None),
    "ultra_fast": Preset(candidates=16, diffusion=Diffusion(steps=30, guidance=None)),
    "fast": Preset(candidates=96, diffusion=Diffusion(steps=80)),
    "standard": Preset(candidates=256, diffusion=Diffusion(steps=200)),
    "high_quality": Preset(candidates=256, diffusion=Diffusion(steps=400)),
}
DEFAULT_PRESET = "ultra_fast"


def find_preset(name: str) -> Preset:
    """The preset of that name. Raises UserError when there is none."""
    if name not in PRESETS:
        raise UserError(f"no preset is named {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
