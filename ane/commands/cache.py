"""`ane cache`: list and delete what the program caches, and what killed processes left behind; fill it beforehand."""

import argparse
import json
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ane.commands import prewarm
from ane.commands.messages import output_console, plain_table, report_console
from ane.system import paths
from ane.system.staging import leftovers

if TYPE_CHECKING:
    from rich.table import Table

    from ane.backends.coreml.compiled import CompiledModelEntry
    from ane.backends.coreml.tools import MacMachine

# Folders of the cache besides the compiled models, and their content.
FOLDERS = {"verified": "hashes of files that were checked", "voices": "latents of voices' clips",
           "packages": "Core ML packages of the embedded voice", "engines": "TensorRT engines and timings",
           "functions": "functions of packages that Core ML refuses whole"}
SYSTEM_CACHE = "com.apple.e5rt.e5bundlecache"       # of macOS: models specialised for the Neural Engine, by program
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
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(handler=list_command)
    clearing = commands.add_parser("clear", help="delete caches and leftovers")
    clearing.add_argument("--stale", action="store_true",
                          help="only what will not be used again: of another macOS or chip, of a package "
                               "that is gone or was replaced, damaged, unfinished, or unused for 90 days")
    clearing.add_argument("--dry-run", action="store_true", help="print what would be deleted, and delete nothing")
    clearing.set_defaults(handler=clear_command)
    prewarm.register(commands)


def list_command(args: argparse.Namespace) -> int:
    """Print the compiled models one by one, everything else by kind, and the totals."""
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
    models = [item for item in items if item.entry]
    if models:
        console.print(_models_table(models))
    table = plain_table(None, "kind", "items", "MB", "stale", numbers=(1, 2, 3))
    for kind in ("compiled models", *FOLDERS.values(), LEFTOVERS, "all"):
        chosen = [item for item in items if kind in (item.kind, "all")]
        table.add_row(kind, str(len(chosen)), _megabytes(chosen), str(sum(bool(item.stale) for item in chosen)))
    console.print(table)
    for item in items:
        if item.kind == LEFTOVERS:
            console.print(f"unfinished: {item.path}, {_megabytes([item])} MB")
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


def _models_table(models: list[CacheItem]) -> "Table":
    table = plain_table(None, "compiled model", "package", "chip", "macOS build", "MB", "last used", "stale",
                        numbers=(4,))
    for item in models:
        record = item.entry.record if item.entry else None
        cells = (record.model, record.package, record.chip, record.os_build) if record else (item.path.name, "", "", "")
        used = time.strftime("%Y-%m-%d", time.localtime(item.used))
        table.add_row(*cells, _megabytes([item]), used, item.stale)
    return table


def _megabytes(items: list[CacheItem]) -> str:
    return f"{sum(item.bytes for item in items) / 1e6:.1f}"
