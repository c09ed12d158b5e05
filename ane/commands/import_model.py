"""``ane import``: official checkpoints, from a directory or the Hugging Face hub, into a bundle."""

import argparse
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from ane.bundles import DEMO, Model, is_path
from ane.bundles.family import DEFAULT_FAMILY
from ane.commands import arguments
from ane.commands.messages import message_console, report_console
from ane.system import paths
from ane.system.errors import UserError

if TYPE_CHECKING:       # torch is imported in the handler, so that --help is quick
    from ane.bundles.bundle import Bundle

HUB = "hub"
DESCRIPTION = """
Read official checkpoints and write them as a bundle, which loads lazily and is checked by SHA-256.
SOURCE is a directory with autoregressive.pth, diffusion_decoder.pth, vocoder.pth and clvp2.pth (other files are
read if present), a Hugging Face repository OWNER/NAME, or the word hub for Tortoise's own repository. For Whisper it
is a .pt file of OpenAI's, a folder with config.json and model.safetensors, or a repository such as
openai/whisper-base.en.
-o NAME stores the bundle where --bundle NAME finds it; a path has a slash in it.
"""
PRECISION = """
type of the stored parameters (default: fp32, which keeps every bit of the official files; fp16 halves the size and is
what the Neural Engine computes in; bf16 halves it too, with fp32's range and three fewer bits of precision)
"""


