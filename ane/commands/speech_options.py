"""The flags for synthesis, which are made from the settings of all kinds of models, and those that choose a backend;
reading settings from them, and loading a synthesizer.
"""

import argparse
from importlib import import_module
from typing import Any

from rich.console import Console

from ane.bundles import Bundle
from ane.bundles.family import DEFAULT_FAMILY, MODELS
from ane.bundles.opening import DEMO
from ane.bundles.package_records import COMPUTE_UNITS
from ane.bundles.precisions import CORE_ML, ONNX
from ane.bundles.precisions import NAMES as PRECISIONS
from ane.commands.arguments import counts, natural, pair, positive, rare_group
from ane.commands.defaults import left_out
from ane.commands.messages import LOGGER
from ane.commands.packages import announce_first_loads, updated_since, with_packages
from ane.models.tortoise.settings import Settings
from ane.speech.request import REQUEST_OPTIONS, SpeechRequest, check_option
from ane.speech.settings import Option, SpeechSettings
from ane.system.errors import UserError
from ane.text.unicode_to_ascii import UNREADABLE


def settings_of_models() -> list[type[SpeechSettings]]:
    """Return the classes of settings in ``settings.py`` of each model's folder, Tortoise's last."""
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
# of all kinds of models; of options with one name, Tortoise's has the help
OPTIONS: dict[str, Option] = {name: option for kind in KINDS for name, option in kind.items()}
GROUPS = {
    "candidates and codes": "A model may have defaults of its own, as the embedded one does.",
    "diffusion": "Defaults are the preset's.",
    "text": None,
}
# options that not every kind of model has, beside those of settings
REQUEST = (*(name for name, option in REQUEST_OPTIONS.items() if option.needs), "speed", "no_split", "stream")


def add_request_arguments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the flags of these fields of a request."""
    for name in names:
        add_option(parser, REQUEST_OPTIONS[name], *["-v"] * (name == "voice"))


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for synthesis. Every default is None, so that a flag without effect can be refused."""
    add_request_arguments(parser, "preset", "seed", "speed", "cast", "quote_voice")
    for title, description in GROUPS.items():
        group = rare_group(parser, title, description)
        for option in OPTIONS.values():
            if option.group == title:
                add_option(group, option)
    group.add_argument(
        "--unreadable",
        choices=tuple(UNREADABLE),
        help="words in other scripts: the nearest English letters (default), spelt, skipped, or refused",
    )
    group.add_argument("--no-split", action="store_true", help="speak the text as one chunk")


def add_option(group: argparse._ActionsContainer, option: Option, *short: str) -> None:
    flag = f"--{option.name.replace('_', '-')}"
    if option.type is bool:
        group.add_argument(
            flag, action=argparse.BooleanOptionalAction if option.optional else "store_true", help=option.help
        )
        return
    kind = {int: {"top_k": int, "seed": natural}.get(option.name, positive), tuple: pair}.get(option.type, option.type)
    stated = option.default and option.group != "diffusion" and "(default" not in option.help
    same = len({kind[option.name].default for kind in KINDS if option.name in kind}) == 1
    default = f" (default: {option.default if same else 'that of the model'})" if stated else ""
    named = {"choices": option.choices} if option.choices else {"type": kind, "metavar": option.metavar}
    group.add_argument(*short, flag, help=option.help + default, **named)


def read_settings(args: argparse.Namespace, model: Bundle) -> Any:
    """The ``settings`` of the model's ``speak``, from the flags that were given.

    Raises:
        UserError: a value out of range, or a flag without effect on this kind of model.
    """
    if model.is_only_voice(args.voice):
        args.voice = None
    for name in given_options(args):
        try:
            check_option(model, name)
        except UserError as error:
            if not left_out(args, name, f"on {model.name}"):
                raise with_demo(error, name, model, args) from None
    options = given_options(args)
    if model.family.settings is None:
        model.family.synthesizer(model, None)  # raises: it does not speak
    settings = model.family.settings.of(options.get("preset"), model.settings)
    return settings.changed({name: options[name] for name in options if name == "no_split" or name in OPTIONS})


