"""Define the settings of a request to a Tortoise model, and the presets, which are named sets of settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, ClassVar, Literal, Self

from ane.models.tortoise.schedule import TRAINED_STEPS, SamplerName
from ane.speech.settings import SpeechSettings, setting, split_setting
from ane.system.checked import validated
from ane.system.errors import NoEffectError, UserError

SAMPLE_RATE = 24000  # Hz
CODES, DIFFUSION, TEXT = "candidates and codes", "diffusion", "text"  # groups of options
DEFAULT_PRESET = "ultra_fast"  # preset of a model whose settings name none
MAX_CANDIDATES = 10_000
MIN_SILENCE = 0.01  # seconds; the sound fades in and out over this time


@validated
class Sampling:
    """Settings for sampling mel codes from the decoder's logits.

    The default of ``top_k`` comes from transformers, and the other defaults come from upstream's presets.

    Attributes:
        temperature: Number by which the logits are divided.
        repetition_penalty: Penalty for codes that were already sampled. 1 means no penalty.
        top_k: Number of the most likely codes, from which one is sampled.
        top_p: Cumulative probability of the codes that can be sampled (nucleus sampling).
        typical_mass: Probability mass of typical sampling, between 0 and 1. ``None`` turns typical sampling off.
        max_codes: Largest number of codes in a candidate. Sampling ends there, even without a stop code.
    """

    temperature: float = setting(0.8, "sampling temperature of the codes", metavar="T", group=CODES, ge=0.01, le=100)
    repetition_penalty: float = setting(
        2.0, "penalty for codes already sampled, 1 for none", metavar="R", group=CODES, ge=0.01, le=100
    )
    top_k: int = setting(50, "sample from only the K most likely codes", metavar="K", group=CODES, ge=1)
    top_p: float = setting(
        0.8, "cumulative probability of the codes to sample from", metavar="P", group=CODES, gt=0, le=1
    )
    typical_mass: float | None = setting(
        None, "probability mass of typical sampling", metavar="M", group=CODES, gt=0, lt=1
    )
    max_codes: int = setting(
        500, "largest number of codes in a chunk (speech has 21.5 per second)", metavar="N", group=CODES, ge=1
    )


@validated
class Diffusion:
    """Settings of the diffusion, which samples the mel spectrogram.

    Attributes:
        steps: Number of denoising steps. Each step uses one of the 4000 timesteps that the network was trained with.
        sampler: Name of the sampler, a key of ``ane.models.tortoise.schedule.SAMPLERS``.
        guidance: Scale k of classifier-free guidance. The scale rises from k/steps at the first step to k at the last.
            ``None`` means no guidance.
        temperature: Factor by which the initial noise is multiplied.
        spacing: Rule that chooses the timesteps: "even" or "logsnr" (see ``spaced_timesteps``).
        guidance_steps: Number of steps at the end that are guided. A guided step runs the network twice. ``None`` means
            that all steps are guided. (Kynkäänniemi et al. 2024 limit guidance to an interval of steps.)
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
        "even", "spacing of the denoising steps (use logsnr with ddim and dpm++2m)", group=DIFFUSION
    )
    guidance_steps: int | None = setting(
        None, "guide only the last N denoising steps", metavar="N", group=DIFFUSION, ge=1
    )

    def __post_init__(self) -> None:
        if self.guidance_steps is not None and not self.guidance:
            advice = "add guidance=2, or leave it out"
            raise NoEffectError("guidance_steps", "without guidance", advice, ("guidance",))


@dataclass(frozen=True)
class Preset:
    """Settings that trade speed for quality.

    Attributes:
        candidates: Number of candidates (code sequences) that are sampled for each chunk of text. CLVP ranks them.
        diffusion: Settings of the diffusion. ``None`` means no diffusion: a vocoder makes sound from the latents.
        upstream: Whether upstream has a preset of this name (api.py, tts_with_preset).
    """

    candidates: int
    diffusion: Diffusion | None
    upstream: bool = False

    @property
    def work(self) -> str:
        """The work per chunk as text, such as "16 candidates × 30 guided steps"."""
        candidates = f"{self.candidates} candidate{'s' * (self.candidates > 1)}"
        if self.diffusion is None:
            return f"{candidates}, no diffusion"
        guided = " guided" if self.diffusion.guidance else ""
        return f"{candidates} × {self.diffusion.steps}{guided} steps"


