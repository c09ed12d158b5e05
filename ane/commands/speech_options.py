"""The flags for synthesis, and reading settings from them."""

import argparse
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ane.bundles import Model
from ane.commands.arguments import natural, pair, positive, rare_group
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.models.tortoise.diffusion import Diffusion
    from ane.models.tortoise.settings import Settings


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for synthesis. Every default is None, so that a flag without effect can be refused."""
    from ane.models.tortoise.diffusion import SAMPLERS, SPACINGS
    from ane.models.tortoise.settings import DEFAULT_PRESET
    from ane.text import NORMALISERS

    parser.add_argument("--preset", metavar="NAME", help="how much work to do; '?' lists the presets (default: the "
                                                         f"model's, or {DEFAULT_PRESET})")
    parser.add_argument("--seed", type=natural, metavar="N",
                        help="random seed, to repeat a result (default: a new one, which is printed)")
    add = rare_group(parser, "candidates and codes",
                     "A model may have defaults of its own, as the embedded one does.").add_argument
    add("--candidates", type=positive, metavar="N", help="candidates sampled for each chunk (default: the preset's)")
    add("--best", type=positive, metavar="K", help="write the K best candidates, as OUT-1.wav, OUT-2.wav, …")
    add("--cvvp-amount", type=float, metavar="SHARE", help="share of CVVP in ranking, 0 to 1 (default: 0)")
    add("--temperature", type=float, metavar="T", help="sampling temperature of the codes (default: 0.8)")
    add("--top-p", type=float, metavar="P", help="share of probability to sample codes from (default: 0.8)")
    add("--top-k", type=int, metavar="K", help="number of codes to sample from (default: 50)")
    add("--repetition-penalty", type=float, metavar="R", help="penalty for codes already sampled (default: 2)")
    add("--typical-mass", type=float, metavar="M", help="typical sampling with this mass (default: off)")
    add("--max-codes", type=positive, metavar="N", help="codes in a chunk at most, 21.5 a second (default: 500)")
    add = rare_group(parser, "diffusion", "Defaults are the preset's.").add_argument
    add("--steps", type=positive, metavar="N", help="number of denoising steps")
    add("--sampler", choices=SAMPLERS, help="sampler of the diffusion")
    add("--spacing", choices=SPACINGS, help="spacing of the steps; use logsnr with ddim and dpm++2m")
    add("--guidance", type=float, metavar="K", help="scale of classifier-free guidance, 0 for none")
    add("--noise", type=float, metavar="T", help="diffusion temperature: scale of the initial noise")
    add = rare_group(parser, "text").add_argument
    add("--normaliser", choices=NORMALISERS, help="how numbers and abbreviations are spelt out (default: english)")
    add("--split", type=pair, metavar="D,M", help="chunks of about D and at most M characters (default: 200,300)")
    add("--no-split", action="store_true", help="speak the text as one chunk")


def read_settings(args: argparse.Namespace, model: Model) -> "Settings":
    """The preset with the model's own settings over it, and the flags over both.

    Raises:
        UserError: a value out of range, or a flag without effect.
    """
    from ane.models.tortoise.settings import Settings

    settings = Settings.of(args.preset, model.settings, **given(
        args, ("candidates", "best", "lanes", "normaliser", "cvvp_amount")))
    refuse_unused_flags(args, settings)
    sampling = replace(settings.sampling, **given(
        args, ("temperature", "top_p", "top_k", "repetition_penalty", "typical_mass", "max_codes")))
    split = None if args.no_split else args.split or settings.split
    return replace(settings, sampling=sampling, diffusion=read_diffusion(args, settings.diffusion), split=split)


def read_diffusion(args: argparse.Namespace, diffusion: "Diffusion | None") -> "Diffusion | None":
    if diffusion is None:
        return None
    changes = given(args, ("steps", "sampler", "spacing", "guidance"))
    if args.noise is not None:
        changes["temperature"] = args.noise
    try:
        return replace(diffusion, **changes)
    except UserError as error:
        raise UserError(re.sub(r"^temperature\b", "noise", str(error))) from error


def given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """The flags among ``names`` that were given, with their values."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def refuse_unused_flags(args: argparse.Namespace, settings: "Settings") -> None:
    """Raise UserError for a flag that would be accepted and ignored."""
    rules = (
        (settings.diffusion is None, ("steps", "sampler", "spacing", "guidance", "noise"),
         f"preset {args.preset} has no diffusion; choose another --preset, or leave it out"),
        (not settings.ranked, ("cvvp_amount",), "only one candidate is sampled; raise --candidates, or leave it out"),
        (args.no_split, ("split",), "--no-split makes one chunk of the text"),
        (args.output is None and args.best not in (None, 1), ("best",), "no file is written; add -o OUT"),
    )
    for unused, flags, why in rules:
        for flag in flags:
            if unused and getattr(args, flag) is not None:
                raise UserError(f"--{flag.replace('_', '-')} has no effect: {why}")
