"""The flags for synthesis, and reading settings from them."""

import argparse
from typing import Any

from ane.bundles import Model
from ane.commands.arguments import natural, pair, positive, rare_group
from ane.system.errors import UserError

# Flags of `ane say` that not every kind of model has; each family names those that it has.
SPEECH_OPTIONS = (
    "voice", "preset", "seed", "speed", "stream", "candidates", "best", "cvvp_amount", "temperature", "top_p", "top_k",
    "repetition_penalty", "typical_mass", "max_codes", "steps", "sampler", "spacing", "guidance",
    "guidance_steps", "noise", "normaliser", "split", "no_split", "published", "lanes")

WORDS_PER_MINUTE = 150      # of English speech at speed 1, about


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for synthesis. Every default is None, so that a flag without effect can be refused."""
    from ane.models.tortoise.diffusion import SOLVERS, SPACINGS
    from ane.models.tortoise.settings import DEFAULT_PRESET
    from ane.text import NORMALISERS

    parser.add_argument("--preset", metavar="NAME", help="how much work to do; '?' lists the presets (default: the "
                                                         f"model's, or {DEFAULT_PRESET})")
    parser.add_argument("--seed", type=natural, metavar="N",
                        help="random seed, to repeat a result (default: a new one, which is printed)")
    parser.add_argument("--speed", type=float, metavar="FACTOR",
                        help="speed of speech: 2 is twice as fast (default: 1)")
    parser.add_argument("-r", type=float, dest="words_per_minute", metavar="WPM",
                        help=f"the speed in words a minute; {WORDS_PER_MINUTE} is --speed 1")
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
    add("--sampler", choices=tuple(SOLVERS), help="sampler of the diffusion")
    add("--spacing", choices=SPACINGS, help="spacing of the steps; use logsnr with ddim and dpm++2m")
    add("--guidance", type=float, metavar="K", help="scale of classifier-free guidance, 0 for none")
    add("--guidance-steps", type=positive, metavar="N", help="guide the last N steps only (default: all)")
    add("--noise", type=float, metavar="T", help="diffusion temperature: scale of the initial noise")
    add = rare_group(parser, "text").add_argument
    add("--normaliser", choices=NORMALISERS, help="how numbers and abbreviations are spelt out (default: english)")
    add("--split", type=pair, metavar="D,M",
        help="chunks of about D and at most M characters (default: 200,300; FastSpeech: 150,250)")
    add("--no-split", action="store_true", help="speak the text as one chunk")
    add("--published", action="store_true",
        help="for KittenTTS models: preprocess, split and cut exactly as KittenTTS 0.8.1")


def read_settings(args: argparse.Namespace, model: Model) -> Any:
    """The ``settings`` of the model's ``speak``, from the flags that were given.

    Raises:
        UserError: a value out of range, or a flag without effect on this kind of model.
    """
    options = given_options(args)
    for name in options:
        if name not in model.family.options:
            raise UserError(f"{name} has no effect on {model.family.title} models, and {model.name} is one; "
                            "leave it out")
    return model.family.read_options(options, model)


def speed_from_words_per_minute(args: argparse.Namespace) -> None:
    """Set ``args.speed`` from -r. Raises UserError when it is out of range, or both are given."""
    if args.words_per_minute is None:
        return
    if args.speed is not None:
        raise UserError("-r and --speed cannot be combined: leave one out")
    if not WORDS_PER_MINUTE / 2 <= args.words_per_minute <= WORDS_PER_MINUTE * 2:
        raise UserError(f"words_per_minute must be from {WORDS_PER_MINUTE / 2:g} to {WORDS_PER_MINUTE * 2:g}, got "
                        f"{args.words_per_minute:g}")
    args.speed = args.words_per_minute / WORDS_PER_MINUTE


def speak_arguments(args: argparse.Namespace, model: Model) -> dict[str, Any]:
    """The flags given that are arguments of the model's ``speak``, apart from its settings."""
    return {name: getattr(args, name) for name in model.family.speak_arguments if getattr(args, name) is not None}


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The flags that were given and that not every kind of model has, with their values."""
    found = {name: getattr(args, name, None) for name in SPEECH_OPTIONS}         # `ane read` has no --stream
    return {name: value for name, value in found.items() if value is not None and value is not False}
