"""``ane import``: official checkpoints, from a directory, a file or the Hugging Face hub, into a bundle."""

import argparse
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, track

from ane.bundles import EMBEDDED, Model, is_path
from ane.bundles.family import find_family
from ane.commands import arguments
from ane.commands.kitten import import_kitten, is_kitten_source
from ane.commands.messages import message_console, report_console
from ane.commands.tables import plain_table
from ane.system import paths
from ane.system.errors import UserError

if TYPE_CHECKING:       # torch is imported in the handler, so that --help is quick
    from ane.bundles.bundle import Bundle

HUB = "hub"
DESCRIPTION = """
Read official checkpoints and write them as a bundle, which loads lazily and is checked by SHA-256.
SOURCE for Tortoise is a directory with autoregressive.pth, diffusion_decoder.pth, vocoder.pth and clvp2.pth (other
files are read if present), a Hugging Face repository OWNER/NAME, or the word hub for upstream's own repository.
SOURCE for FastSpeech is a .pt file of NVIDIA's example; --vocoder adds the HiFi-GAN that makes its sound.
SOURCE for KittenTTS is a directory with config.json, the .onnx and the .npz file, or KittenML/NAME.
SOURCE for Whisper is a .pt file of OpenAI's, a folder with config.json and model.safetensors, or a repository such as
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

    path: Path
    config: dict[str, Any] | None       # upstream's constructor arguments; None: config.json of the directory
    source: dict[str, Any]              # with "files": official name → SHA-256
    licence: str = ""


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("import", help="make a bundle from official checkpoints", description=DESCRIPTION)
    parser.add_argument("source", metavar="SOURCE", help="directory or .pt file, OWNER/NAME on the hub, or: hub")
    parser.add_argument("-o", "--output", required=True, metavar="NAME|PATH", help="where to write the bundle")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), default="fp32", help=PRECISION)
    parser.add_argument("--config", metavar="FILE", type=arguments.path,
                        help="JSON of upstream's constructor arguments by file, for checkpoints of another size "
                             "(default: config.json in a directory, else the official sizes)")
    parser.add_argument("--vocoder", metavar="FILE", type=arguments.path,
                        help="HiFi-GAN generator for a FastSpeech model (default: none, Griffin-Lim makes the sound); "
                             "its config.json is read if it is in the same folder")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument("--expect", metavar="FILE", type=arguments.path,
                        help="JSON of the SHA-256 that each file must have, or an earlier bundle.json")
    parser.add_argument("--name", metavar="NAME", help="name in messages (default: the last part of -o)")
    parser.add_argument("--force", dest="overwrite", action="store_true", help="replace a bundle that is already there")
    parser.set_defaults(handler=import_command)


def import_command(args: argparse.Namespace) -> int:
    """Download or find the checkpoints, check them, write the bundle, print its networks."""
    from ane.bundles.bundle import check_destination, write_bundle

    destination = _destination(args.output)
    if is_kitten_source(args.source):
        return import_kitten(args, destination)
    path = Path(os.path.expanduser(args.source))
    check_destination(destination, args.overwrite, path if os.path.exists(path) else None)
    console = message_console(args)
    origin, model, surplus = _open_source(args, path, destination, console)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("writing", total=len(model.networks))
        written: list[str] = []

        def advance(network: str) -> None:
            progress.update(task, completed=len(written), description=f"writing {network}")
            written.append(network)

        bundle = write_bundle(model, destination, precision=args.precision, name=args.name or destination.name,
                              licence=origin.licence, source=origin.source, overwrite=args.overwrite, progress=advance)
    _report(report_console(args), bundle, surplus, args.output)
    return 0


def _open_source(args: argparse.Namespace, path: Path, destination: Path,
                 console: Console) -> tuple[CheckpointOrigin, Model, dict[str, list[str]]]:
    """Where the checkpoints come from, the model that they are, and the entries that it does not use, by file."""
    from ane.bundles.family import family_of_checkpoints
    from ane.commands.import_whisper import is_whisper_source, whisper_origin

    whisper = is_whisper_source(args.source)
    family = find_family("whisper") if whisper else family_of_checkpoints(path)
    if args.vocoder is not None and not family.takes_vocoder and (os.path.exists(path) or "/" in args.source):
        raise UserError(f"vocoder has no effect on {family.title} checkpoints; leave it out")
    origin = whisper_origin(args, console) if whisper else _origin(args, path, destination, console)
    vocoder = {} if args.vocoder is None else {"vocoder": args.vocoder}
    model = family.open_checkpoints(origin.path, origin.config, str(args.config), **vocoder)
    return origin, model, model.check()


def _destination(text: str) -> Path:
    """The path of the bundle; a bare name is a folder among the stored bundles."""
    if is_path(text):
        return Path(os.path.expanduser(text))
    if text in EMBEDDED:
        raise UserError(f"the name {text} belongs to an embedded bundle; choose another")
    return paths.bundles_dir() / text


def _origin(args: argparse.Namespace, path: Path, destination: Path, console: Console) -> CheckpointOrigin:
    """The checkpoints of SOURCE, downloaded if necessary, and checked against every hash recorded for them."""
    from ane.bundles.family import family_of_checkpoints
    from ane.bundles.hub import check_recorded_hashes, is_repository, read_expected
    from ane.bundles.opening import read_constructor_arguments

    config = None if args.config is None else read_constructor_arguments(args.config)
    expected = {} if args.expect is None else read_expected(args.expect)
    if os.path.exists(path) and args.revision:
        raise UserError(f"--revision is for the hub; {path} is a {'directory' if os.path.isdir(path) else 'file'}")
    if os.path.isdir(path):
        origin = _from_directory(path, config, console)
    elif family_of_checkpoints(path).checkpoint_suffixes:
        origin = _from_files(path, [path, *([args.vocoder] if args.vocoder else [])], config)
    elif os.path.isfile(path):
        raise UserError(f"{path} is a file: give the directory of Tortoise's .pth files; a FastSpeech checkpoint must "
                        "be named .pt")
    elif args.source == HUB or is_repository(args.source):
        origin = _from_hub(args, config, destination, console)
    else:
        raise UserError(f"{args.source} is neither a directory, a file nor a repository OWNER/NAME of the hub")
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


def _from_files(path: Path, files: list[Path], config: dict[str, Any] | None) -> CheckpointOrigin:
    from ane.bundles.hashes import sha256_of

    return CheckpointOrigin(path, config, {"files": {file.name: sha256_of(file) for file in files}})


def _from_hub(args: argparse.Namespace, config: dict[str, Any] | None, destination: Path,
              console: Console) -> CheckpointOrigin:
    """Download. Where the destination has a bundle of the same commit, the files must be the same."""
    from ane.bundles.family import find_family
    from ane.bundles.hub import check_recorded_hashes, download_checkpoints

    repository = find_family().repository if args.source == HUB else args.source
    found = download_checkpoints(repository, args.revision, lambda file: console.print(f"Fetching {file}"))
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
    from ane.bundles.entries import summarise_keys

    table = plain_table(None, "network", "parameters", "MB", numbers=(1, 2))
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
    console.print(f"Wrote {bundle.path} in {bundle.precision}. Use it with {bundle.family.usage} "
                  f"{shlex.quote(destination)}")