@dataclass(frozen=True)
class CheckpointOrigin:
    """Where the checkpoints are on this machine, and what the bundle states about them."""

    directory: Path
    config: dict[str, Any] | None       # upstream's constructor arguments; None: config.json of the directory
    source: dict[str, Any]              # with "files": official name → SHA-256
    licence: str = ""


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add ``import``; it sets ``handler``, which takes the arguments and returns an exit status."""
    parser = subparsers.add_parser("import", help="make a bundle from official checkpoints", description=DESCRIPTION)
    parser.add_argument("source", metavar="SOURCE", help="directory or .pt file, OWNER/NAME on the hub, or: hub")
    parser.add_argument("-o", "--output", required=True, metavar="NAME|PATH", help="where to write the bundle")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), default="fp32", help=PRECISION)
    parser.add_argument("--config", metavar="FILE", type=arguments.path,
                        help="JSON of upstream's constructor arguments by file, for checkpoints of another size "
                             "(default: config.json in a directory, else the official sizes)")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument("--expect", metavar="FILE", type=arguments.path,
                        help="JSON of the SHA-256 that each file must have, or an earlier bundle.json")
    parser.add_argument("--name", metavar="NAME", help="name in messages (default: the last part of -o)")
    parser.add_argument("--force", action="store_true", help="replace a bundle that is already there")
    parser.set_defaults(handler=import_command)


def import_command(args: argparse.Namespace) -> int:
    """Download or find the checkpoints, check them, write the bundle, print its networks."""
    from ane.bundles.bundle import check_destination, write_bundle

    destination = _destination(args.output)
    directory = Path(os.path.expanduser(args.source))
    check_destination(destination, args.force, directory if os.path.isdir(directory) else None)
    console = message_console(args)
    origin, model, surplus = _open_source(args, directory, destination, console)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("writing", total=len(model.networks))
        written: list[str] = []

        def advance(network: str) -> None:
            progress.update(task, completed=len(written), description=f"writing {network}")
            written.append(network)

        bundle = write_bundle(model, destination, precision=args.precision, name=args.name or destination.name,
                              licence=origin.licence, source=origin.source, overwrite=args.force, progress=advance)
    _report(report_console(args), bundle, surplus, args.output)
    return 0


def _open_source(args: argparse.Namespace, directory: Path, destination: Path,
                 console: Console) -> tuple[CheckpointOrigin, Model, dict[str, list[str]]]:
    """Where the checkpoints come from, the model that they are, and the entries that it does not use, by file."""
    from ane.commands.import_whisper import is_whisper_source, whisper_origin

    if is_whisper_source(args.source):
        from ane.models.whisper.checkpoints import WhisperCheckpoint

        origin = whisper_origin(args, console)
        return origin, WhisperCheckpoint(origin.directory), {}
    from ane.models.tortoise.checkpoints import CheckpointDirectory

    origin = _origin(args, directory, destination, console)
    model = CheckpointDirectory(origin.directory, origin.config, str(args.config))
    return origin, model, model.check()


def _destination(text: str) -> Path:
    """The path of the bundle; a bare name is a folder among the stored bundles."""
    if is_path(text):
        return Path(os.path.expanduser(text))
    if text == DEMO:
        raise UserError("the name demo belongs to the embedded bundle; choose another")
    return paths.bundles_dir() / text


def _origin(args: argparse.Namespace, directory: Path, destination: Path, console: Console) -> CheckpointOrigin:
    """The checkpoints of SOURCE, downloaded if necessary, and checked against every hash recorded for them."""
    from ane.bundles.hub import check_recorded_hashes, is_repository, read_expected
    from ane.bundles.opening import read_constructor_arguments

    config = None if args.config is None else read_constructor_arguments(args.config)
    expected = {} if args.expect is None else read_expected(args.expect)
    if os.path.isdir(directory):
        if args.revision:
            raise UserError(f"--revision is for the hub; {directory} is a directory")
        origin = _from_directory(directory, config, console)
    elif args.source == HUB or is_repository(args.source):
        origin = _from_hub(args, config, destination, console)
    else:
        raise UserError(f"{args.source} is neither a directory nor a repository OWNER/NAME of the hub")
    check_recorded_hashes(expected, origin.source["files"], str(args.expect))
    return origin


def _from_directory(directory: Path, config: dict[str, Any] | None, console: Console) -> CheckpointOrigin:
    from ane.bundles.hashes import sha256_of
    from ane.models.tortoise.checkpoints import MEL_NORMS, present_files

    own = [name for name in ("tokenizer.json", MEL_NORMS) if os.path.isfile(directory / name)]
    names = [*present_files(directory), *own]
    files = {}
    for name in track(names, "hashing", console=console, transient=True, disable=not console.is_terminal):
        files[name] = sha256_of(directory / name)
    return CheckpointOrigin(directory, config, {"files": files})


def _from_hub(args: argparse.Namespace, config: dict[str, Any] | None, destination: Path,
              console: Console) -> CheckpointOrigin:
    """Download. Where the destination has a bundle of the same commit, the files must be the same."""
    from ane.bundles.family import find_family
    from ane.bundles.hub import check_recorded_hashes, download_checkpoints

    repository = find_family().repository if args.source == HUB else args.source
    found = download_checkpoints(repository, args.revision, progress=lambda file: console.print(f"Fetching {file}"))
    source = {"repository": repository, "revision": found.revision, "files": found.files}
    recorded = _recorded(destination)
    if (recorded.get("repository"), recorded.get("revision")) == (repository, found.revision):
        check_recorded_hashes(recorded["files"], found.files, f"{destination}/bundle.json")
    # a repository's config.json is not upstream's: without --config the sizes are the official ones
    return CheckpointOrigin(found.directory, config or {}, source, found.licence)


def _recorded(destination: Path) -> dict[str, Any]:
    """The source that a bundle at the destination states; {} without a readable bundle."""
    from ane.bundles.manifest import read_manifest

    try:
        source = read_manifest(destination).source
    except UserError:
        return {}
    return source if isinstance(source.get("files"), dict) else {}


def _report(console: Console, bundle: "Bundle", surplus: dict[str, list[str]], destination: str) -> None:
    from ane.models.tortoise.upstream_keys import summarise_keys

    table = Table("network", "parameters", "MB")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, network in bundle.manifest.networks.items():
        table.add_row(name, f"{network.parameters:,}", f"{network.weights.bytes / 1e6:.1f}")
    everything = bundle.manifest.networks.values()
    table.add_section()
    table.add_row("all", f"{sum(n.parameters for n in everything):,}",
                  f"{sum(n.weights.bytes for n in everything) / 1e6:.1f}")
    console.print(table)
    if surplus:
        left = "; ".join(f"{file}: {summarise_keys(keys)}" for file, keys in surplus.items())
        console.print(f"Left out, because speaking does not need it: {left}")
    if not bundle.trained:
        console.print("The weights are random numbers (config.json says so): this bundle generates noise, not speech.")
    usage = "--bundle" if bundle.family.name == DEFAULT_FAMILY else "ane transcribe FILE --model"
    console.print(f"Wrote {bundle.path} in {bundle.precision}. Use it with {usage} {shlex.quote(destination)}")
