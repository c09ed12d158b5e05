"""Run ``ane export-swift``: write a bundle's Core ML packages as a Swift package for apps."""

import argparse
from typing import TYPE_CHECKING

from ane.bundles import Bundle, open_model
from ane.commands import arguments
from ane.commands.file_flags import check_files
from ane.commands.messages import message_console, report_console, status_display
from ane.commands.voices import resolve_for_model
from ane.system.errors import UserError
from ane.system.files import check_folder_of, check_output_folder

if TYPE_CHECKING:  # torch is imported in the handler, so that --help is quick
    from ane.voices import Voice

DESCRIPTION = """
Write a Swift package with which an app can speak, on macOS 15 or iOS 18 and later. The Swift package contains the Core
ML packages of a Tortoise bundle, voices, a runtime in Swift, and tests that compare the runtime with this program. Its
speech is that of --preset fastest.
"""


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("export-swift", help="write a Swift package for apps", description=DESCRIPTION)
    parser.add_argument(
        "--bundle",
        metavar="NAME|PATH",
        required=True,
        help="bundle with Core ML packages, from `ane convert --to coreml`",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", type=arguments.path, help="directory of the Swift package"
    )
    parser.add_argument(
        "-v",
        "--voice",
        action="append",
        metavar="VOICE",
        help="voice to include, as for `ane say -v`. May be given more than once. The first voice is the default of "
        "the package (default: all voices of the bundle)",
    )
    parser.add_argument(
        "--precision",
        default="auto",
        metavar="P",
        help="precision of the Core ML packages to include (default: the bundle's first)",
    )
    parser.add_argument("--force", dest="overwrite", action="store_true", help="replace a Swift package in DIR")
    parser.set_defaults(handler=write_swift_package)


def write_swift_package(args: argparse.Namespace) -> int:
    from converters.swift.export import CONTENT, TABLES, check_bundle, export_swift

    model = open_model(args.bundle)
    check_folder_of(args.output)
    check_files(args, {"output": args.output}, voices=("voice",), models=("bundle",))
    check_output_folder(args.output, TABLES, CONTENT, args.overwrite)
    check_bundle(model, args.precision)
    with status_display(message_console(args), "exporting") as show:
        export_swift(model, args.output, chosen_voices(args, model), args.precision, args.overwrite, show)
    size = sum(file.stat().st_size for file in args.output.rglob("*") if file.is_file()) / 1e6
    report_console(args).print(
        f"Wrote {args.output}, {size:.1f} MB. To test it on a Mac, run `swift test` in that "
        "folder. Its README.md says how an app uses it."
    )
    return 0


def chosen_voices(args: argparse.Namespace, model: Bundle) -> "dict[str, Voice]":
    """Return the voices to include, by name. The default voice is first. Raises UserError if there is no voice."""
    names = args.voice
    if names is None:
        built_in = [path.stem for path in sorted(model.voices.iterdir())] if model.voices else []
        names = sorted(built_in, key=lambda name: name != model.default_voice)
    if not names:
        raise UserError(f"{model.name} has no voices: name one with --voice")
    return {name: resolve_for_model(name, model, "torch:cpu") for name in names}
