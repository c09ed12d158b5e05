"""The settings of a request, apart from its text, voice and seed, and the presets for them."""

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
    """A named choice between speed and quality.

    Attributes:
        candidates: number sampled for each chunk; ranking keeps the best.
        diffusion: how the spectrogram is sampled; None: HiFi-GAN makes audio straight from the latents.
        upstream: whether upstream has a preset of this name (api.py, tts_with_preset).
    """

    candidates: int
    diffusion: Diffusion | None
    upstream: bool = False

    @property
    def work(self) -> str:
        """The work per chunk as text, such as "16 candidates × 30 steps". A guided step runs the denoiser twice."""
        candidates = f"{self.candidates} candidate{'s' * (self.candidates > 1)}"
        if self.diffusion is None:
            return f"{candidates}, no diffusion (HiFi-GAN)"
        guided = " guided" if self.diffusion.guidance else ""
        return f"{candidates} × {self.diffusion.steps}{guided} steps"


# Those not from upstream use few steps of a better sampler, chosen with benchmarks/samplers.py; their names are
# candidates x steps. `fastest` is upstream's path without diffusion (api_fast.py).
PRESETS = {
    "fastest": Preset(1, None),
    "1x10": Preset(1, Diffusion(10, "dpm++2m", guidance=None, spacing="logsnr")),
    "1x10_guided": Preset(1, Diffusion(10, "dpm++2m", spacing="logsnr")),
    "16x10_guided": Preset(16, Diffusion(10, "dpm++2m", spacing="logsnr")),
    "ultra_fast": Preset(16, Diffusion(steps=30, guidance=None), upstream=True),
    "fast": Preset(96, Diffusion(steps=80), upstream=True),
    "standard": Preset(256, Diffusion(steps=200), upstream=True),
    "high_quality": Preset(256, Diffusion(steps=400), upstream=True),
}
DEFAULT_PRESET = "ultra_fast"       # for a model whose settings name none
MAX_CANDIDATES = 10_000
MIN_SILENCE = 0.01          # seconds; the audio is faded in and out there


@dataclass(frozen=True)
class Settings:
    """Settings of a request; ``Settings.of(preset, **changes)`` makes them from a preset.

    Attributes:
        candidates: number sampled for each chunk.
        diffusion: how the spectrogram is sampled; None for the HiFi-GAN path.
        best: number of candidates per chunk that are synthesised, best first.
        sampling: how codes are sampled.
        cvvp_amount: share of CVVP in the ranking, 0 to 1; above 0 the voice must be clips.
        normaliser: a name of ``ane.text.NORMALISERS``.
        split: desired and maximum characters of a chunk; None: the text is one chunk.
        silence: seconds of silence kept before and after each chunk's speech; None: all, as in upstream.
        lanes: candidates sampled at a time, at most.

    Raises:
        UserError: a value is out of range.
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

    def __post_init__(self) -> None:
        if not 1 <= self.candidates <= MAX_CANDIDATES:
            raise UserError(f"candidates must be from 1 to {MAX_CANDIDATES}, got {self.candidates}; "
                            "upstream's most thorough preset takes 256")
        if not 1 <= self.best <= self.candidates:
            raise UserError(f"best must be from 1 to the number of candidates ({self.candidates}), "
                            f"got {self.best}")
        if not 0 <= self.cvvp_amount <= 1:
            raise UserError(f"cvvp_amount must be a share from 0 to 1, got {self.cvvp_amount}")
        if self.lanes < 1:
            raise UserError(f"lanes must be at least 1, got {self.lanes}")
        if self.split is not None and not 1 <= self.split[0] <= self.split[1]:
            raise UserError("split must be the desired number of characters in a chunk, then the "
                            f"maximum, which is no smaller; got {self.split[0]},{self.split[1]}")

    @classmethod
    def of(cls, preset: str | None = None, model: Mapping[str, Any] = MappingProxyType({}), **changes: Any) -> Self:
        """A preset, overridden by a model's own settings, overridden by ``changes``.

        Args:
            preset: a name of ``PRESETS``; None: ``default_preset(model)``.
            model: the model's own ``settings``: "sampling" (fields of ``Sampling`` that differ from upstream's),
                "split", "silence", and "preset", the default preset.

        Raises:
            UserError: there is no such preset, the model's settings are unknown or out of range, or a change is.
        """
        preset = default_preset(model) if preset is None else preset
        if preset not in PRESETS:
            raise UserError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
        chosen = PRESETS[preset]
        return cls(**{"candidates": chosen.candidates, "diffusion": chosen.diffusion, **_model_changes(model),
                      **changes})

    @property
    def ranked(self) -> bool:
        return self.candidates > 1


def default_preset(model: Mapping[str, Any]) -> str:
    """The preset of a request that names none. Raises UserError when the model's ``settings`` name an unknown one."""
    preset = model.get("preset", DEFAULT_PRESET)
    if not isinstance(preset, str) or preset not in PRESETS:
        raise _model_error(f"no preset is named {preset!r}")
    return preset


def _model_changes(model: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``Settings`` that a model's ``settings`` change. Raises UserError for invalid ones."""
    readers = {"sampling": _sampling, "split": _split, "silence": _silence}
    unknown = ", ".join(sorted(set(model) - {*readers, "preset"}))
    if unknown:
        raise _model_error(f"{unknown} is unknown")
    default_preset(model)
    return {key: read(model[key]) for key, read in readers.items() if key in model}


def _sampling(fields: Any) -> Sampling:
    if not isinstance(fields, Mapping):
        raise _model_error(f"sampling must be an object, not {fields!r}")
    defaults = asdict(Sampling())
    for name, value in fields.items():
        if name not in defaults:
            raise _model_error(f"sampling: {name} is unknown")
        whole = isinstance(defaults[name], int)
        if isinstance(value, bool) or not (isinstance(value, int if whole else int | float)
                                           or (value is None and defaults[name] is None)):
            raise _model_error(f"sampling: {name} must be a {'whole ' if whole else ''}number, not {value!r}")
    try:
        sampling = Sampling(**fields)
    except UserError as error:
        raise _model_error(f"sampling: {error}") from error
    if sampling.max_codes < 1:      # the decoder knows the upper limit
        raise _model_error(f"sampling: max_codes must be at least 1, not {sampling.max_codes}")
    return sampling


def _split(value: Any) -> tuple[int, int]:
    whole = isinstance(value, list | tuple) and all(type(length) is int for length in value)
    if not whole or len(value) != 2 or not 1 <= value[0] <= value[1]:
        raise _model_error(f"split must be the desired and the maximum number of characters in a chunk, not {value!r}")
    return value[0], value[1]


def _silence(value: Any) -> tuple[float, float]:
    numbers = isinstance(value, list | tuple) and all(type(seconds) in (int, float) for seconds in value)
    if not numbers or len(value) != 2 or not all(MIN_SILENCE <= seconds < inf for seconds in value):
        raise _model_error(f"silence must be the seconds kept before and after the speech, {MIN_SILENCE} at least, "
                           f"not {value!r}")
    return value[0], value[1]


def _model_error(fault: str) -> UserError:
    return UserError(f"the model's settings (bundle.json) are of a later version or damaged: {fault}; "
                     "update tortoise-ane, or import the model again")
