"""Run ``ane import``: make a bundle from official checkpoints in a folder, in a file or on the Hugging Face hub."""

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
    from ane.bundles.hub import Snapshot

HUB = "hub"
OFFICIAL_REPOSITORY = "Manmay/tortoise-tts"  # upstream's default. jbetker/tortoise-tts-v2 lacks hifidecoder.pth
DESCRIPTION = """
Read official checkpoints and write a bundle, which is a folder that loads fast and records SHA-256 hashes of its files.
After -o NAME, use the bundle with --bundle NAME. A path must contain a slash.
"""
SOURCES = """
SOURCE by model:
  Tortoise     directory with autoregressive.pth, diffusion_decoder.pth, vocoder.pth and clvp2.pth (optional files are
               read too), a Hugging Face repository OWNER/NAME, or the word 'hub' for upstream's repository. Files may
               have other names, be safetensors, or hold a CLVP of transformers, because `ane` identifies a network by
               its keys. For one network alone, such as 8301_gpt.pth or OWNER/NAME/8301_gpt.pth, add --base
  FastSpeech   .pt file of NVIDIA's example. Add its HiFi-GAN with --vocoder
  KittenTTS    directory with config.json, the .onnx file and the .npz file, or KittenML/NAME
  Kokoro       .onnx file with voices*.bin in its folder, that folder, or a copy of onnx-community's repository
  heart        .onnx file of hibari-tts, or maureesewilliams/hibari/voices/FILE
  Whisper      .pt file of OpenAI, folder with config.json and model.safetensors, folder with model.bin of CTranslate2
               (faster-whisper), or a repository such as openai/whisper-base.en
"""
PRECISION = """
number format of the stored parameters (default: fp32, which keeps every bit of the official files). fp16 halves the
size, and the Neural Engine computes in it. bf16 halves the size too, with the range of fp32 and three bits less
precision than fp16
"""


@dataclass(frozen=True)
class CheckpointOrigin:
    """The path of the checkpoints on this machine, and the facts about their origin that the bundle records.

    Attributes:
        config: Upstream's constructor arguments. ``None`` means config.json in the directory.
        source: The origin to record. Its field "files" maps official file names to SHA-256 hashes.
    """

    path: Path
    config: dict[str, Any] | None
    source: dict[str, Any]
    licence: str = ""


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "import",
        help="make a bundle from official checkpoints",
        description=DESCRIPTION,
        epilog=SOURCES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="directory, file, repository OWNER/NAME, file in a repository, or 'hub'"
    )
    parser.add_argument("-o", "--output", required=True, metavar="NAME|PATH", help="bundle to write")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), help=PRECISION)
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=arguments.path,
        help="JSON file with upstream's constructor arguments for each file, if the checkpoints have other sizes than "
        "the official ones (default: config.json in the directory, or the official sizes if there is none)",
    )
    parser.add_argument(
        "--vocoder",
        metavar="FILE",
        type=arguments.path,
        help="vocoder. FastSpeech: a HiFi-GAN generator (default: none, so Griffin-Lim makes the sound). Tortoise: a "
        "BigVGAN for 24 kHz and 100 bands (default: UnivNet from SOURCE). Its config.json is read if it is in the same "
        "folder",
    )
    parser.add_argument(
        "--voices",
        metavar="PATH",
        type=arguments.path,
        help="voices of a Kokoro model: an .npz or .bin file, or a directory of VOICE.bin files (default: "
        "the voices in the folder of the .onnx file)",
    )
    parser.add_argument(
        "--base",
        metavar="NAME|PATH",
        help="Tortoise bundle with the networks that SOURCE lacks, for example if SOURCE has only a fine-tuned decoder",
    )
    parser.add_argument(
        "--lora",
        metavar="FILE|FOLDER",
        type=arguments.path,
        help="LoRA to merge into the weights of a Tortoise model: the folder that PEFT wrote, with adapter_config.json",
    )
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument(
        "--expect",
        metavar="FILE",
        type=arguments.path,
        help="JSON file with the SHA-256 hash that each file must have, or an earlier bundle.json",
    )
    parser.add_argument(
        "--ignore-unknown",
        action="store_true",
        help="leave out tensors that this version does not know, such as the weights of an adapter "
        "(default: they are an error)",
    )
    parser.add_argument(
        "--license",
        dest="licence",
        metavar="TEXT",
        help="licence of the weights, for the bundle and the packages that are converted from it, such as CC-BY-4.0 "
        "(default: the licence that the repository on the hub states)",
    )
    parser.add_argument("--name", metavar="NAME", help="name of the model in messages (default: the last part of -o)")
    parser.add_argument("--force", dest="overwrite", action="store_true", help="replace a bundle that exists already")
    parser.set_defaults(handler=import_command)


