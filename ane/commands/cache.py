"""`ane cache`: list and delete what the program caches, and what killed processes left behind; load it beforehand."""

import argparse
import json
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ane.commands.messages import message_console, output_console, plain_table, report_console, status_display
from ane.commands.packages import with_packages
from ane.system import paths
from ane.system.errors import UserError
from ane.system.staging import leftovers

if TYPE_CHECKING:
    from ane.backends.coreml.compiled import CompiledModelEntry
    from ane.backends.coreml.tools import MacMachine

# Folders of the cache besides the compiled models, and their content.
FOLDERS = {"verified": "hashes of files that were checked", "voices": "latents of voices' clips",
           "packages": "Core ML packages of the embedded voice", "engines": "TensorRT engines and timings",
           "functions": "functions of packages that Core ML refuses whole"}
SYSTEM_CACHE = "com.apple.e5rt.e5bundlecache"       # of macOS: models specialised for the Neural Engine, by program
SECONDS_A_FUNCTION = 10.0       # an estimate, until functions were loaded on this Mac: nothing was measured on one
LEFTOVERS = "unfinished files of killed processes"
ENGINE_NAME = re.compile(r"[0-9a-f]{32}")
SUFFIXES = (".json", ".safetensors", ".lock", ".timing")        # of the program's own files in these folders


