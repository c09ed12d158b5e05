"""Rebuilds packages of a bundle from its own weights, with the same options; the bundle is replaced atomically."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ane.bundles.bundle import Bundle
from ane.bundles.manifest import write_manifest
from ane.bundles.packages import WEIGHTS, PackageRecord, section
from ane.system.errors import UserError
from ane.system.files import link_or_copy, replacing
from converters.coreml.options import CoreMLOptions
from converters.coreml.package import finish_package, write_package
from converters.proof.accepted_warnings import warnings_of
from converters.proof.parity import measure_parity


def rebuild(model: Bundle, damaged: Sequence[PackageRecord],
            progress: Callable[[str], None] = lambda action: None) -> None:
    """Convert these packages again and replace them in the bundle.

    Raises:
        UserError: the disk is full, a package is below its threshold, or its record states no options.
    """
    bundle = model.path.resolve()
    with _folder_beside(bundle) as folder:
        rebuilt = {package.path: _rebuild(model, package, Path(folder), progress) for package in damaged}
        packages = [rebuilt.get(package.path, package) for package in model.packages]
        sections = model.manifest.sections | {"coreml": section(packages)}
        with replacing(bundle, directory=True) as new:
            shutil.copytree(
                bundle, new, copy_function=link_or_copy, dirs_exist_ok=True, ignore=lambda parent, names:
                [name for name in names if (Path(parent) / name).relative_to(bundle).as_posix() in rebuilt])
            for path in rebuilt:
                shutil.copytree(Path(folder) / path, new / path, copy_function=link_or_copy)
            write_manifest(new, replace(model.manifest, sections=sections))


def _rebuild(model: Bundle, package: PackageRecord, folder: Path, progress: Callable[[str], None]) -> PackageRecord:
    def report(action: str) -> Callable[[str], None]:
        return lambda function: progress(f"{package.network}: {action} {function}")

    fresh = write_package(model, package.network, CoreMLOptions.of(package), folder, report("building"))
    functions = measure_parity(model, fresh, folder, report("measuring"))
    sealed = finish_package(folder, fresh, functions, warnings_of(folder / fresh.path), model.manifest.licence)
    weights = model.manifest.networks[package.network].weights.sha256
    return replace(sealed, source={**sealed.source, WEIGHTS: weights})


def _folder_beside(bundle: Path) -> tempfile.TemporaryDirectory:
    """A temporary folder on the same file system, so that files can be linked."""
    try:
        return tempfile.TemporaryDirectory(prefix=f".{bundle.name[:40]}.", suffix=".rebuilding", dir=bundle.parent)
    except OSError as error:
        raise UserError(f"cannot write to {bundle.parent}: {error.strerror or error}") from error
