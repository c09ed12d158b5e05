"""Core ML packages of the embedded bundle: converted on the machine that first needs them, and cached."""

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
from ane.system.errors import UserError


def with_packages(model: Bundle, backend: str, console: Console) -> Bundle:
    """The model itself; or, for the embedded bundle on a backend that runs packages, its cached copy that has them.

    The copy is converted when it is first needed, which takes a minute or two. With the backend "auto" nothing is
    converted, because models of this size speak at once on the CPU. Every other model is converted by `ane convert`.

    Raises:
        UserError: the cache cannot be written, the backend is unknown, it is Core ML off macOS, or Core AI where that
            is not installed.
    """
    embedded = is_embedded(model.path)
    if not embedded or resolve(backend, model)[0] not in PACKAGED:
        return model
    if backend == "coreml":
        from ane.backends.coreml.tools import CoreMLTools

        CoreMLTools()  # raises off macOS, before minutes of converting
    if backend.startswith("coreai"):
        from ane.backends.coreai.runtime import require_core_ai

        require_core_ai()
    return cached_packages(model, console)


def cached_packages(model: Bundle, console: Console) -> Bundle:
    """The embedded bundle with packages, from the cache or converted. Raises UserError when it cannot be written."""
    from filelock import FileLock

    from converters.conversion import code_fingerprint, convert
    from converters.coreml.coreml_package import CoreMLOptions

    folder = paths.cache_dir() / "packages" / f"{model.identity[:16]}-{code_fingerprint()[:16]}"
    task = "converting the embedded voice to Core ML packages, once"
    try:
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
    except OSError as error:
        raise UserError(
            f"cannot write the cache {folder.parent}: {error.strerror or error}; set ANE_HOME to a folder "
            "that can be written"
        ) from error


def announce_first_loads(backend: Any, networks: Collection[str], bundle: str | None) -> None:
    """Log how long Core ML takes at most for the functions of networks of which it has loaded none on this machine yet:
    a text needs only a few, so that some may never be loaded.

    ``bundle``: the flag; None: the default voice.
    """
    runtime = getattr(backend, "runtime", None)
    if getattr(runtime, "name", "") != "coreml":
        return
    new, packages = 0, []
    for network in backend.packages.keys() & networks:
        with suppress(UserError):  # a damaged package is reported when it is loaded
            package = backend.model.path / backend.packages[network].path
            units = backend.units(network).by_function
            if runtime.cache.is_new(package, runtime.machine, units):
                new += len(units)
                packages.append(package)
    if new:
        LOGGER.info(
            "Core ML compiles and loads at most about %d function%s for the first time: %s. `%s` does it beforehand",
            new,
            "s" if new != 1 else "",
            runtime.cache.load_estimate(new, packages, runtime.machine),
            prewarm_command_line(bundle),
        )


def updated_since(backend: Any, networks: Collection[str], bundle: str | None) -> bool:
    """Whether macOS was updated since Core ML compiled the packages of these networks. If so, log how to do it again.

    Args:
        bundle: Value of the flag. ``None`` stands for the default voice.
    """
    runtime = getattr(backend, "runtime", None)
    if getattr(runtime, "name", "") != "coreml":
        return False
    packages = [backend.model.path / backend.packages[network].path for network in backend.packages.keys() & networks]
    stale = [package for package in packages if runtime.cache.is_of_other_build(package, runtime.machine)]
    if stale:
        functions = sum(len(package.functions) for package in backend.packages.values())
        LOGGER.warning(
            "macOS was updated since Core ML compiled this bundle. Speaking with torch until `%s` has "
            "compiled it again: %s",
            prewarm_command_line(bundle),
            runtime.cache.load_estimate(functions, packages, runtime.machine),
        )
    return bool(stale)


def open_undamaged(folder: Path) -> Bundle | None:
    """The bundle in ``folder`` if every file of it is as it was written; None when it is missing or damaged."""
    from ane.bundles.hashes import check_hashes

    try:
        bundle = Bundle(folder)
        check_hashes(folder, bundle.files)
    except UserError:
        return None
    return bundle