def with_demo(error: UserError, name: str, model: Bundle, args: argparse.Namespace) -> UserError:
    """The error for an option without effect, or one that names the bundle ``DEMO`` if no model was chosen."""
    if args.bundle or name not in (*REQUEST, *Settings.options()):
        return error
    only = f", whose only voice is {model.default_voice}" if name == "voice" and model.default_voice else ""
    return UserError(f"{name} has no effect on {model.name}{only}: add --bundle {DEMO}, or leave it out", name)


def requested(args: argparse.Namespace, text: str, settings: Any, **fields: Any) -> SpeechRequest:
    """Return the request that the flags of a command ask for. ``fields``: those that the command has made of flags."""
    given = {
        name: value
        for name in REQUEST_OPTIONS.keys() - {"preset"}  # which is in the settings
        if (value := getattr(args, name, None)) is not None
    }
    return SpeechRequest(text, settings=settings, **(given | fields))


def timed_words_wanted(args: argparse.Namespace) -> bool:
    """Return whether a flag of `ane say` asks for the times of words."""
    return args.times_file is not None or args.srt or args.vtt


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The flags that were given and that not every kind of model has, with their values."""
    found = {name: getattr(args, name, None) for name in (*REQUEST, *OPTIONS)}  # `ane read` has no --stream
    return {name: value for name, value in found.items() if value is not None and value is not False}


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    from ane.backends import NAMES

    parser.add_argument(
        "--backend",
        default="auto",
        metavar="NAME",
        help=f"what runs the networks: {', '.join(NAMES)} (default: auto, the best available)",
    )
    add = rare_group(
        parser,
        "backend",
        "coreml runs a bundle's Core ML packages on a Mac; mil interprets them on\n"
        "any machine, slowly, to check them; onnx runs its ONNX packages.",
    ).add_argument
    add(
        "--precision",
        default="auto",
        metavar="P",
        choices=("auto", *PRECISIONS),
        help="for torch: fp32, bf16 or fp16 (default: the type of the stored weights, where the device computes it "
        "fast), or int8 (decoder and diffusion on the CPU: fastest, less exact); for packages: those of Core ML "
        f"in {', '.join(CORE_ML)}, or of ONNX in {', '.join(ONNX)} (default: the bundle's)",
    )
    add(
        "--cache",
        default="auto",
        choices=("auto", "io", "state"),
        help="what keeps the kv-cache of Core ML packages: io (the host) or state (Core ML)",
    )
    add(
        "--compute-units",
        choices=COMPUTE_UNITS,
        help="where Core ML may run all networks (default: what the bundle states for each)",
    )
    add("--engine-batch", type=positive, metavar="N", help="TensorRT: items of a call that engines are built for")
    add(
        "--engine-symbols",
        type=counts,
        default=(),
        metavar="N,…",
        help="TensorRT: build an engine for each range of symbols that ends at such a number; longer texts are split",
    )
    add("--engine-frames", type=counts, default=(), metavar="N,…", help="TensorRT: the same for mel frames")
    add("--engine-fp16", action="store_true", help="TensorRT: compute in fp16 where that is faster")
    add("--engine-workspace", type=float, metavar="GB", help="TensorRT: memory that building an engine may use")
    add("--rebuild-engines", action="store_true", help="TensorRT: build engines again, although they are cached")
    add("--threads", type=positive, metavar="N", help="CPU threads (default: all, fewer while other programs are busy)")


def load_synthesizer(
    args: argparse.Namespace, model: Bundle, settings: Any, console: Console, keep: bool | None = None
) -> Any:
    """Return a synthesizer on the backend that the flags name, after a line on first loads that speaking with these
    settings needs. ``keep``: see ``load_backend``. The backend "auto" is torch after an update of macOS, until the
    packages are compiled again.

    Raises:
        UserError: the backend or its packages are not available here.
    """
    from ane.backends import load_backend, resolve
    from ane.backends.choosing import TENSORRT

    if not model.trained and not getattr(args, "json", False):
        LOGGER.warning(
            "%s has random weights: it generates noise, not speech. Give --bundle for a trained model.", model.name
        )
    model = with_packages(model, args.backend, console)
    chooses = (args.backend, args.precision, args.cache, args.compute_units) == ("auto", "auto", "auto", None)
    former = getattr(args, "began_with", "") if chooses else ""  # a book keeps its engine
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
