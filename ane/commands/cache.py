"""Run `ane cache`: list or delete cached files and the leftovers of killed processes, or fill the cache in advance."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from ane.bundles.opening import DEFAULT_BUNDLE
from ane.commands.messages import counted, message_console, output_console, print_listing, report_console
from ane.commands.packages import with_packages
from ane.commands.prewarm import prewarm
from ane.system import paths
from ane.system.staging import leftovers

# folder of the cache → its content. The folder of compiled models is not listed here.
FOLDERS = {
    "verified": "hashes of verified files",
    "voices": "latents of clips",
    "packages": "Core ML packages of the embedded voice",
    "engines": "TensorRT engines and timings",
    "functions": "single functions of packages that Core ML rejects whole",
    "measured": "fastest engines that `ane bench` measured",
}
COMPILED, LEFTOVERS = "compiled models", "unfinished files of killed processes"
ENGINE_NAME = re.compile(r"[0-9a-f]{32}")
SUFFIXES = (".json", ".safetensors", ".lock", ".timing")  # suffixes of files that this program writes there


@dataclass(frozen=True)
class CacheItem:
    """A file or folder that `ane cache clear` deletes.

    Attributes:
        kind: Description of the content: a value of ``FOLDERS``, ``LEFTOVERS`` or ``COMPILED``.
        bytes: Size of the file, or of all files in the folder.
    """

    kind: str
    path: Path
    bytes: int


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "cache",
        help="list and delete caches",
        description="List or delete files that the program can compute again (compiled models, engines, latents of "
        "clips and hashes), and unfinished files of killed processes. Your voices and bundles stay.",
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    listing = commands.add_parser("list", help="show the content of the cache, with its size and its folder")
    listing.add_argument("--json", action="store_true", help="print every file and folder of the cache as JSON")
    listing.set_defaults(handler=list_command)
    clearing = commands.add_parser("clear", help="delete caches and leftovers")
    clearing.add_argument("--dry-run", action="store_true", help="print the files, and delete nothing")
    clearing.set_defaults(handler=clear_command)
    warming = commands.add_parser(
        "prewarm",
        help="compile and load all Core ML functions of a bundle in advance (on a Mac)",
        description="Compile the Core ML packages of a bundle and load each function once, so that the first speech "
        "does not wait. This takes minutes, once per version of macOS. After an interruption, run the same command "
        "again to continue.",
    )
    warming.add_argument(
        "--bundle",
        metavar="NAME|PATH",
        help=f"bundle with packages (default: {DEFAULT_BUNDLE}, the default voice of `ane say`)",
    )
    warming.add_argument("--dry-run", action="store_true", help="estimate the time, and load nothing")
    warming.set_defaults(handler=prewarm_command)


def list_command(args: argparse.Namespace) -> int:
    """Print how many files or folders of each kind the cache has, and their size. With --json, print each of them."""
    items, rows = collect(), list[tuple[str, str, str]]()
    for kind in (COMPILED, *FOLDERS.values(), LEFTOVERS) if items else ():
        chosen = [item for item in items if item.kind == kind]
        rows.append((kind, str(len(chosen)), _megabytes(chosen)))
    total = f"{counted(len(items), 'item')}, {_megabytes(items)} MB" if items else "empty"
    print_listing(
        args,
        ("kind", "items", "MB"),
        rows,
        [{"kind": item.kind, "path": str(item.path), "bytes": item.bytes} for item in items],
        numbers=(1, 2),
        notes=[f"{paths.cache_dir()}: {total}"],
    )
    return 0


def clear_command(args: argparse.Namespace) -> int:
    """Delete all items, and print their number and size."""
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
    amount = f"{counted(len(items), 'item')}, {_megabytes(items)} MB" if items else "nothing"
    report_console(args).print(f"{verb} {amount} in {paths.cache_dir()}")
    return 0


def collect() -> list[CacheItem]:
    """Find everything that can be deleted: compiled models, other cached files, and leftovers of killed processes."""
    from ane.backends.coreml.compiled import CompiledCache, size_of

    kinds = dict.fromkeys(CompiledCache().entries(), COMPILED)
    for name, kind in FOLDERS.items():
        folder = paths.cache_dir() / name
        if folder.is_dir() and not folder.is_symlink():
            kinds |= {path: kind for path in sorted(folder.iterdir()) if _is_ours(path)}
    # one folder may be inside the other
    folders = {folder.resolve() for folder in (paths.data_dir(), paths.cache_dir())}
    for path in sorted({path for folder in folders for path in leftovers(folder)}):
        kinds.setdefault(path, LEFTOVERS)
    return [CacheItem(kind, path, size_of(path)) for path, kind in kinds.items()]


def _is_ours(path: Path) -> bool:
    """Return whether this program wrote a file or folder that was found in the cache."""
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

    runtime, console = CoreMLRuntime(trial=CoreMLTrial()), message_console(args)  # raises without Core ML
    model = with_packages(open_model(args.bundle), "coreml", console)
    prewarm(model, runtime, console, report_console(args), args.dry_run)
    return 0
