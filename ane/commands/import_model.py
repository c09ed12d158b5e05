"""``ane import``: official checkpoints, from a directory, a file or the Hugging Face hub, into a bundle."""

import argparse
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, track

from ane.bundles.family import ModelFamily, family_of_repository, import_options
from ane.bundles.manifest import read_content
from ane.bundles.opening import family_of_checkpoints, new_bundle
from ane.commands import arguments
from ane.commands.file_flags import check_files
from ane.commands.messages import how_to_use, message_console, plain_table, report_console
from ane.system.errors import UserError

if TYPE_CHECKING:  # torch is imported in the handler, so that --help is quick
    from ane.bundles import Bundle
    from ane.bundles.contents import Contents

HUB = "hub"
OFFICIAL_REPOSITORY = "Manmay/tortoise-tts"  # upstream's default; jbetker/tortoise-tts-v2 lacks hifidecoder.pth
DESCRIPTION = """
Read official checkpoints and write them as a bundle, which loads lazily and is checked by SHA-256.
SOURCE for Tortoise is a directory with autoregressive.pth, diffusion_decoder.pth, vocoder.pth and clvp2.pth (other
files are read if present), a Hugging Face repository OWNER/NAME, or the word hub for upstream's own repository.
Files of other names are known by their keys, also safetensors and transformers' CLVP; --base completes a file alone,
such as 8301_gpt.pth or OWNER/NAME/8301_gpt.pth.
SOURCE for FastSpeech is a .pt file of NVIDIA's example; --vocoder adds the HiFi-GAN that makes its sound.
SOURCE for KittenTTS is a directory with config.json, the .onnx and the .npz file, or KittenML/NAME.
SOURCE for Kokoro is an .onnx file with voices*.bin beside it, or a directory of them or of onnx-community's repository.
SOURCE for a voice like heart is the .onnx file of hibari-tts, or maureesewilliams/hibari/voices/FILE.
SOURCE for Whisper is a .pt file of OpenAI's, a folder with config.json and model.safetensors or with model.bin of
CTranslate2 (faster-whisper), or a repository such as openai/whisper-base.en.
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
    config: dict[str, Any] | None  # upstream's constructor arguments; None: config.json of the directory
    source: dict[str, Any]  # with "files": official name → SHA-256
    licence: str = ""


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("import", help="make a bundle from official checkpoints", description=DESCRIPTION)
    parser.add_argument("source", metavar="SOURCE", help="directory or file, OWNER/NAME or a file of it, or: hub")
    parser.add_argument("-o", "--output", required=True, metavar="NAME|PATH", help="where to write the bundle")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), help=PRECISION)
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=arguments.path,
        help="JSON of upstream's constructor arguments by file, for checkpoints of another size "
        "(default: config.json in a directory, else the official sizes)",
    )
    parser.add_argument(
        "--vocoder",
        metavar="FILE",
        type=arguments.path,
        help="HiFi-GAN generator for a FastSpeech model (default: none, Griffin-Lim makes "
        "the sound), or BigVGAN (24 kHz, 100 bands) for Tortoise (default: its own, UnivNet); "
        "the JSON of its sizes is read if it is in the same folder",
    )
    parser.add_argument(
        "--voices",
        metavar="PATH",
        type=arguments.path,
        help="voices of a Kokoro model: an .npz or .bin file, or a directory of VOICE.bin (default: "
        "those beside the graph)",
    )
    parser.add_argument(
        "--base",
        metavar="NAME|PATH",
        help="bundle from which Tortoise's networks come that SOURCE lacks, such as those next to a fine-tuned decoder",
    )
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument(
        "--expect",
        metavar="FILE",
        type=arguments.path,
        help="JSON of the SHA-256 that each file must have, or an earlier bundle.json",
    )
    parser.add_argument(
        "--ignore-unknown",
        action="store_true",
        help="leave out the entries of a checkpoint of which this version does not know what they are "
        "for, such as the weights of a LoRA (default: they are an error)",
    )
    parser.add_argument("--name", metavar="NAME", help="name in messages (default: the last part of -o)")
    parser.add_argument("--force", dest="overwrite", action="store_true", help="replace a bundle that is already there")
    parser.set_defaults(handler=import_command)


def import_command(args: argparse.Namespace) -> int:
    """Download or find the checkpoints, check them, write the bundle, print its content."""
    from ane.bundles.writing import check_destination

    destination, path = new_bundle(args.output), Path(os.path.expanduser(args.source))
    check_files(args, {"output": destination}, ("config", "vocoder", "expect"), models=("base", "voices"))
    family = _family(args, path)
    check_destination(destination, args.overwrite, path if os.path.exists(path) else None)
    console = message_console(args)
    origin = _origin(args, family, path, destination, console)
    contents = family.import_checkpoints(
        origin.path,
        **import_options(family, **_choices(args) | {"config": origin.config}, where=args.config and str(args.config)),
    )
    source = origin.source | ({"base": Path(args.base).name} if args.base else {}) | dict(contents.source)
    contents = replace(
        contents,
        name=args.name or destination.name,
        precision=args.precision or "fp32",
        licence=origin.licence or contents.licence,
        source=source,
    )
    bundle = _write(console, contents, destination, args.overwrite)
    report = report_console(args)
    _report(report, bundle, contents)
    report.print(f"Wrote {destination}. {how_to_use(family, args.output)}")
    return 0


def _family(args: argparse.Namespace, path: Path) -> ModelFamily:
    """The family of SOURCE. Raises UserError when it is nothing to import, or a flag has no effect on that family."""
    from ane.bundles.hub import is_local_path, is_repository

    if os.path.isfile(path / "bundle.json"):
        raise UserError(f"{path} is a bundle already and needs no import: name it as --bundle {path}")
    on_hub = not os.path.exists(path)
    if on_hub and is_local_path(args.source):
        raise UserError(f"there is no file or directory {args.source}")
    if on_hub and args.source != HUB and not is_repository(args.source):
        raise UserError(f"{args.source} is neither a directory, a file nor a repository OWNER/NAME of the hub")
    if args.revision and not on_hub:
        raise UserError(f"--revision is for the hub; {path} is a {'directory' if os.path.isdir(path) else 'file'}")
    family = family_of_repository(args.source) if on_hub else family_of_checkpoints(path)
    import_options(family, **_choices(args))
    return family


def _paths(args: argparse.Namespace) -> dict[str, Any]:
    """The files next to SOURCE, by options."""
    return {"vocoder": args.vocoder, "voices": args.voices, "base": args.base}


def _choices(args: argparse.Namespace) -> dict[str, Any]:
    """The options of an import."""
    return {
        **_paths(args),
        "config": args.config,
        "precision": args.precision,
        "ignore_unknown": args.ignore_unknown or None,
    }


def _write(console: Console, contents: "Contents", destination: Path, overwrite: bool) -> "Bundle":
    """Write the bundle, and show which network is being written."""
    from ane.bundles.writing import write_bundle

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("writing", total=len(contents.configs))
        written: list[str] = []

        def advance(network: str) -> None:
            progress.update(task, completed=len(written), description=f"writing {network}")
            written.append(network)

        return write_bundle(contents, destination, overwrite=overwrite, progress=advance)


def _origin(
    args: argparse.Namespace, family: ModelFamily, path: Path, destination: Path, console: Console
) -> CheckpointOrigin:
    """The checkpoints of SOURCE, downloaded if necessary, and checked against every hash recorded for them."""
    from ane.bundles.hashes import sha256_of
    from ane.bundles.hub import check_recorded_hashes, read_expected
    from ane.bundles.opening import read_constructor_arguments

    config = None if args.config is None else read_constructor_arguments(args.config)
    expected = {} if args.expect is None else read_expected(args.expect)
    if os.path.exists(path):
        files = family.source_files(path, **import_options(family, **_paths(args)))
        origin = CheckpointOrigin(
            path,
            config,
            {
                "files": {
                    name: sha256_of(file)
                    for name, file in track(
                        files.items(), "hashing", console=console, transient=True, disable=not console.is_terminal
                    )
                }
            },
        )
    else:
        origin = _from_hub(args, family, config, destination, console)
    check_recorded_hashes(expected, origin.source["files"], str(args.expect))
    return origin


def _from_hub(
    args: argparse.Namespace, family: ModelFamily, config: dict[str, Any] | None, destination: Path, console: Console
) -> CheckpointOrigin:
    """Download. Where the destination has a bundle of the same commit, the files must be the same."""
    from ane.bundles.hub import check_recorded_hashes

    repository = OFFICIAL_REPOSITORY if args.source == HUB else args.source
    found = family.download(repository, args.revision, lambda file: console.print(f"Fetching {file}"))
    source = {"repository": repository, "revision": found.revision, "files": found.files}
    recorded = _recorded(destination)
    if (recorded.get("repository"), recorded.get("revision")) == (repository, found.revision):
        check_recorded_hashes(recorded["files"], found.files, f"{destination}/bundle.json")
    # a repository's config.json is not upstream's: without --config the sizes are those of --base, or the official ones
    return CheckpointOrigin(found.directory, config if args.base else config or {}, source, found.licence)


def _recorded(destination: Path) -> dict[str, Any]:
    """The source that a bundle at the destination states; {} without a readable bundle."""
    try:
        source = read_content(destination).get("source")
    except UserError:
        return {}
    return source if isinstance(source, dict) and isinstance(source.get("files"), dict) else {}


def _report(console: Console, bundle: "Bundle", contents: "Contents") -> None:
    """Print the voices and the networks of a bundle, the entries that were left out, and the notes of the import."""
    from ane.bundles.surplus import summarise_files

    if names := bundle.voice_names:
        console.print(f"Voices: {', '.join(names)}")
    if everything := bundle.manifest.networks:
        table = plain_table(None, "network", "parameters", f"MB in {bundle.precision}", numbers=(1, 2))
        for name, network in everything.items():
            table.add_row(name, f"{network.parameters:,}", f"{network.weights.bytes / 1e6:.1f}")
        table.add_section()
        table.add_row(
            "all",
            f"{sum(n.parameters for n in everything.values()):,}",
            f"{sum(n.weights.bytes for n in everything.values()) / 1e6:.1f}",
        )
        console.print(table)
    for omitted, reason in (
        (contents.surplus.unneeded, "because speech does not need it"),
        (contents.surplus.unknown, "although this version does not know what it is for"),
    ):
        if omitted:
            console.print(f"Left out, {reason}: {summarise_files(omitted)}")
    if contents.surplus.unread:
        console.print(f"Not read, because the networks come from the other files: {', '.join(contents.surplus.unread)}")
    if not bundle.trained:
        console.print("The weights are random numbers (config.json says so): this bundle generates noise, not speech.")
    for note in contents.notes:
        console.print(note)
