"""`ane cache prewarm`: compile and load every Core ML function of a bundle once, before speech needs it."""

import argparse
import time

from ane.commands.messages import message_console, report_console
from ane.commands.packages import with_packages
from ane.commands.progress import status_display
from ane.system.errors import UserError

SECONDS_A_FUNCTION = 10.0       # an estimate, until functions were loaded on this Mac: nothing was measured on one


def register(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("prewarm", help="compile and load all Core ML functions of a bundle once (on a Mac)",
                                 description="Compile the Core ML packages of a bundle and load each function once, "
                                             "as its first use would: minutes, once for each version of macOS. "
                                             "Interrupted, the same command goes on where it was.")
    parser.add_argument("--bundle", metavar="NAME|PATH", help="bundle with packages (default: the embedded demo)")
    parser.add_argument("--dry-run", action="store_true", help="print what it would take, and load nothing")
    parser.set_defaults(handler=prewarm_command)


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