# Upstream's presets are marked with upstream=True. `fastest` does what upstream's api_fast.py does: it skips diffusion.
# The other presets use few steps of a better sampler, and their names are "candidates x steps".
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
    """Settings of a request. To make them from a preset, call ``TortoiseSettings.of(preset, **changes)``.

    Attributes:
        candidates: Number of candidates (code sequences) that are sampled for each chunk of text.
        diffusion: Settings of the diffusion. ``None`` means no diffusion: a vocoder makes sound from the latents.
        best: Number of candidates of each chunk that are turned into sound, best first.
        sampling: Settings for sampling codes.
        normaliser: Name of the function that spells out numbers and abbreviations, a key of ``ane.text.NORMALISERS``.
        clip_mode: Part of the voice's clips that is encoded: the argument ``mode`` of
            ``ane.models.tortoise.voices.encode_clips``.
        split: Desired and maximum number of characters in a chunk. ``None`` makes the whole text one chunk.
        silence: Seconds of silence to leave before and after the speech of each chunk. ``None`` leaves all silence, as
            upstream does.
        codes_per_word: Largest number of codes per word of a chunk's text (speech has 21.5 codes per second). With this
            limit, a chunk whose text ends without a punctuation mark also gets a full stop. Small models need both the
            limit and the full stop. Otherwise they ramble after a single word. ``None`` means no limit per word and no
            added full stop.
        lanes: Number of candidates that the decoder samples at once. They may belong to several chunks.
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
        "audio of the voice's clips to encode: 'first' takes the first seconds of each clip, 'slices' takes all slices "
        "with the same weight, and 'whole' takes all clips with the same weight",
        group=TEXT,
    )
    split: tuple[int, int] | None = split_setting(200, 300)
    silence: tuple[float, float] | None = None
    codes_per_word: int | None = None
    lanes: int = setting(16, "candidates sampled at once, from all chunks", metavar="N", group=CODES, ge=1)

    def __post_init__(self) -> None:
        if self.best > self.candidates:
            raise UserError(
                f"best must be from 1 to the number of candidates ({self.candidates}), got {self.best}", "best"
            )
        super().__post_init__()
        if self.silence is not None and not all(MIN_SILENCE <= seconds < inf for seconds in self.silence):
            raise UserError(
                f"silence must be two numbers, the seconds to leave before and after the speech, each at least "
                f"{MIN_SILENCE}, got {self.silence[0]},{self.silence[1]}",
                "silence",
            )
        if self.codes_per_word is not None and self.codes_per_word < 1:
            raise UserError(f"codes_per_word must be at least 1, got {self.codes_per_word}", "codes_per_word")

    @classmethod
    def of(cls, preset: str | None = None, model: Mapping[str, Any] | None = None, **changes: Any) -> Self:
        """Make settings from a preset. The model's settings override the preset, and ``changes`` override both.

        Args:
            preset: Name of a preset, a key of ``PRESETS``. ``None`` means ``default_preset(model)``.
            model: Settings in the model's bundle.json. The keys are "sampling" (the fields of ``Sampling`` that differ
                from the defaults), "split", "silence", "normaliser", "codes_per_word", and "preset" (the name of the
                default preset).
            changes: Fields of ``TortoiseSettings`` and their values.

        Raises:
            UserError: The preset does not exist. Or a setting in ``model`` or ``changes`` is unknown or out of range.
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
    """Return the name of a model's default preset. Raises UserError if the model's settings name an unknown preset."""
    preset = (model or {}).get("preset", DEFAULT_PRESET)
    if not isinstance(preset, str) or preset not in PRESETS:
        raise _model_error(f"no preset is named {preset!r}")
    return preset


def _model_changes(model: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check a model's settings, and return them as fields of ``TortoiseSettings``.

    Raises UserError if a setting is invalid.
    """
    default_preset(model)
    stated = {name: value for name, value in (model or {}).items() if name != "preset"}
    unknown = ", ".join(sorted(stated.keys() - {"sampling", "split", "silence", "normaliser", "codes_per_word"}))
    if unknown:
        raise _model_error(f"{unknown} is unknown")
    if not isinstance(stated.get("sampling", {}), Mapping) or stated.get("split", ()) is None:
        raise _model_error("sampling must be a JSON object, and split must be two numbers")
    changes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value  # JSON has lists, and the settings have tuples
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
        f"the model's settings in bundle.json are not valid, because {fault}: update tortoise-ane in case a later "
        "version wrote them, or import the model again"
    )