@dataclass(frozen=True)
class CacheItem:
    """Something that can be deleted.

    Attributes:
        kind: a description in ``FOLDERS``, LEFTOVERS, or "compiled models".
        used: time of the last use, in seconds since the epoch. stale: why it will not be used again, or "".
        entry: the cache entry of a compiled model; None for other kinds.
    """

    kind: str
    path: Path
    bytes: int
    used: float
    stale: str
    entry: "CompiledModelEntry | None" = None


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("cache", help="list and delete caches",
                                   description="List and delete what can be computed again: compiled models, engines, "
                                               "latents of clips, hashes; and unfinished files that killed processes "
                                               "left behind. Voices and bundles are not touched.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    listing = commands.add_parser("list", help="show what is cached, its size and its folder")
    listing.add_argument("--json", action="store_true", help="print each item, as JSON")
    listing.set_defaults(handler=list_command)
    clearing = commands.add_parser("clear", help="delete caches and leftovers")
    clearing.add_argument("--stale", action="store_true",
                          help="only what will not be used again: of another macOS or chip, of a package "
                               "that is gone or was replaced, damaged, unfinished, or unused for 90 days")
    clearing.add_argument("--dry-run", action="store_true", help="print what would be deleted, and delete nothing")
    clearing.set_defaults(handler=clear_command)
    warming = commands.add_parser("prewarm", help="compile and load all Core ML functions of a bundle once (on a Mac)",
                                 description="Compile the Core ML packages of a bundle and load each function once, "
                                             "as its first use would: minutes, once for each version of macOS. "
                                             "Interrupted, the same command goes on where it was.")
    warming.add_argument("--bundle", metavar="NAME|PATH", help="bundle with packages (default: the embedded demo)")
    warming.add_argument("--dry-run", action="store_true", help="print what it would take, and load nothing")
    warming.set_defaults(handler=prewarm_command)


def list_command(args: argparse.Namespace) -> int:
    """Print what there is by kind, and the totals; with --json each item."""
    items = collect()
    if args.json:
        print(json.dumps({"folder": str(paths.cache_dir()), "items": [_facts(item) for item in items],
                          "bytes": sum(item.bytes for item in items),
                          "system": [{"path": str(path), "bytes": size} for path, size in system_caches()]}))
        return 0
    console = output_console()
    console.print(f"{paths.cache_dir()}:{'' if items else ' empty'}")
    for path, size in system_caches():
        console.print(f"macOS keeps {size / 1e6:.1f} MB for the Neural Engine in {path}; `ane cache clear` leaves it")
    if not items:
        return 0
    table = plain_table(None, "kind", "items", "MB", "stale", numbers=(1, 2, 3))
    for kind in ("compiled models", *FOLDERS.values(), LEFTOVERS, "all"):
        chosen = [item for item in items if kind in (item.kind, "all")]
        table.add_row(kind, str(len(chosen)), _megabytes(chosen), str(sum(bool(item.stale) for item in chosen)))
    console.print(table)
    return 0


def clear_command(args: argparse.Namespace) -> int:
    """Delete all items, or the stale ones; print how many and how large they were."""
    from ane.backends.coreml.compiled import CompiledCache, remove

    items = [item for item in collect() if item.stale or not args.stale]
    if args.dry_run:
        for item in items:
            reason = f" ({item.stale})" if item.stale else ""
            output_console().print(f"would delete {item.path}, {_megabytes([item])} MB{reason}")
    else:
        CompiledCache().remove([item.entry for item in items if item.entry])
        for item in items:
            if not item.entry:
                remove(item.path)
    verb = "Would delete" if args.dry_run else "Deleted"
    what = f"{len(items)} item{'s' if len(items) != 1 else ''}, {_megabytes(items)} MB" if items else "nothing"
    report_console(args).print(f"{verb} {what} in {paths.cache_dir()}")
    return 0


def collect() -> list[CacheItem]:
    """Everything that can be deleted: compiled models, files of the cache's other folders, leftovers."""
    from ane.backends.coreml.compiled import CompiledCache

    now, machine = time.time(), known_machine()
    models = [CacheItem("compiled models", entry.path, entry.bytes, entry.used, entry.stale(machine, now), entry)
              for entry in CompiledCache().entries()]
    files = [item for folder, kind in FOLDERS.items()
             for item in _files(kind, paths.cache_dir() / folder, now)]
    known = {item.path for item in models}
    return models + files + [item for item in _leftovers() if item.path not in known]


def system_caches() -> list[tuple[Path, int]]:
    """macOS's own caches of models that Python programs loaded, with their bytes; none on other systems."""
    from ane.backends.coreml.compiled import size_of

    if sys.platform != "darwin":
        return []
    found = sorted((Path.home() / "Library" / "Caches").glob(f"*/{SYSTEM_CACHE}"))
    return [(path, size_of(path)) for path in found if "python" in path.parent.name.lower()]


def known_machine() -> "MacMachine | None":
    """The machine that compiled models are made for here; None off macOS, where none are made."""
    from ane.backends.coreml.tools import this_machine

    return this_machine() if sys.platform == "darwin" else None


def _files(kind: str, folder: Path, now: float) -> list[CacheItem]:
    from ane.backends.coreml.compiled import UNUSED_DAYS, size_of

    if not folder.is_dir() or folder.is_symlink():
        return []
    items = []
    for path in sorted(folder.iterdir()):
        own = path.suffix in SUFFIXES if path.is_file() else (
            (path / "bundle.json").is_file() or path.name.endswith((".converting", ".mlpackage"))
            or ENGINE_NAME.fullmatch(path.name))
        if path.is_symlink() or not own:
            continue
        stat = path.stat()
        used = max(stat.st_mtime, stat.st_atime)         # reading it sets atime
        stale = f"unused for {UNUSED_DAYS} days" if now - used > UNUSED_DAYS * 86400 else ""
        items.append(CacheItem(kind, path, size_of(path), used, stale))
    return items


def _leftovers() -> list[CacheItem]:
    """Unfinished files in the data folder and the cache, of processes that have ended."""
    from ane.backends.coreml.compiled import size_of

    folders = {folder.resolve() for folder in (paths.data_dir(), paths.cache_dir())}
    found = {path for folder in folders for path in leftovers(folder)}          # the cache may lie in the data folder
    return [CacheItem(LEFTOVERS, path, size_of(path), path.stat().st_mtime, "left behind by a process that was killed")
            for path in sorted(found)]


def _facts(item: CacheItem) -> dict:
    facts = {"kind": item.kind, "path": str(item.path), "bytes": item.bytes, "used": item.used, "stale": item.stale}
    record = item.entry.record if item.entry else None
    return facts | ({"package": record.package, "chip": record.chip, "os_build": record.os_build} if record else {})


def _megabytes(items: list[CacheItem]) -> str:
    return f"{sum(item.bytes for item in items) / 1e6:.1f}"


def prewarm_command(args: argparse.Namespace) -> int:
    """Load each function that was not loaded before. Those that Core ML refuses are counted; `ane say` goes around."""
    from ane.backends.coreml.runtime import CoreMLRuntime
    from ane.backends.coreml.trial import CoreMLTrial
    from ane.backends.packaged.functions import EngineRefusalError
    from ane.backends.packaged.selection import select_packages
    from ane.bundles.hashes import check_hashes
    from ane.bundles.opening import DEMO, open_model

    runtime, console = CoreMLRuntime(trial=CoreMLTrial()), message_console(args)      # raises where there is no Core ML
    model = with_packages(open_model(args.bundle or DEMO), "coreml", console)
    packages = list(select_packages(model, "auto").values())
    functions = [(package, name) for package in packages for name in package.functions]
    size = sum(file.bytes for package in packages for file in package.files) / 1e9
    report = report_console(args)
    report.print(f"{len(packages)} packages ({size:.2f} GB, as much again when they are compiled) and {len(functions)} "
                 f"functions: about {len(functions) * SECONDS_A_FUNCTION / 60:.0f} minutes, an estimate of "
                 f"{SECONDS_A_FUNCTION:g} s a function; less where some were loaded before.")
    if args.dry_run:
        return 0
    started, refused = time.monotonic(), []
    with status_display(console, "loading") as show:
        for done, (package, name) in enumerate(functions):
            left = (time.monotonic() - started) / done * (len(functions) - done) if done else 0
            show(f"{done} of {len(functions)} functions{f', about {left / 60:.0f} minutes left' if done else ''}: "
                 f"{package.network}, {name}")
            try:
                check_hashes(model.path, package.files)
                runtime.load(model.path / package.path, name, package.compute_units)
            except EngineRefusalError as error:
                refused.append(str(error).partition("; ")[0])
    for line in refused:
        report.print(line, soft_wrap=True)
    report.print(f"{len(functions) - len(refused)} of {len(functions)} functions are ready, after "
                 f"{time.monotonic() - started:.0f} s.")
    if len(refused) == len(functions):
        raise UserError("Core ML refuses every function of this bundle: use --backend torch")
    return 0
