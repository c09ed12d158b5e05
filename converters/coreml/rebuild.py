"""Packages of a bundle made again from its own weights, as they were; the bundle changes whole or not at all."""

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
from converters.coreml.package import Options, seal, write_package
from converters.proof.accepted_warnings import remaining
from converters.proof.parity import measured


def rebuild(model: Bundle, damaged: Sequence[PackageRecord],
            progress: Callable[[str], None] = lambda doing: None) -> None:
    """Convert these packages anew and put them in the bundle's place of them.

    Raises:
        UserError: no room, a package below its parity bar, one of whose options nothing is known.
    """
    place = model.path.resolve()
    with _folder_beside(place) as folder:
        made = {package.path: _made(model, package, Path(folder), progress) for package in damaged}
        packages = [made.get(package.path, package) for package in model.packages]
        sections = model.manifest.sections | {"coreml": section(packages)}
        with replacing(place, directory=True) as new:
            shutil.copytree(place, new, copy_function=link_or_copy, dirs_exist_ok=True,
                            ignore=lambda where, names: [name for name in names if _inside(place, where, name) in made])
            for path in made:
                shutil.copytree(Path(folder) / path, new / path, copy_function=link_or_copy)
            write_manifest(new, replace(model.manifest, sections=sections))


def _made(model: Bundle, package: PackageRecord, folder: Path, progress: Callable[[str], None]) -> PackageRecord:
    """The package in ``folder``, measured and sealed."""
    def told(doing: str) -> Callable[[str], None]:
        return lambda function: progress(f"{package.network}: {doing} {function}")

    fresh = write_package(model, package.network, Options.of(package), folder, told("building"))
    functions = measured(model, fresh, folder, told("measuring"))
    sealed = seal(folder, fresh, functions, remaining(folder / fresh.path), model.manifest.licence)
    weights = model.manifest.networks[package.network].weights.sha256
    return replace(sealed, source={**sealed.source, WEIGHTS: weights})


def _folder_beside(place: Path) -> tempfile.TemporaryDirectory:
    """On the same file system, so that files can be linked."""
    try:
        return tempfile.TemporaryDirectory(prefix=f".{place.name[:40]}.", suffix=".rebuilding", dir=place.parent)
    except OSError as error:
        raise UserError(f"cannot write beside {place}: {error.strerror or error}") from error


def _inside(place: Path, where: str, name: str) -> str:
    return (Path(where) / name).relative_to(place).as_posix()
