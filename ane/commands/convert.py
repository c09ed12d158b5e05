"""Run ``ane convert``: convert a bundle to Core ML, ONNX, GGUF or the files of tortoise.cpp."""

import argparse
import os
import re
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ane.bundles import Bundle, open_model
from ane.bundles.opening import new_bundle
from ane.bundles.precisions import GGUF, PACKAGES
from ane.commands.arguments import comma_separated, counts
from ane.commands.file_flags import check_files
from ane.commands.messages import (
    LOGGER,
    decibels,
    how_to_use,
    message_console,
    output_console,
    plain_table,
    report_console,
    status_display,
)
from ane.commands.prewarm import prewarm, prewarm_command_line
from ane.commands.voices import resolve_for_model
from ane.system.errors import NoEffectError, UserError
from ane.system.file_gate import identity
from ane.system.files import check_folder_of, check_output_file
from ane.system.interruption import restored_interruptions
from ane.system.machine import memory_bytes

if TYPE_CHECKING:
    from converters import conversion
    from converters.coreml.coreml_package import CoreMLOptions

PRECISIONS: dict[str, tuple[str, ...]] = {
    **{target: tuple(precisions) for target, precisions in PACKAGES.items()},
    "gguf": tuple(GGUF),
    "ggml": (),
}
CACHES = ("io", "state")
# options that only some targets of a conversion have, with these targets
ONLY_FOR = {
    "buckets": ("coreml",),
    "cache": ("coreml",),
    "lanes": ("coreml",),
    "voice": ("ggml",),
    "no_prewarm": ("coreml",),
    "precision": ("coreml", "onnx", "gguf"),
}
DESCRIPTION = """
Convert a model for another engine. With --to coreml and --to onnx, write a copy of the bundle in which the networks are
packages. Before the bundle appears at OUT, `ane convert` compares every function of the packages with the float32
networks. After an interruption, run the same command again: it keeps the finished packages, which are in
OUT.converting, and continues with the next package. You may delete OUT.converting.
With --to gguf, write a whole Tortoise model to one file. In this file, the decoder's tensors have the names of GPT-2 in
llama.cpp. With --to ggml, write files for tortoise.cpp, with one voice.
"""


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add the command ``convert``.

    All defaults are None, so that the command can reject options that the target lacks.
    """
    parser = subparsers.add_parser("convert", help="convert a model for another engine", description=DESCRIPTION)
    parser.add_argument(
        "source", metavar="SOURCE", help="bundle to convert: a name or a directory (demo is the embedded model)"
    )
    parser.add_argument("--to", required=True, choices=PRECISIONS, help="format to convert to")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="NAME|PATH",
        help="destination. coreml and onnx: a new bundle, as in `ane import`. gguf: a file. ggml: a folder",
    )
    parser.add_argument(
        "--precision",
        type=comma_separated,
        metavar="P,…",
        help="number formats of the weights. coreml: one or more of "
        f"{', '.join(PRECISIONS['coreml'])} (default: fp16, which the Neural Engine runs). "
        f"onnx: one or more of {', '.join(PRECISIONS['onnx'])} (default: fp32). `ane say` and `ane transcribe` use the "
        "first format that you list, unless you name another format. "
        f"gguf: one of {', '.join(PRECISIONS['gguf'])} (default: fp16)",
    )
    parser.add_argument(
        "--lanes",
        type=counts,
        metavar="N,…",
        help="coreml: numbers of candidates that a decoder step computes at once. The package gets a step function for "
        "each number (default: 1,16, or 1,8 for Whisper)",
    )
    parser.add_argument(
        "--cache",
        type=comma_separated,
        metavar="KIND,…",
        help="coreml: where the decoder keeps its kv-cache: 'io' on the host, 'state' inside Core ML, or both, as in "
        "io,state (default: io,state)",
    )
    parser.add_argument(
        "--buckets",
        action="append",
        metavar="KIND=N,…",
        help="coreml: input lengths for one kind of function, such as prefill=64,128 (default: the model's). '?' "
        "lists the kinds that SOURCE has. May be given more than once",
    )
    parser.add_argument(
        "--networks",
        type=comma_separated,
        metavar="NETWORK,…",
        help="networks to convert. All other networks run on torch. '?' lists the networks of SOURCE (default: all)",
    )
    parser.add_argument(
        "--no-prewarm",
        action="store_true",
        default=None,
        help="coreml: do not compile and load the new packages on this Mac. The first speech will do both",
    )
    parser.add_argument(
        "--voice",
        metavar="VOICE",
        help="ggml: voice to write, as for `ane say -v` (default: the model's default voice)",
    )
    parser.add_argument(
        "--force", dest="overwrite", action="store_true", help="replace OUT, or an unfinished conversion to it"
    )
    parser.set_defaults(handler=convert_command)


def convert_command(args: argparse.Namespace) -> int:
    """Convert a model, and report the files that were written. Raises UserError for a flag that has no effect."""
    for option, targets in ONLY_FOR.items():
        if args.to not in targets and getattr(args, option) is not None:
            raise NoEffectError(option, f"with --to {args.to}", f"it is for {', '.join(targets)}", ("to",))
    model = open_model(args.source)
    if (lines := listed(args, model)) is not None:
        output_console().print("\n".join(lines), markup=False, soft_wrap=True)
        return 0
    return {"gguf": write_gguf_file, "ggml": write_ggml_files}.get(args.to, write_packages)(args, model)


def listed(args: argparse.Namespace, model: Bundle) -> list[str] | None:
    """Return the lines of the list that a flag with the value "?" requests, or ``None`` if no flag has this value."""
    from ane.models.tortoise.networks import NETWORKS
    from converters.function_table import convertible_model, convertible_networks, pick_networks
    from converters.ggml.tortoise_cpp import FILES

    if args.networks == ["?"]:
        others = {"gguf": tuple(NETWORKS), "ggml": tuple(FILES)}
        return pick_networks(model, None, others.get(args.to) or convertible_networks(args.to))
    if any(text.startswith("?") for text in args.buckets or ()):
        rows = convertible_model(model).functions
        return list(dict.fromkeys(row.kind for row in rows if row.bucket and row.network in model.networks))
    return None


def write_packages(args: argparse.Namespace, model: Bundle) -> int:
    """Write a bundle with packages, and print a table of the packages."""
    from converters.conversion import convert
    from converters.function_table import chosen_networks
    from converters.progress import memory_warning

    destination = new_bundle(args.output)
    if identity(model.path) != identity(destination):  # converting a bundle in place is allowed
        check_files(args, {"output": destination}, models=("source",))
    target, options = read_target(args, model)
    check_stored_precisions(args, model, options)
    if args.to == "coreml" and (
        line := memory_warning(model, chosen_networks(model, args.networks, args.to), memory_bytes())
    ):
        LOGGER.warning("%s", line)
    with status_display(message_console(args), "converting") as show:
        try:
            with restored_interruptions():
                bundle = convert(
                    model,
                    destination,
                    options,
                    args.networks,
                    args.overwrite,
                    lambda network, step: show(f"{network}: {step}"),
                    target,
                )
        except KeyboardInterrupt:
            LOGGER.info(
                "Finished packages are kept in %s.converting. Run the same command again to continue.", destination
            )
            raise
    console = report_console(args)
    report(console, bundle, args.to)
    console.print(f"Wrote {bundle.path}. {how_to_use(bundle.family, args.output)}")
    if args.to == "coreml" and not args.no_prewarm:
        prewarm_here(args, bundle)
    return 0


def prewarm_here(args: argparse.Namespace, bundle: "Bundle") -> None:
    """Compile and load the new packages if `ane say` uses Core ML here, so that the first speech starts sooner."""
    from ane.backends import core_ml_is_chosen

    if not core_ml_is_chosen():
        return
    from ane.backends.coreml.runtime import CoreMLRuntime
    from ane.backends.coreml.trial import CoreMLTrial

    try:
        with restored_interruptions():
            prewarm(bundle, CoreMLRuntime(trial=CoreMLTrial()), message_console(args), report_console(args))
    except UserError as error:
        LOGGER.warning("%s", error)  # an error here does not undo the conversion, which is complete
    except KeyboardInterrupt:
        LOGGER.info("The bundle is complete. `%s` continues to load its functions.", prewarm_command_line(args.output))
        raise


def write_gguf_file(args: argparse.Namespace, model: Bundle) -> int:
    """Write one GGUF file, and print how many tensors of each type it has."""
    precisions = check_precisions(args) or ["fp16"]
    if len(precisions) > 1:
        raise UserError(f"--precision {','.join(precisions)}: a GGUF file has only one precision, so name one")
    if find_spec("gguf") is None:
        raise UserError("the package gguf, which writes GGUF files, is missing: pip install 'tortoise-ane[gguf]'")
    from converters.ggml.gguf_file import write_gguf

    output = Path(os.path.expanduser(args.output))
    check_files(args, {"output": output}, models=("source",))
    check_output_file(output)
    with status_display(message_console(args), "writing") as show:
        tensors = write_gguf(model, output, precisions[0], args.networks, args.overwrite, show)
    types = Counter(tensor.type.name for tensor in tensors)
    counted = ", ".join(f"{types[name]} {name}" for name in sorted(types))
    report_console(args).print(
        f"Wrote {output}: {len(tensors)} tensors ({counted}), {output.stat().st_size / 1e6:.1f} MB."
    )
    return 0


def write_ggml_files(args: argparse.Namespace, model: Bundle) -> int:
    """Write the files of tortoise.cpp and print how to start it."""
    from converters.function_table import pick_networks
    from converters.ggml.tortoise_cpp import FILES, TOKENIZER, VOICE, size_note, write_ggml

    # check the names of networks before computing a voice from clips, which takes a while
    networks = pick_networks(model, list(FILES) if args.networks is None else args.networks, tuple(FILES))
    if note := size_note(model, networks):
        LOGGER.warning("%s: change the sizes in the source of tortoise.cpp, or it rejects these files", note)
    output = Path(os.path.expanduser(args.output))
    check_folder_of(output)
    check_files(
        args,
        {"output": [output / name for name in (*FILES.values(), TOKENIZER, VOICE)]},
        voices=("voice",),
        models=("source",),
    )
    voice = resolve_for_model(args.voice or model.default_voice, model)
    with status_display(message_console(args), "writing") as show:
        paths = write_ggml(model, voice, output, networks, args.overwrite, show)
    console = report_console(args)
    for path in paths:
        console.print(f"Wrote {path}, {path.stat().st_size / 1e6:.1f} MB.")
    console.print(f"tortoise.cpp looks for them in ../models: start it with --voice ../models/{VOICE}")
    return 0


def check_stored_precisions(args: argparse.Namespace, model: Bundle, options: Sequence[Any]) -> None:
    """Log which networks cannot have a requested precision. Raises UserError if no network can have this precision."""
    from converters.function_table import chosen_networks

    chosen = chosen_networks(model, args.networks, args.to)
    for option in options if args.precision else ():
        others = {network: option.stored(network) for network in chosen if option.stored(network) != option.precision}
        exceptions = ", ".join(f"{network} in {precision}" for network, precision in others.items())
        if len(others) == len(chosen):
            reason = f"because these networks are stored in another precision ({exceptions})"
            message = f"--precision {option.precision} has no effect, {reason}: leave it out"
            raise NoEffectError("precision", reason, text=message)
        if others:
            LOGGER.info(
                "some networks cannot be stored in %s and are stored otherwise: %s", option.precision, exceptions
            )


def check_choice(flag: str, value: str, known: Sequence[str]) -> None:
    """Raise UserError for an unknown value. The message names the known value with the same number: "use 8bit"."""
    if value not in known:
        same = [choice for choice in known if re.findall(r"\d+", choice)[:1] == re.findall(r"\d+", value)[:1] != []]
        raise UserError(f"{flag} must be {' or '.join(known)}, got {value}{f': use {same[0]}' if same else ''}")


def check_precisions(args: argparse.Namespace) -> list[str]:
    """Return the requested precisions, which may be an empty list. Raises UserError for an unknown precision."""
    if args.precision is not None and not args.precision:
        raise UserError("--precision is empty: give at least one precision, or leave it out")
    for value in args.precision or ():
        check_choice(f"--precision with --to {args.to}", value, PRECISIONS[args.to])
    return args.precision or []


def read_target(args: argparse.Namespace, model: Bundle) -> "tuple[conversion.ConversionTarget, list[Any]]":
    """Read the target of the conversion, and the options for each precision. Raises UserError for an unknown value."""
    check_precisions(args)
    if args.to == "coreml":
        from converters.conversion import COREML_TARGET

        return COREML_TARGET, read_options(args, model)
    from converters.onnx.onnx_package import OnnxOptions, OnnxTarget

    return OnnxTarget(), [OnnxOptions(precision) for precision in dict.fromkeys(args.precision or ["fp32"])]


def read_options(args: argparse.Namespace, model: Bundle) -> "list[CoreMLOptions]":
    """Return the options of the Core ML conversion for each precision. Raises UserError for an unknown value."""
    from converters.coreml.coreml_package import CoreMLOptions
    from converters.function_table import convertible_model

    caches = list(CACHES) if args.cache is None else args.cache
    for value in caches:
        check_choice("--cache", value, CACHES)
    if not caches:
        raise UserError("--cache is empty: give at least one kind, or leave it out")
    convertible = convertible_model(model)
    buckets, kinds = {}, convertible.buckets
    for text in args.buckets or ():
        kind, equals, numbers = text.partition("=")
        if not equals:
            raise UserError(f"--buckets {text}: give KIND=N,…, such as prefill=64,128")
        if kind not in kinds:
            raise UserError(f"--buckets {text}: {kind} is not a kind of function, use one of {', '.join(kinds)}")
        try:
            buckets[kind] = counts(numbers)
        except argparse.ArgumentTypeError as error:
            raise UserError(f"--buckets {text}: {error}") from error
    lanes = args.lanes or convertible.lanes
    return [
        CoreMLOptions(precision, lanes, tuple(caches), buckets)
        for precision in dict.fromkeys(args.precision or ["fp16"])
    ]


def report(console: Console, bundle: "Bundle", format: str) -> None:
    """Print one row per package, with its size and the result of its least exact function or graph."""
    from converters.function_table import speech_lines

    onnx = format == "onnx"
    columns = (
        {"dB": "cpu"} if onnx else {f"dB, {kind}": kind for kind in ("fp32 maths", "fp16 rounding", "fp16 flushed")}
    )
    errors = ["largest error"] if onnx else []
    table = plain_table(
        None, "network", "precision", "graphs" if onnx else "functions", "MB", *columns, *errors, numbers=range(2, 7)
    )
    for package in bundle.onnx_packages if onnx else bundle.packages:
        figures = [function.parity for function in package.functions.values()]
        largest = [figure["error"] for figure in figures if "error" in figure]  # published packages are not measured
        worst = [min((figure[key] for figure in figures if key in figure), default=None) for key in columns.values()]
        table.add_row(
            package.network,
            package.precision,
            str(len(figures)),
            f"{sum(file.bytes for file in package.files) / 1e6:.1f}",
            *map(decibels, worst),
            *[f"{max(largest):.1e}" if largest else "–"] * onnx,
        )
    console.print(table)
    console.print(
        "dB: signal-to-noise ratio of the worst graph on the CPU, compared with the float32 networks. Largest error: "
        "a share of the largest output value."
        if onnx
        else "dB: signal-to-noise ratio of the worst function in the interpreter, compared with the float32 networks. "
        "Flushed: numbers below 6e-5 become 0, as on an M1."
    )
    for line in speech_lines(
        package.precision for package in bundle.packages if package.network == "autoregressive" and not onnx
    ):
        console.print(line)
