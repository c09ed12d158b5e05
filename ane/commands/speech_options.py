"""Define the flags for speech and for backends, and load the model that the flags ask for.

The flags of speech are made from the settings classes of all models.
"""

import argparse
from contextlib import suppress
from importlib import import_module
from typing import Any

from rich.console import Console

from ane.bundles import Bundle, open_model
from ane.bundles.family import DEFAULT_FAMILY, MODELS
from ane.bundles.opening import DEMO
from ane.bundles.package_records import COMPUTE_UNITS
from ane.bundles.precisions import CORE_ML, ONNX
from ane.bundles.precisions import NAMES as PRECISIONS
from ane.commands.arguments import counts, natural, pair, positive, rare_group
from ane.commands.defaults import without_useless_defaults
from ane.commands.messages import LOGGER
from ane.commands.packages import announce_first_loads, updated_since, with_packages
from ane.models.tortoise.settings import TortoiseSettings
from ane.speech.request import REQUEST_OPTIONS, SpeechRequest, check_option
from ane.speech.settings import Option, SpeechSettings
from ane.system.errors import NoEffectError, UserError
from ane.text.unicode_to_ascii import UNREADABLE


def settings_of_models() -> list[type[SpeechSettings]]:
    """Return the settings classes of all models, from ``settings.py`` in every model's folder. Tortoise's come last."""
    modules = [
        import_module(f"ane.models.{file.parent.name}.settings")
        for file in sorted(MODELS.glob("*/settings.py"), key=lambda file: (file.parent.name == DEFAULT_FAMILY, file))
    ]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, SpeechSettings) and kind.__module__ == module.__name__
    ]


KINDS = tuple(settings.options() for settings in settings_of_models())
# The options of all models by name. If several models have an option, it has Tortoise's help text.
OPTIONS: dict[str, Option] = {name: option for kind in KINDS for name, option in kind.items()}
GROUPS = {
    "candidates and codes": "A model may have other defaults, as the embedded one does.",
    "diffusion": "The preset sets the defaults.",
    "text": None,
}
# options that only some models have, but that are not fields of their settings
REQUEST = (*(name for name, option in REQUEST_OPTIONS.items() if option.needs), "speed", "no_split", "stream")


def add_request_arguments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add flags for the fields of a request that ``names`` lists."""
    for name in names:
        add_option(parser, REQUEST_OPTIONS[name], *["-v"] * (name == "voice"))


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for speech.

    All defaults are None, so that the command can reject flags that the model does not use.
    """
    add_request_arguments(parser, "preset", "seed", "speed", "cast", "quote_voice")
    for title, description in GROUPS.items():
        group = rare_group(parser, title, description)
        for option in OPTIONS.values():
            if option.group == title:
                add_option(group, option)
    group.add_argument(
        "--unreadable",
        choices=tuple(UNREADABLE),
        help="treatment of words in scripts other than Latin: write them in the nearest English letters (default), "
        "spell their letters, skip them, or refuse the text",
    )
    group.add_argument("--no-split", action="store_true", help="speak the whole text as one chunk")


def add_option(group: argparse._ActionsContainer, option: Option, *short: str) -> None:
    flag = f"--{option.name.replace('_', '-')}"
    if option.type is bool:
        group.add_argument(
            flag, action=argparse.BooleanOptionalAction if option.optional else "store_true", help=option.help
        )
        return
    kind = {int: {"top_k": int, "seed": natural}.get(option.name, positive), tuple: pair}.get(option.type, option.type)
    has_default = option.default and option.group != "diffusion" and "(default" not in option.help
    same = len({kind[option.name].default for kind in KINDS if option.name in kind}) == 1
    default = f" (default: {option.default if same else 'depends on the model'})" if has_default else ""
    named = {"choices": option.choices} if option.choices else {"type": kind, "metavar": option.metavar}
    group.add_argument(*short, flag, help=option.help + default, **named)


def read_settings(args: argparse.Namespace, model: Bundle) -> Any:
    """Make the settings for the model's ``speak`` from the flags. Ignore a user's default that has no effect.

    Raises:
        UserError: A value is out of range, or a flag has no effect on this model.
    """
    return without_useless_defaults(args, lambda given: settings_for(model, given))


def settings_for(model: Bundle, args: argparse.Namespace) -> Any:
    if model.is_only_voice(args.voice):
        args.voice = None
    for name in given_options(args):
        try:
            check_option(model, name)
        except NoEffectError as error:
            raise with_demo(error, name, model, args) from None
    options = given_options(args)
    if model.family.settings is None:
        model.family.synthesizer(model, None)  # raises, because the model does not speak
    settings = model.family.settings.of(options.get("preset"), model.settings)
    return settings.changed({name: options[name] for name in options if name == "no_split" or name in OPTIONS})


def with_demo(error: NoEffectError, name: str, model: Bundle, args: argparse.Namespace) -> NoEffectError:
    """Return the error about a flag without effect. If the user chose no model, the error recommends ``DEMO``."""
    if args.bundle or name not in (*REQUEST, *TortoiseSettings.options()):
        return error
    advice = f"add --bundle {DEMO}, or leave it out"
    if name == "voice" and (faulty := voices_not_in(args.voice, open_model(DEMO))):
        advice = f"leave it out ({DEMO} has no voice {faulty[0]!r} either: see ane voices list --bundle {DEMO})"
    return NoEffectError(name, error.reason if name == "voice" and model.default_voice else f"on {model.name}", advice)