def import_command(args: argparse.Namespace) -> int:
    """Run `ane import`: find or download the checkpoints, check them, write the bundle, and print its content."""
    from ane.bundles.writing import check_destination

    destination, path = new_bundle(args.output), Path(os.path.expanduser(args.source))
    check_files(args, {"output": destination}, ("config", "vocoder", "expect"), models=("base", "voices", "lora"))
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
        licence=args.licence or origin.licence or contents.licence,
        source=source,
    )
    bundle = _write(console, contents, destination, args.overwrite)
    report = report_console(args)
    _report(report, bundle, contents)
    report.print(f"Wrote {destination}. {how_to_use(family, args.output)}")
    return 0


def _family(args: argparse.Namespace, path: Path) -> ModelFamily:
    """Return the model family of SOURCE. Raises UserError if SOURCE cannot be imported or a flag does not apply."""
    from ane.bundles.hub import is_local_path, is_repository

    if os.path.isfile(path / "bundle.json"):
        raise UserError(f"{path} is already a bundle and needs no import: use --bundle {path}")
    on_hub = not os.path.exists(path)
    if on_hub and is_local_path(args.source):
        raise UserError(f"there is no file or directory {args.source}")
    if on_hub and args.source != HUB and not is_repository(args.source):
        raise UserError(f"{args.source} is neither a directory, a file nor a repository OWNER/NAME of the hub")
    if args.revision and not on_hub:
        raise UserError(
            f"--revision is for the hub, but {path} is a {'directory' if os.path.isdir(path) else 'file'}: leave it out"
        )
    family = family_of_repository(args.source) if on_hub else family_of_checkpoints(path)
    import_options(family, **_choices(args))
    return family


def _paths(args: argparse.Namespace) -> dict[str, Any]:
    """Return the import options that name files or bundles besides SOURCE."""
    return {"vocoder": args.vocoder, "voices": args.voices, "base": args.base, "lora": args.lora}


def _choices(args: argparse.Namespace) -> dict[str, Any]:
    """Return the import options that do not name files."""
    return {
        **_paths(args),
        "config": args.config,
        "precision": args.precision,
        "ignore_unknown": args.ignore_unknown or None,
    }


def _write(console: Console, contents: "Contents", destination: Path, overwrite: bool) -> "Bundle":
    """Write the bundle, and show on ``console`` which network is being written."""
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
    """Find or download the checkpoints that SOURCE names, and compare them with all hashes that are recorded."""
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
    """Download the checkpoints from the Hugging Face hub.

    If the destination already has a bundle of the same commit, the files must have the hashes that the bundle records.
    """
    from ane.bundles.hub import check_recorded_hashes

    repository = OFFICIAL_REPOSITORY if args.source == HUB else args.source
    download = family.download(repository, args.revision, lambda file: console.print(f"Fetching {file}"))
    source = {
        "repository": repository,
        "revision": download.revision,
        "files": download.files | _hashes_of_flags(args, family, download),
    }
    recorded = _recorded(destination)
    if (recorded.get("repository"), recorded.get("revision")) == (repository, download.revision):
        check_recorded_hashes(
            {file: sha256 for file, sha256 in recorded["files"].items() if file in download.files},
            download.files,
            f"{destination}/bundle.json",
        )
    # A config.json in the repository does not hold upstream's constructor arguments. Without --config, the networks
    # have the sizes of --base, or the official sizes.
    return CheckpointOrigin(download.directory, config if args.base else config or {}, source, download.licence)


def _hashes_of_flags(args: argparse.Namespace, family: ModelFamily, download: "Snapshot") -> dict[str, str]:
    """Hash the files that flags such as --lora name, by the names that bundle.json has for them."""
    from ane.bundles.hashes import sha256_of

    if not (args.vocoder or args.voices or args.lora):
        return {}
    folder = download.directory.parent if download.directory.is_file() else download.directory
    downloaded = {folder / part for file in download.files for part in (file, Path(file).name)}
    files = family.source_files(download.directory, **import_options(family, **_paths(args)))
    return {name: sha256_of(file) for name, file in files.items() if file not in downloaded}


def _recorded(destination: Path) -> dict[str, Any]:
    """Return the origin that a bundle at the destination records, or {} if there is no readable bundle."""
    try:
        source = read_content(destination).get("source")
    except UserError:
        return {}
    return source if isinstance(source, dict) and isinstance(source.get("files"), dict) else {}


def _report(console: Console, bundle: "Bundle", contents: "Contents") -> None:
    """Print a new bundle's voices and networks, the tensors that were left out, and the notes of the import."""
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
        (contents.surplus.unknown, "although this version does not know its purpose"),
    ):
        if omitted:
            console.print(f"Left out, {reason}: {summarise_files(omitted)}")
    if contents.surplus.unread:
        console.print(f"Not read, because other files have the networks: {', '.join(contents.surplus.unread)}")
    if not bundle.trained:
        console.print("According to config.json, the weights are random: this bundle generates noise, not speech.")
    for note in contents.notes:
        console.print(note)
