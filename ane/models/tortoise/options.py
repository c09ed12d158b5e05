"""Settings from the options of `ane say`, which are named as there."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ane.bundles.model import Model
from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.settings import Settings, default_preset
from ane.system.errors import UserError

DIRECT = ("candidates", "best", "lanes", "normaliser", "cvvp_amount")
SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty", "typical_mass", "max_codes")
DIFFUSION = ("steps", "sampler", "spacing", "guidance", "guidance_steps")
OPTIONS = frozenset((*DIRECT, *SAMPLING, *DIFFUSION, "noise", "split", "no_split", "preset", "seed", "voice", "speed",
                     "stream"))


def read_options(options: Mapping[str, Any], model: Model) -> Settings:
    """The preset with the model's own settings over it, and the options that were given over both.

    Raises:
        UserError: a value out of range, or an option without effect.
    """
    preset = options.get("preset") or default_preset(model.settings)
    settings = Settings.of(preset, model.settings, **_select(options, DIRECT))
    refuse_unused_options(options, settings, preset)
    sampling = replace(settings.sampling, **_select(options, SAMPLING))
    split = None if "no_split" in options else options.get("split", settings.split)
    return replace(settings, sampling=sampling, diffusion=read_diffusion(options, settings.diffusion), split=split)


def read_diffusion(options: Mapping[str, Any], diffusion: Diffusion | None) -> Diffusion | None:
    if diffusion is None:
        return None
    changes = _select(options, DIFFUSION)
    if "noise" in options:
        changes["temperature"] = options["noise"]
    try:
        return replace(diffusion, **changes)
    except UserError as error:
        raise UserError(re.sub(r"^temperature\b", "noise", str(error))) from error


def refuse_unused_options(options: Mapping[str, Any], settings: Settings, preset: str) -> None:
    """Raise UserError for an option that would be accepted and ignored."""
    rules = (
        (settings.diffusion is None, (*DIFFUSION, "noise"),
         f"preset {preset} has no diffusion; choose another preset, or leave it out"),
        (not settings.ranked, ("cvvp_amount",), "only one candidate is sampled; raise candidates, or leave it out"),
        ("no_split" in options, ("split",), "no_split makes one chunk of the text"),
    )
    for unused, names, why in rules:
        for name in names:
            if unused and name in options:
                raise UserError(f"{name} has no effect: {why}")


def _select(options: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}