def voices_not_in(spec: str, model: Bundle) -> list[str]:
    """Return the voices of a mix that are neither files nor voices of a model."""
    from ane.voices.finding import find_voice, voice_names
    from ane.voices.voice import parse_mix

    missing: list[str] = []
    with suppress(UserError):
        for name in parse_mix(spec)[0]:
            if name not in voice_names(model):
                missing.append(name)
                find_voice(name, [])  # raises unless it is a path
                missing.pop()
    return missing


def requested(args: argparse.Namespace, text: str, settings: Any, **fields: Any) -> SpeechRequest:
    """Make a speech request from the flags of a command.

    Args:
        fields: Fields of the request that the command has already made. They override the flags.
    """
    options = {
        name: value
        for name in REQUEST_OPTIONS.keys() - {"preset"}  # the preset is part of the settings
        if (value := getattr(args, name, None)) is not None
    }
    return SpeechRequest(text, settings=settings, **(options | fields))


def timed_words_wanted(args: argparse.Namespace) -> bool:
    """Return whether a flag of `ane say` needs the times of words."""
    return args.times_file is not None or args.srt or args.vtt


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that the user gave, by name. Options that every model has are not included."""
    options = {name: getattr(args, name, None) for name in (*REQUEST, *OPTIONS)}  # `ane read` has no --stream
    return {name: value for name, value in options.items() if value is not None and value is not False}


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    from ane.backends import NAMES

    parser.add_argument(
        "--backend",
        default="auto",
        metavar="NAME",
        help=f"engine that runs the networks: {', '.join(NAMES)} (default: auto, the best available)",
    )
    add = rare_group(
        parser,
        "backend",
        "coreml runs a bundle's Core ML packages on a Mac. mil interprets them on\n"
        "any machine, slowly, to check them. onnx runs its ONNX packages.",
    ).add_argument
    add(
        "--precision",
        default="auto",
        metavar="P",
        choices=("auto", *PRECISIONS),
        help="number format to compute in. torch: fp32, bf16, fp16, or int8 on the CPU, which is the fastest and least "
        "exact (default: the format of the stored weights if the device is fast at it). "
        f"Core ML: {', '.join(CORE_ML)}. ONNX: {', '.join(ONNX)} (default for both: the first in the bundle)",
    )
    add(
        "--cache",
        default="auto",
        choices=("auto", "io", "state"),
        help="memory in which Core ML packages keep the kv-cache: 'io' on the host, 'state' inside Core ML",
    )
    add(
        "--compute-units",
        choices=COMPUTE_UNITS,
        help="processors on which Core ML may run all networks (default: the bundle's choice for each network)",
    )
    add("--engine-batch", type=positive, metavar="N", help="TensorRT: batch size to build engines for")
    add(
        "--engine-symbols",
        type=counts,
        default=(),
        metavar="N,…",
        help="TensorRT: build one engine for texts of up to N symbols, for each N. Longer texts are split",
    )
    add(
        "--engine-frames",
        type=counts,
        default=(),
        metavar="N,…",
        help="TensorRT: build one engine for spectrograms of up to N mel frames, for each N",
    )
    add("--engine-fp16", action="store_true", help="TensorRT: compute in fp16 where that is faster")
    add("--engine-workspace", type=float, metavar="GB", help="TensorRT: memory that building an engine may use")
    add("--rebuild-engines", action="store_true", help="TensorRT: build engines again, although they are cached")
    add("--threads", type=positive, metavar="N", help="CPU threads (default: all, fewer while other programs are busy)")


def load_synthesizer(
    args: argparse.Namespace, model: Bundle, settings: Any, console: Console, keep: bool | None = None
) -> Any:
    """Load a model on the backend that the flags name, and return its speaker.

    If Core ML has to load functions for the first time, log how long that takes. After an update of macOS, "auto" uses
    torch instead of Core ML until the user has compiled the packages again.

    Args:
        keep: Argument ``keep`` for ``load_backend``.

    Raises:
        UserError: The backend or its packages are not available here.
    """
    from ane.backends import load_backend, resolve
    from ane.backends.engines import TENSORRT

    if not model.trained and not getattr(args, "json", False):
        LOGGER.warning(
            "%s has random weights, so it generates noise, not speech: use --bundle with a trained model", model.name
        )
    model = with_packages(model, args.backend, console)
    chooses = (args.backend, args.precision, args.cache, args.compute_units) == ("auto", "auto", "auto", None)
    former = getattr(args, "began_with", "") if chooses else ""  # a book continues on the engine with which it began
    name = "torch" if former.startswith("torch") and resolve("auto", model)[0] != "torch" else args.backend
    backend = load_backend(
        name,
        model,
        args.precision,
        args.threads,
        keep,
        cache=args.cache,
        compute_units=args.compute_units,
        **{name: getattr(args, name) for name in TENSORRT},
    )
    synthesizer = model.family.synthesizer(model, backend)
    if chooses and not former and updated_since(backend, synthesizer.networks(settings), getattr(args, "bundle", None)):
        return model.family.synthesizer(model, load_backend("torch", model, "auto", args.threads, keep))
    announce_first_loads(backend, synthesizer.networks(settings), getattr(args, "bundle", None))
    return synthesizer
