"""Everything that shapes a request apart from its text, voice and seed, and the presets that set it by name."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, Self

from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.sampling import Sampling
from ane.system.errors import UserError


@dataclass(frozen=True)
class Preset:
    """How much work a sentence is worth.

    Attributes:
        candidates: readings sampled for each chunk, of which ranking keeps the best.
        diffusion: how the spectrogram is sampled; None: HiFi-GAN makes sound straight from the latents.
    """

    candidates: int
    diffusion: Diffusion | None


# Upstream's four (api.py, tts_with_preset), `fastest`, its path without diffusion (api_fast.py), and three of few
# steps, measured by benchmarks/samplers.py.
PRESETS = {
    "fastest": Preset(candidates=1, diffusion=None),
    "quick": Preset(candidates=1, diffusion=Diffusion(10, "dpm++2m", guidance=None, spacing="logsnr")),
    "quick_guided": Preset(candidates=1, diffusion=Diffusion(10, "dpm++2m", spacing="logsnr")),
    "quick_ranked": Preset(candidates=16, diffusion=Diffusion(10, "dpm++2m", spacing="logsnr")),
    "ultra_fast": Preset(candidates=16, diffusion=Diffusion(steps=30, guidance=None)),
    "fast": Preset(candidates=96, diffusion=Diffusion(steps=80)),
    "standard": Preset(candidates=256, diffusion=Diffusion(steps=200)),
    "high_quality": Preset(candidates=256, diffusion=Diffusion(steps=400)),
}
DEFAULT_PRESET = "ultra_fast"       # of a model that names none
MOST_CANDIDATES = 10_000
LEAST_SILENCE = 0.01        # seconds: a cut needs room to fade in


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
        silence: seconds of it that are kept before and after each chunk's sound; None: all, as upstream.
        lanes: candidates sampled at a time.
    """

    candidates: int
    diffusion: Diffusion | None
    best: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    cvvp_amount: float = 0.0
    normaliser: str = "english"
    split: tuple[int, int] | None = (200, 300)
    silence: tuple[float, float] | None = None
    lanes: int = 16

    def __post_init__(self):
        if self.candidates > MOST_CANDIDATES:
            raise UserError(f"--candidates {self.candidates}: at most {MOST_CANDIDATES} are compared; upstream's most "
                            "thorough preset takes 256")
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
    def of(cls, preset: str | None = None, model: Mapping[str, Any] = MappingProxyType({}), **changes: Any) -> Self:
        """A preset as it suits a model.

        Args:
            preset: a name of ``PRESETS``; None: ``default_preset(model)``.
            model: the model's own ``settings``: "sampling" (fields of ``Sampling`` that differ from upstream's),
                "split", "silence", and "preset", the default one.

        Raises:
            UserError: there is no such preset, the model's settings are unknown or unfit, or a change makes no sense.
        """
        preset = default_preset(model) if preset is None else preset
        if preset not in PRESETS:
            raise UserError(f"no preset is named {preset!r}; there are {', '.join(PRESETS)}")
        chosen = PRESETS[preset]
        return cls(**{"candidates": chosen.candidates, "diffusion": chosen.diffusion, **_own(model), **changes})

    @property
    def ranked(self) -> bool:
        """Whether candidates are compared at all."""
        return self.candidates > 1


def default_preset(model: Mapping[str, Any]) -> str:
    """What a model is spoken with when no preset is asked for. UserError: its ``settings`` name one there is not."""
    preset = model.get("preset", DEFAULT_PRESET)
    if not isinstance(preset, str) or preset not in PRESETS:
        raise _unfit(f"no preset is named {preset!r}")
    return preset


def _own(stated: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's ``settings`` change of a preset. Raises UserError, which lays to the model what is unfit."""
    readers = {"sampling": _sampling, "split": _split, "silence": _silence}
    unknown = ", ".join(sorted(set(stated) - {*readers, "preset"}))
    if unknown:
        raise _unfit(f"{unknown} is unknown")
    default_preset(stated)
    return {key: read(stated[key]) for key, read in readers.items() if key in stated}


def _sampling(stated: Any) -> Sampling:
    if not isinstance(stated, Mapping):
        raise _unfit(f"sampling must be an object, not {stated!r}")
    defaults = asdict(Sampling())
    for name, value in stated.items():
        if name not in defaults:
            raise _unfit(f"sampling: {name} is unknown")
        whole = isinstance(defaults[name], int)
        if isinstance(value, bool) or not (isinstance(value, int if whole else int | float)
                                           or (value is None and defaults[name] is None)):
            raise _unfit(f"sampling: {name} must be a {'whole ' if whole else ''}number, not {value!r}")
    try:
        sampling = Sampling(**stated)
    except UserError as error:
        raise _unfit(f"sampling: {str(error).removeprefix('--')}") from error
    if sampling.max_codes < 1:      # how many there may be the decoder knows
        raise _unfit(f"sampling: max_codes {sampling.max_codes}: at least one is needed")
    return sampling


def _split(stated: Any) -> tuple[int, int]:
    whole = isinstance(stated, list | tuple) and all(type(length) is int for length in stated)
    if not whole or len(stated) != 2 or not 1 <= stated[0] <= stated[1]:
        raise _unfit(f"split must be the desired and the maximum number of characters in a chunk, not {stated!r}")
    return stated[0], stated[1]


def _silence(stated: Any) -> tuple[float, float]:
    numbers = isinstance(stated, list | tuple) and all(type(seconds) in (int, float) for seconds in stated)
    if not numbers or len(stated) != 2 or not all(LEAST_SILENCE <= seconds < inf for seconds in stated):
        raise _unfit(f"silence must be the seconds kept before and after the sound, {LEAST_SILENCE} at least, "
                     f"not {stated!r}")
    return stated[0], stated[1]


def _unfit(fault: str) -> UserError:
    return UserError(f"the model's settings (bundle.json) are of a later version or damaged: {fault}; "
                     "update tortoise-ane, or import the model again")
