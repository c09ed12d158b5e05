"""Compile and load all Core ML functions of a bundle, so that later speech need not wait for this work."""

import shlex
import time
from typing import TYPE_CHECKING

from rich.console import Console

from ane.commands.messages import counted, status_display
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.backends.coreml.runtime import CoreMLRuntime
    from ane.bundles.bundle import Bundle


def prewarm_command_line(bundle: str | None) -> str:
    """Return the command line with which the user compiles and loads a bundle. ``None`` means the default voice."""
    return f"ane cache prewarm{f' --bundle {shlex.quote(bundle)}' if bundle else ''}"


def prewarm(
    model: "Bundle", runtime: "CoreMLRuntime", console: Console, report: Console, dry_run: bool = False
) -> None:
    """Load each function of a bundle's packages once.

    If Core ML refuses a function, load the function on the compute units where `ane say` would run it instead.
    Functions that Core ML has loaded before load fast, so a second call continues quickly after an interruption.

    Args:
        console: Console for progress.
        report: Console for the summary.
        dry_run: Whether to print only the estimate.

    Raises:
        UserError: Core ML refuses every function, or the bundle is damaged.
    """
    from ane.backends.packaged.fallback import PlacementPolicy
    from ane.backends.packaged.functions import EngineRefusalError
    from ane.backends.packaged.selection import select_packages
    from ane.bundles.hashes import check_hashes

    packages = list(select_packages(model, "auto").values())
    functions = [(package, name) for package in packages for name in package.functions]
    size = sum(file.bytes for package in packages for file in package.files) / 1e9
    estimate = runtime.cache.load_estimate(
        len(functions), [model.path / package.path for package in packages], runtime.machine
    )
    report.print(
        f"{counted(len(packages), 'package')} ({size:.2f} GB, as much again when compiled) and "
        f"{counted(len(functions), 'function')}: {estimate}, or less if some were loaded before."
    )
    if dry_run:
        return
    started, refused, ready = time.monotonic(), [], 0
    units_of = {package.path: PlacementPolicy(package, runtime) for package in packages}
    with status_display(console, "loading") as show:
        for done, (package, name) in enumerate(functions):
            left = (time.monotonic() - started) / done * (len(functions) - done) if done else 0
            show(
                f"{done} of {len(functions)} functions{f', about {left / 60:.0f} minutes left' if done else ''}: "
                f"{package.network}, {name}"
            )
            check_hashes(model.path, package.files)
            units, instead = units_of[package.path], "once"
            while instead and name in units.by_function:
                try:
                    runtime.load(model.path / package.path, name, units.by_function[name])
                    ready, instead = ready + 1, ""
                except EngineRefusalError as error:
                    instead = units.refuse(error)
                    refused.append(
                        f"{str(error).partition('; ')[0]}. {instead or f'Running {package.network} on torch'} instead."
                    )
    for line in refused:
        report.print(line, soft_wrap=True)
    report.print(f"{ready} of {len(functions)} functions are ready, after {time.monotonic() - started:.0f} s.")
    if not ready:
        raise UserError("Core ML refuses every function of this bundle: use --backend torch")
