"""The flags that shape speech, and the settings they make."""

import argparse
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ane.bundles import Model
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.models.tortoise.settings import Settings


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """What shapes the speech. Every default is None, so that a flag that has no effect can be told and refused."""
    from ane.models.tortoise.diffusion import SAMPLERS, SPACINGS
    from ane.models.tortoise.settings import DEFAULT_PRESET, PRESETS
    from ane.text import NORMALISERS

    group = parser.add_argument_group("speech", "A model may bring defaults of its own, as the embedded one does.")
    add = group.add_argument
    add("--preset", choices=PRESETS, help=f"how much work to do (default: the model's, or {DEFAULT_PRESET})")
    add("--seed", type=natural, metavar="N", help="say it the same way again (default: a fresh one, which is told)")
    add("--candidates", type=positive, metavar="N", help="readings sampled of each chunk (default: the preset's)")
    add("--best", type=positive, metavar="K", help="keep the K best readings, as OUT-1.wav, OUT-2.wav, …")
    add("--cvvp-amount", type=float, metavar="SHARE", help="share of CVVP in ranking, 0 to 1 (default: 0)")
    add("--temperature", type=float, metavar="T", help="of the codes: lower is more regular (default: 0.8)")
    add("--top-p", type=float, metavar="P", help="share of probability to choose codes from (default: 0.8)")
    add("--top-k", type=int, metavar="K", help="number of codes to choose from (default: 50)")
    add("--repetition-penalty", type=float, metavar="R", help="against codes met before (default: 2)")
    add("--typical-mass", type=float, metavar="M", help="typical sampling with this mass (default: off)")
    add("--max-codes", type=positive, metavar="N", help="codes a chunk at most, 21.5 to a second (default: 500)")
    add("--steps", type=positive, metavar="N", help="diffusion steps (default: the preset's)")
    add("--sampler", choices=SAMPLERS, help="of the diffusion (default: the preset's)")
    add("--spacing", choices=SPACINGS, help="of the steps; ddim and dpm++2m want logsnr (default: the preset's)")
    add("--guidance", type=float, metavar="K", help="of the diffusion, 0 for none (default: the preset's)")
    add("--noise", type=float, metavar="T", help="diffusion temperature: scale of the first noise (default: 1)")
    add("--normaliser", choices=NORMALISERS, help="how text is spelt out (default: english)")
    add("--split", type=pair, metavar="D,M", help="chunks of about D and at most M characters (default: 200,300)")
    add("--no-split", action="store_true", help="speak the text in one go")


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def gigabytes(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of GB above 0")
    return value


def natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def pair(text: str) -> tuple[int, int]:
    desired, _, maximum = text.partition(",")
    return positive(desired), positive(maximum)


def read_settings(args: argparse.Namespace, model: Model) -> "Settings":
    """The preset as it suits the model, with the flags' changes.

    Raises:
        UserError: a value out of range, or a flag without effect.
    """
    from ane.models.tortoise.settings import Settings

    settings = Settings.of(args.preset, model.settings, **given(
        args, ("candidates", "best", "lanes", "normaliser", "cvvp_amount")))
    refuse_idle_flags(args, settings)
    sampling = replace(settings.sampling, **given(
        args, ("temperature", "top_p", "top_k", "repetition_penalty", "typical_mass", "max_codes")))
    diffusion = settings.diffusion
    if diffusion is not None:
        diffusion = replace(diffusion, **given(args, ("steps", "sampler", "spacing", "guidance")))
        if args.noise is not None:
            diffusion = replace(diffusion, temperature=args.noise)
    split = None if args.no_split else args.split or settings.split
    return replace(settings, sampling=sampling, diffusion=diffusion, split=split)


def given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def refuse_idle_flags(args: argparse.Namespace, settings: "Settings") -> None:
    """Raise UserError for a flag that would be accepted and ignored."""
    rules = (
        (settings.diffusion is None, ("steps", "sampler", "spacing", "guidance", "noise"),
         f"preset {args.preset} has no diffusion; choose another --preset, or leave it out"),
        (not settings.ranked, ("cvvp_amount",),
         "there is one candidate alone; raise --candidates, or leave it out"),
        (args.no_split, ("split",), "the text is not split (--no-split)"),
        (args.output is None and args.best not in (None, 1), ("best",), "no file is written; add -o OUT"),
    )
    for idle, flags, why in rules:
        for flag in flags:
            if idle and getattr(args, flag) is not None:
                raise UserError(f"--{flag.replace('_', '-')} has no effect: {why}")
