"""`ane cache`: what is kept that can be made again, and deleting it."""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ane.system import paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from ane.backends.coreml.compiled import CompiledModelEntry, MacMachine
    from ane.backends.onnx.tensorrt import NvidiaMachine

# Folders of the cache that the program makes besides the compiled models, and what is in them.
FOLDERS = {"verified": "hashes of files that were checked", "voices": "latents of voices' clips",
           "packages": "Core ML packages of the embedded voice", "engines": "TensorRT's engines and timings"}
LEFT_OVER = ".partial"      # how ane.system.files calls what it is writing


@dataclass(frozen=True)
class Item:
    """Something that can be deleted; ``stale`` says why it is of no more use, or is ""."""

    path: Path
    bytes: int
    used: float
    stale: str
    entry: "CompiledModelEntry | None" = None        # for a compiled model


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add ``cache`` and its own subcommands; each sets ``handler``, which takes the arguments and returns a status."""
    parser = subparsers.add_parser("cache", help="list and delete what can be made again",
                                   description="List and delete what can be made again: compiled models, engines, "
                                               "latents of clips, hashes. Voices and bundles are kept elsewhere and "
                                               "not touched.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    listing = commands.add_parser("list", help="show what is kept, how large it is and where")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(handler=list_command)
    clearing = commands.add_parser("clear", help="delete it")
    clearing.add_argument("--stale", action="store_true",
                          help="only what is of no more use: of another macOS or chip, of a package that is gone or "
                               "was replaced, damaged, or unused for 90 days")
    clearing.add_argument("--dry-run", action="store_true", help="say what would be deleted, and delete nothing")
    clearing.set_defaults(handler=clear_command)


def list_command(args: argparse.Namespace) -> int:
    """Print the compiled models one by one, everything else by kind, and the totals."""
    items = collect()
    if args.json:
        print(json.dumps({"folder": str(paths.cache_dir()), "items": [_facts(item) for item in items],
                          "bytes": sum(item.bytes for item in items)}))
        return 0
    console = _console()
    console.print(f"{paths.cache_dir()}:{'' if items else ' nothing is kept'}")
    if not items:
        return 0
    models = [item for item in items if item.entry]
    if models:
        console.print(_models_table(models))
    table = Table("kind", "items", "MB", "stale")
    for column in table.columns[1:]:
        column.justify = "right"
    kinds = {"compiled models": models} | {what: [item for item in items if item.path.parent.name == name]
                                           for name, what in FOLDERS.items()}
    for what, those in (kinds | {"all": items}).items():
        table.add_row(what, str(len(those)), _megabytes(those), str(sum(bool(item.stale) for item in those)))
    console.print(table)
    return 0


def clear_command(args: argparse.Namespace) -> int:
    """Delete all items, or the stale ones; say how many and how large they were."""
    from ane.backends.coreml.compiled import CompiledCache, remove

    items = [item for item in collect() if item.stale or not args.stale]
    if args.dry_run:
        for item in items:
            reason = f" ({item.stale})" if item.stale else ""
            print(f"would delete {item.path}, {_megabytes([item])} MB{reason}")
    else:
        CompiledCache().remove([item.entry for item in items if item.entry], notice=_console().print)
        for item in items:
            if not item.entry:
                remove(item.path)
    done = "Would delete" if args.dry_run else "Deleted"
    what = f"{len(items)} item{'s' if len(items) != 1 else ''}, {_megabytes(items)} MB," if items else "nothing"
    _console().print(f"{done} {what} in {paths.cache_dir()}")
    return 0


def collect() -> list[Item]:
    """All that the program keeps in the cache's folder: compiled models, then files of the other folders."""
    from ane.backends.coreml.compiled import CompiledCache
    from ane.backends.onnx.tensorrt import this_machine

    now, machine, runs_engines = time.time(), known_machine(), cache(this_machine)
    items = [Item(entry.path, entry.bytes, entry.used, entry.stale(machine, now), entry)
             for entry in CompiledCache().entries()]
    return items + [item for folder in FOLDERS for item in _files(paths.cache_dir() / folder, now, runs_engines)]


def known_machine() -> "MacMachine | None":
    """The machine that compiled models are made for here; None off macOS, where none are made."""
    from ane.backends.coreml.compiled import this_machine

    return this_machine() if sys.platform == "darwin" else None


def _files(folder: Path, now: float, runs_engines: "Callable[[], NvidiaMachine]") -> list[Item]:
    """The program's own files in a folder; links, and what others put there, are left alone."""
    from ane.backends.coreml.compiled import UNUSED_DAYS, size_of
    from ane.backends.onnx.tensorrt import RECORD

    if not folder.is_dir() or folder.is_symlink():
        return []
    items = []
    for path in sorted(folder.iterdir()):
        left_over = path.is_dir() and path.name.startswith(".") and path.name.endswith(LEFT_OVER)
        own = (path.suffix in (".json", ".safetensors", ".lock", ".timing") if path.is_file() else
               (path / "bundle.json").is_file() or (path / RECORD).is_file() or path.name.endswith(".converting"))
        if path.is_symlink() or not (own or left_over):
            continue
        stat = path.stat()
        used = stat.st_mtime if left_over else max(stat.st_mtime, stat.st_atime)        # the system marks its use
        stale = "left by a process that was killed" if left_over and now - used > 3600 else ""
        if (path / RECORD).is_file():
            used, stale = (path / RECORD).stat().st_mtime, _stale_engine(path, runs_engines())
        if now - used > UNUSED_DAYS * 86400:
            stale = stale or f"unused for {UNUSED_DAYS} days"
        items.append(Item(path, size_of(path), used, stale))
    return items


def _stale_engine(folder: Path, machine: "NvidiaMachine") -> str:
    """Why no start will ask for a TensorRT engine again, or ""."""
    from ane.backends.onnx.tensorrt import TensorRtRecord

    record = TensorRtRecord.read(folder)
    return record.stale(machine) if record else "damaged"


def _facts(item: Item) -> dict:
    facts = {"path": str(item.path), "bytes": item.bytes, "used": item.used, "stale": item.stale}
    record = item.entry.record if item.entry else None
    return facts | ({"package": record.package, "chip": record.chip, "os_build": record.os_build} if record else {})


def _models_table(models: list[Item]) -> Table:
    table = Table("compiled model", "of the package", "chip", "macOS build", "MB", "last used", "stale")
    table.columns[4].justify = "right"
    for item in models:
        record = item.entry.record if item.entry else None
        told = (record.model, record.package, record.chip, record.os_build) if record else (item.path.name, "", "", "")
        table.add_row(*told, _megabytes([item]), time.strftime("%Y-%m-%d", time.localtime(item.used)), item.stale)
    return table


def _megabytes(items: list[Item]) -> str:
    return f"{sum(item.bytes for item in items) / 1e6:.1f}"


def _console() -> Console:
    """A console that takes paths literally."""
    return Console(markup=False, highlight=False, soft_wrap=True)
