"""Convert the embedded bundle to Core ML packages when a command first needs them, and announce slow first loads."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from ane.backends import PACKAGED, resolve
from ane.bundles import Bundle
from ane.bundles.opening import is_embedded
from ane.commands.messages import LOGGER, status_display
from ane.commands.prewarm import prewarm_command_line
from ane.system import paths
from ane.system.errors import UserError, system_errors


def with_packages(model: Bundle, backend: str, console: Console) -> Bundle:
    """Return a copy of the embedded bundle with packages, if ``backend`` needs packages. Return other models unchanged.

    The first call converts the bundle, which takes a minute or two, and caches the copy. With the backend "auto" the
    function converts nothing, because the CPU speaks the small embedded model without delay. For all other models, the
    user runs `ane convert`.

    Raises:
        UserError: The cache cannot be written, the backend is unknown, or Core ML or Core AI cannot run here.
    """
    embedded = is_embedded(model.path)
    if not embedded or resolve(backend, model)[0] not in PACKAGED:
        return model
    if backend == "coreml":
        from ane.backends.coreml.tools import CoreMLTools

        CoreMLTools()  # raises an error if this is not a Mac, before a conversion that takes minutes
    if backend.startswith("coreai"):
        from ane.backends.coreai.runtime import require_core_ai

        require_core_ai()
    return cached_packages(model, console)


def cached_packages(model: Bundle, console: Console) -> Bundle:
    """Return the copy of the embedded bundle that has packages. If the cache does not have this copy, convert it first.

    Raises:
        UserError: The cache cannot be written.
    """
    from filelock import FileLock

    from converters.conversion import code_fingerprint, convert
    from converters.coreml.coreml_package import CoreMLOptions

    folder = paths.cache_dir() / "packages" / f"{model.identity[:16]}-{code_fingerprint()[:16]}"
    task = "converting the embedded voice to Core ML packages, once"
    with system_errors(f"cannot write the cache {folder.parent}", paths.CACHE_ADVICE):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):  # another process may be converting
            bundle = open_undamaged(folder)
            if bundle is not None:
                return bundle
            LOGGER.info("%s: a minute or two", task)
            with status_display(console, task) as show:
                return convert(
                    model,
                    folder,
                    [CoreMLOptions()],
                    overwrite=True,
                    progress=lambda network, step: show(f"{task}: {network}, {step}"),
                )


def announce_first_loads(backend: Any, networks: Collection[str], bundle: str | None) -> None:
    """Log the longest time Core ML may need to load the networks that are new to this machine.

    Speaking a text needs only some functions of a network, so this time is an upper bound.

    Args:
        bundle: Value of ``--bundle``. ``None`` stands for the default voice.
    """
    runtime = getattr(backend, "runtime", None)
    if getattr(runtime, "name", "") != "coreml":
        return
    new, packages = 0, []
    for network in backend.packages.keys() & networks:
        with suppress(UserError):  # loading a damaged package later reports the error
            package = backend.model.path / backend.packages[network].path
            units = backend.units(network).by_function
            if runtime.cache.is_new(package, runtime.machine, units):
                new += len(units)
                packages.append(package)
    if new:
        LOGGER.info(
            "Core ML has up to %d function%s to compile and load for the first time: %s. To do this ahead of time, "
            "run `%s`",
            new,
            "s" if new != 1 else "",
            runtime.cache.load_estimate(new, packages, runtime.machine),
            prewarm_command_line(bundle),
        )


def updated_since(backend: Any, networks: Collection[str], bundle: str | None) -> bool:
    """Return whether macOS was updated since Core ML compiled these networks. If so, log the command to compile again.

    Args:
        bundle: Value of ``--bundle``. ``None`` stands for the default voice.
    """
    runtime = getattr(backend, "runtime", None)
    if getattr(runtime, "name", "") != "coreml":
        return False
    packages = [backend.model.path / backend.packages[network].path for network in backend.packages.keys() & networks]
    stale = [package for package in packages if runtime.cache.is_of_other_build(package, runtime.machine)]
    if stale:
        functions = sum(len(package.functions) for package in backend.packages.values())
        LOGGER.warning(
            "macOS was updated since Core ML compiled this bundle, so this runs on torch. To compile it again, run "
            "`%s`: %s",
            prewarm_command_line(bundle),
            runtime.cache.load_estimate(functions, packages, runtime.machine),
        )
    return bool(stale)


def open_undamaged(folder: Path) -> Bundle | None:
    """Open the bundle in ``folder`` and check all its files. Return ``None`` if the bundle is missing or damaged."""
    from ane.bundles.hashes import check_hashes

    try:
        bundle = Bundle(folder)
        check_hashes(folder, bundle.files)
    except UserError:
        return None
    return bundle
