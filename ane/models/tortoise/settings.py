"""Define the settings of a request to Tortoise, and the presets for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, ClassVar, Literal, Self

from ane.models.tortoise.schedule import TRAINED_STEPS, SamplerName
from ane.speech.settings import SpeechSettings, setting, split_setting
from ane.system.checked import validated
from ane.system.errors import UserError

SAMPLE_RATE = 24000  # Hz
CODES, DIFFUSION, TEXT = "candidates and codes", "diffusion", "text"  # groups of options
DEFAULT_PRESET = "ultra_fast"  # preset of a model whose settings name none
MAX_CANDIDATES = 10_000
MIN_SILENCE = 0.01  # seconds, in which the audio is faded in and out


@validated
class Sampling:
    """Settings of the sampling of codes. The defaults are from upstream's presets, and top_k 50 from transformers.

    Attributes:
        temperature: Divisor of the logits.
        repetition_penalty: Penalty for codes that were already sampled. 1 means no penalty.
        top_k: Number of most likely codes that can be sampled.
        top_p: Share of the probability from which codes are sampled.
        typical_mass: Mass of typical sampling, between 0 and 1. ``None`` turns typical sampling off.
        max_codes: Most codes of a candidate. It ends there if no stop code was sampled.
    """

    temperature: float = setting(0.8, "sampling temperature of the codes", metavar="T", group=CODES, ge=0.01, le=100)
    repetition_penalty: float = setting(
        2.0, "penalty for codes already sampled, 1 for none", metavar="R", group=CODES, ge=0.01, le=100
    )
    top_k: int = setting(50, "number of codes to sample from", metavar="K", group=CODES, ge=1)
    top_p: float = setting(0.8, "share of probability to sample codes from", metavar="P", group=CODES, gt=0, le=1)
    typical_mass: float | None = setting(None, "typical sampling with this mass", metavar="M", group=CODES, gt=0, lt=1)
    max_codes: int = setting(500, "codes in a chunk at most, 21.5 a second", metavar="N", group=CODES, ge=1)


@validated
class Diffusion:
    """Settings of the diffusion, which samples the spectrogram.

    Attributes:
        steps: Number of denoising steps, out of 4000 trained timesteps.
        sampler: Name of one of ``ane.models.tortoise.schedule.SAMPLERS``.
        guidance: Scale k of classifier-free guidance at the last step, ramped up from k/steps. ``None`` means no
            guidance.
        temperature: Scale of the initial noise.
        spacing: Spacing of the steps among the trained timesteps (``spaced_timesteps``).
        guidance_steps: Number of last steps that are guided, each of which takes two passes (Kynkäänniemi et al. 2024
            limit guidance to an interval). ``None`` means all steps.
    """

    steps: int = setting(100, "number of denoising steps", metavar="N", group=DIFFUSION, ge=1, le=TRAINED_STEPS)
    sampler: SamplerName = setting("p", "sampler of the diffusion", group=DIFFUSION)
    guidance: float | None = setting(
        2.0, "scale of classifier-free guidance, 0 for none", metavar="K", group=DIFFUSION, ge=0, le=100
    )
    temperature: float = setting(
        1.0,
        "diffusion temperature: scale of the initial noise",
        metavar="T",
        option="noise",
        group=DIFFUSION,
        ge=0,
        le=100,
    )
    spacing: Literal["even", "logsnr"] = setting(
        "even", "spacing of the steps (use logsnr with ddim and dpm++2m)", group=DIFFUSION
    )
    guidance_steps: int | None = setting(None, "guide the last N steps only", metavar="N", group=DIFFUSION, ge=1)

    def __post_init__(self) -> None:
        if self.guidance_steps is not None and not self.guidance:
            raise UserError(
                "guidance_steps has no effect without guidance: add guidance=2, or leave it out", "guidance_steps"
            )


@dataclass(frozen=True)
class Preset:
    """A named choice between speed and quality.

    Attributes:
        candidates: Number of candidates per chunk. Ranking chooses the best.
        diffusion: Settings of the diffusion. ``None`` makes sound straight from the latents.
        upstream: Whether upstream has a preset of this name (api.py, tts_with_preset).
    """

    candidates: int
    diffusion: Diffusion | None
    upstream: bool = False

    @property
    def work(self) -> str:
        """The work per chunk as text, such as "16 candidates × 30 steps". A guided step runs the denoiser twice."""
        candidates = f"{self.candidates} candidate{'s' * (self.candidates > 1)}"
        if self.diffusion is None:
            return f"{candidates}, no diffusion"
        guided = " guided" if self.diffusion.guidance else ""
        return f"{candidates} × {self.diffusion.steps}{guided} steps"


# Presets that are not from upstream use few steps of a better sampler. Their names are candidates x steps. `fastest` is
# upstream's path without diffusion (api_fast.py).
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


@validated
class TortoiseSettings(SpeechSettings):
    """Settings of a request. ``TortoiseSettings.of(preset, **changes)`` makes them from a preset.

    Attributes:
        candidates: Number of candidates per chunk.
        diffusion: Settings of the diffusion. ``None`` means the path without diffusion.
        best: Number of candidates per chunk that become sound, best first.
        sampling: Settings of the sampling of codes.
        normaliser: Name of one of ``ane.text.NORMALISERS``.
        clip_mode: Mode of ``ane.models.tortoise.voices.encode_clips``.
        split: Desired and maximum characters of a chunk. ``None`` makes the text one chunk.
        silence: Seconds of silence that stay before and after each chunk's speech. ``None`` keeps all silence, as in
            upstream.
        codes_per_word: Most codes in a chunk per word of its text, of which a second has 21.5. Text without a mark at
            its end then also gets a full stop. A small model that rambles after a single word needs both. ``None``
            means neither.
        lanes: Number of candidates that are sampled at once, over all chunks.
    """

    presets: ClassVar[Sequence[str]] = tuple(PRESETS)

    candidates: int = setting(
        16,
        "candidates sampled for each chunk (default: the preset's)",
        metavar="N",
        group=CODES,
        ge=1,
        le=MAX_CANDIDATES,
    )
    diffusion: Diffusion | None = field(default_factory=Diffusion)
    best: int = setting(1, "write the K best candidates, as OUT-1.wav, OUT-2.wav, …", metavar="K", group=CODES, ge=1)
    sampling: Sampling = field(default_factory=Sampling)
    normaliser: Literal["english", "upstream", "basic", "de", "es", "fr", "it", "nl", "pl", "pt"] = setting(
        "english", "how numbers and abbreviations are spelt out (default: the model's)", group=TEXT
    )
    clip_mode: Literal["first", "slices", "whole"] = setting(
        "first",
        "parts of the voice's clips that are encoded: the first seconds, all slices alike, or all of each "
        "clip, clips alike",
        group=TEXT,
    )
    split: tuple[int, int] | None = split_setting(200, 300)
    silence: tuple[float, float] | None = None
    codes_per_word: int | None = None
    lanes: int = setting(16, "candidates sampled at a time, over all chunks", metavar="N", group=CODES, ge=1)

    def __post_init__(self) -> None:
        if self.best > self.candidates:
            raise UserError(
                f"best must be from 1 to the number of candidates ({self.candidates}), got {self.best}", "best"
            )
        super().__post_init__()
        if self.silence is not None and not all(MIN_SILENCE <= seconds < inf for seconds in self.silence):
            raise UserError(
                f"silence must be the seconds kept before and after the speech, {MIN_SILENCE} at least, "
                f"got {self.silence[0]},{self.silence[1]}",
                "silence",
            )
        if self.codes_per_word is not None and self.codes_per_word < 1:
            raise UserError(f"codes_per_word must be at least 1, got {self.codes_per_word}", "codes_per_word")

    @classmethod
    def of(cls, preset: str | None = None, model: Mapping[str, Any] | None = None, **changes: Any) -> Self:
        """Make settings from a preset. The model's settings override the preset, and ``changes`` override both.

        Args:
            preset: Name of one of ``PRESETS``. ``None`` means ``default_preset(model)``.
            model: The model's ``settings``: "sampling" (fields of ``Sampling`` that differ from upstream's), "split",
                "silence", "normaliser", "codes_per_word", and "preset", the default preset.
            changes: Fields of the settings.

        Raises:
            UserError: The preset does not exist, or a setting of the model or a change is unknown or out of range.
        """
        preset = default_preset(model) if preset is None else preset
        if preset not in PRESETS:
            raise UserError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}", "preset")
        chosen = {item.name: getattr(PRESETS[preset], item.name) for item in fields(Preset) if item.name != "upstream"}
        return cls(**{**chosen, **_model_changes(model), **changes})

    @property
    def ranked(self) -> bool:
        return self.candidates > 1


def default_preset(model: Mapping[str, Any] | None = None) -> str:
    """Return the default preset. Raises UserError if the model's ``settings`` name an unknown preset."""
    preset = (model or {}).get("preset", DEFAULT_PRESET)
    if not isinstance(preset, str) or preset not in PRESETS:
        raise _model_error(f"no preset is named {preset!r}")
    return preset


def _model_changes(model: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of ``TortoiseSettings`` that a model changes. Raises UserError for invalid settings."""
    default_preset(model)
    stated = {name: value for name, value in (model or {}).items() if name != "preset"}
    unknown = ", ".join(sorted(stated.keys() - {"sampling", "split", "silence", "normaliser", "codes_per_word"}))
    if unknown:
        raise _model_error(f"{unknown} is unknown")
    if not isinstance(stated.get("sampling", {}), Mapping) or stated.get("split", ()) is None:
        raise _model_error("sampling must be an object, and split two numbers")
    changes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value  # JSON has lists
        for name, value in stated.items()
    }
    try:
        if "sampling" in changes:
            changes["sampling"] = Sampling(**changes["sampling"])
        TortoiseSettings(**changes)
    except UserError as error:
        raise _model_error(str(error)) from error
    return changes


def _model_error(fault: str) -> UserError:
    return UserError(
        f"the model's settings (bundle.json) are of a later version or damaged, because {fault}: "
        "update tortoise-ane, or import the model again"
    )
