"""`ane cache`: list and delete what the program caches, and what killed processes left behind; load it beforehand."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from ane.bundles.opening import DEFAULT_BUNDLE
from ane.commands.messages import message_console, output_console, plain_table, report_console
from ane.commands.packages import with_packages
from ane.commands.prewarm import prewarm
from ane.system import paths
from ane.system.staging import leftovers

# Folders of the cache besides the compiled models, and their content.
FOLDERS = {
    "verified": "hashes of files that were checked",
    "voices": "latents of voices' clips",
    "packages": "Core ML packages of the embedded voice",
    "engines": "TensorRT engines and timings",
    "functions": "functions of packages that Core ML refuses whole",
    "measured": "fastest engines of bundles, by `ane bench`",
}
COMPILED, LEFTOVERS = "compiled models", "unfinished files of killed processes"
ENGINE_NAME = re.compile(r"[0-9a-f]{32}")
SUFFIXES = (".json", ".safetensors", ".lock", ".timing")  # of the program's own files in these folders


@dataclass(frozen=True)
class CacheItem:
    """Something that can be deleted.

    Attributes:
        kind: a description in ``FOLDERS``, LEFTOVERS, or ``COMPILED``.
    """

    kind: str
    path: Path
    bytes: int


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "cache",
        help="list and delete caches",
        description="List and delete what can be computed again: compiled models, engines, "
        "latents of clips, hashes; and unfinished files that killed processes "
        "left behind. Voices and bundles are not touched.",
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    listing = commands.add_parser("list", help="show what is cached, its size and its folder")
    listing.set_defaults(handler=list_command)
    clearing = commands.add_parser("clear", help="delete caches and leftovers")
    clearing.add_argument("--dry-run", action="store_true", help="print what would be deleted, and delete nothing")
    clearing.set_defaults(handler=clear_command)
    warming = commands.add_parser(
        "prewarm",
        help="compile and load all Core ML functions of a bundle once (on a Mac)",
        description="Compile the Core ML packages of a bundle and load each function once, "
        "as its first use would: minutes, once for each version of macOS. "
        "Interrupted, the same command goes on where it was.",
    )
    warming.add_argument(
        "--bundle",
        metavar="NAME|PATH",
        help=f"bundle with packages (default: {DEFAULT_BUNDLE}, which `ane say` speaks with)",
    )
    warming.add_argument("--dry-run", action="store_true", help="print what it would take, and load nothing")
    warming.set_defaults(handler=prewarm_command)


def list_command(args: argparse.Namespace) -> int:
    """Print what there is by kind, and the totals."""
    items, console = collect(), output_console()
    console.print(f"{paths.cache_dir()}:{'' if items else ' empty'}")
    if items:
        table = plain_table(None, "kind", "items", "MB", numbers=(1, 2))
        for kind in (COMPILED, *FOLDERS.values(), LEFTOVERS, "all"):
            chosen = [item for item in items if kind in (item.kind, "all")]
            table.add_row(kind, str(len(chosen)), _megabytes(chosen))
        console.print(table)
    return 0


def clear_command(args: argparse.Namespace) -> int:
    """Delete all items; print how many and how large they were."""
    from ane.backends.coreml.compiled import CompiledCache, remove

    items = collect()
    if args.dry_run:
        for item in items:
            output_console().print(f"would delete {item.path}, {_megabytes([item])} MB")
    else:
        CompiledCache().remove([item.path for item in items if item.kind == COMPILED])
        for item in items:
            if item.kind != COMPILED:
                remove(item.path)
    verb = "Would delete" if args.dry_run else "Deleted"
    what = f"{len(items)} item{'s' if len(items) != 1 else ''}, {_megabytes(items)} MB" if items else "nothing"
    report_console(args).print(f"{verb} {what} in {paths.cache_dir()}")
    return 0


def collect() -> list[CacheItem]:
    """Everything that can be deleted: compiled models, files of the cache's other folders, leftovers."""
    from ane.backends.coreml.compiled import CompiledCache, size_of

    found = dict.fromkeys(CompiledCache().entries(), COMPILED)
    for name, kind in FOLDERS.items():
        folder = paths.cache_dir() / name
        if folder.is_dir() and not folder.is_symlink():
            found |= {path: kind for path in sorted(folder.iterdir()) if _is_own(path)}
    folders = {folder.resolve() for folder in (paths.data_dir(), paths.cache_dir())}  # one may lie in the other
    for path in sorted({path for folder in folders for path in leftovers(folder)}):
        found.setdefault(path, LEFTOVERS)
    return [CacheItem(kind, path, size_of(path)) for path, kind in found.items()]


def _is_own(path: Path) -> bool:
    """Whether the program wrote an entry of a folder of the cache."""
    if path.is_symlink() or path.is_file():
        return path.suffix in SUFFIXES and not path.is_symlink()
    return (
        (path / "bundle.json").is_file()
        or path.name.endswith((".converting", ".mlpackage"))
        or ENGINE_NAME.fullmatch(path.name) is not None
    )


def _megabytes(items: list[CacheItem]) -> str:
    return f"{sum(item.bytes for item in items) / 1e6:.1f}"


def prewarm_command(args: argparse.Namespace) -> int:
    """Compile and load every function of a bundle, or only estimate how long that takes."""
    from ane.backends.coreml.runtime import CoreMLRuntime
    from ane.backends.coreml.trial import CoreMLTrial
    from ane.bundles.opening import open_model

    runtime, console = CoreMLRuntime(trial=CoreMLTrial()), message_console(args)  # raises where there is no Core ML
    model = with_packages(open_model(args.bundle), "coreml", console)
    prewarm(model, runtime, console, report_console(args), args.dry_run)
    return 0
