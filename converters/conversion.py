"""Convert a model's networks to packages, and write a bundle with the model and the packages.

A package has one network for one engine. If a conversion was interrupted, the next call resumes at the unfinished
package, or at the unfinished function of a Core ML package. The bundle appears only when it is complete.
"""

import dataclasses
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from ane.bundles.bundle import Bundle
from ane.bundles.hashes import check_hashes
from ane.bundles.package_records import PackageRecord, read_section, section
from ane.bundles.precisions import PACKAGES
from ane.bundles.writing import check_destination, write_bundle
from ane.system.errors import UserError
from ane.system.files import link_or_copy, read_json, replacing
from converters.coreml.coreml_package import CoreMLTarget
from converters.function_table import chosen_networks, convertible_networks, models
from converters.progress import ConversionProgress, count_functions, weights_of

Progress = Callable[[str, str], None]  # takes the package's name and the activity
PROGRESS_FILE = "progress.json"
LOGGER = logging.getLogger("ane.conversion")
ROOT = Path(__file__).parents[1]  # the folder of the packages ``ane`` and ``converters``
SHARED_NETWORKS = "ane.models.vocoders"
# files and folders of ``converters`` whose content has no influence on a graph
NO_GRAPHS = frozenset(
    {"proof", "swift", "ggml", "conversion.py", "progress.py", "tortoise_probes.py", "whisper_probes.py"}
)


class ConversionTarget(Protocol):
    """A format of packages, such as Core ML.

    Each format has its own class of options. An object of that class describes the packages of one requested precision.
    The object has the attribute ``precision`` and the method ``stored(network)``, which returns the precision in which
    the package of that network is really stored.

    Attributes:
        name: A name in ``ane.bundles.package_records.FORMATS``.
        unmerged: Largest number of functions of one package that are on disk at the same time, each with its own copy
            of the weights.
    """

    name: str
    unmerged: int

    def check(self, options: Sequence[Any], model: Bundle) -> None:
        """Raise UserError if an option is invalid, or if this machine cannot convert."""

    def versions(self) -> tuple[str, ...]:
        """Return the versions of the libraries that write the packages."""

    def package(
        self, model: Bundle, network: str, options: Any, work: Path, progress: Callable[[str], None], licence: str
    ) -> PackageRecord:
        """Write a package, and measure how exactly it computes.

        Raises:
            UserError: The package is less exact than its threshold, or cannot be written.
        """


COREML_TARGET = CoreMLTarget()


def convert(
    model: Bundle,
    destination: Path,
    options: Sequence[Any],
    networks: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress = lambda network, activity: None,
    target: ConversionTarget = COREML_TARGET,
) -> Bundle:
    """Convert networks of ``model`` to packages, and write a bundle with the model and these packages.

    Packages that the model already has are copied to the new bundle, unless this call converts them again.

    ``convert`` collects the new packages in ``<destination>.converting``. If it is interrupted, the next call reuses
    the complete packages in this folder, and the complete functions of a Core ML package. This happens only if the
    model, the options and the code that builds the graphs have not changed.

    Args:
        model: The bundle to convert.
        destination: Directory of the new bundle.
        options: One object of options per precision. The runtime uses the first precision by default.
        networks: Networks to convert (default: all convertible networks of the model).
        overwrite: Whether to replace a bundle that exists at ``destination``.
        progress: Function that is called with a package's name and the current activity.
        target: Format of the packages.

    Raises:
        UserError: The destination exists, another process converts to it, the disk is full, a package is less exact
            than its threshold, or a network is unknown.
    """
    destination = Path(os.path.abspath(destination))
    chosen = chosen_networks(model, networks, target.name)
    target.check(options, model)
    check_destination(destination, overwrite)
    _check_disk_space(destination, model, chosen, options, target)
    with _locked(destination):
        work = destination.with_name(f"{destination.name}.converting")
        fingerprint = fingerprint_of(model, options, chosen, target)
        done = _resume(work, fingerprint, overwrite, target)
        finished, missing = set(map(_key, done)), dict[tuple[str, str, str], Any]()
        for option in options:
            for network in chosen:
                if (key := (target.name, network, option.stored(network))) not in finished:
                    missing.setdefault(key, option)  # two requested precisions may need the same package of a network
        if done:
            names = ", ".join(f"{package.network} in {package.precision}" for package in done)
            LOGGER.info("Kept from the interrupted conversion: %s.", names)
        counted = ConversionProgress(
            progress,
            [
                (
                    f"{network} in {precision}",
                    count_functions(target.name, model, network, option),
                    weights_of(model, network),
                )
                for (_, network, precision), option in missing.items()
            ],
            finished=len(done),
        )
        for index, ((_, network, _), option) in enumerate(missing.items()):
            done.append(
                target.package(model, network, option, work, partial(counted.report, index), model.manifest.licence)
            )
            _save_progress(work, fingerprint, done, target)
        progress("bundle", "writing")
        packages = done + _copy_other_packages(model, work, {_key(package) for package in done})
        bundle = write_bundle(model.contents(), destination, packages=packages, packages_root=work, overwrite=overwrite)
        shutil.rmtree(work)
    return bundle


def code_fingerprint(target: ConversionTarget = COREML_TARGET) -> str:
    """Return a hash of all code that determines the graphs: the converter, the PyTorch networks, and the libraries."""
    return graph_fingerprint(target.versions())


def graph_fingerprint(libraries: Sequence[str], root: Path = ROOT) -> str:
    """Return a hash of the libraries' versions and of the files that ``graph_sources`` lists.

    If the hash changes, a conversion does not reuse the packages of an earlier call.
    """
    digest = hashlib.sha256("\n".join(libraries).encode())
    for path in graph_sources(root):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def graph_sources(root: Path = ROOT) -> list[Path]:
    """List the files on which graphs depend: the PyTorch networks, and the modules of ``converters`` that build graphs.

    The list is sorted.
    """
    names = (SHARED_NETWORKS, *(model.networks for model in models().values()))
    modules = [root / name.replace(".", "/") for name in names]
    networks = {path for module in modules for path in (*module.glob("*.py"), *module.parent.glob(f"{module.name}.py"))}
    builders = {
        path
        for path in (root / "converters").rglob("*")
        if path.suffix in (".py", ".tsv") and not NO_GRAPHS.intersection(path.relative_to(root).parts)
    }
    return sorted(networks | builders)


@contextmanager
def _locked(destination: Path) -> Iterator[None]:
    """Hold a lock on a destination. Raises UserError if another process converts to the same destination."""
    lock = destination.with_name(f".{destination.name}.converting.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=0):
            yield
        lock.unlink(missing_ok=True)
    except Timeout as error:
        raise UserError(f"another process is converting to {destination}: wait for it, or choose another -o") from error
    except OSError as error:
        raise UserError(f"cannot write {lock.parent}: {error.strerror or error}: choose another -o") from error


def _key(package: PackageRecord) -> tuple[str, str, str]:
    return package.format, package.network, package.precision


def _copy_other_packages(model: Bundle, work: Path, converted: set[tuple[str, str, str]]) -> list[PackageRecord]:
    """Copy the model's existing packages, in every format, to ``work``. Packages in ``converted`` are not copied."""
    others = [package for package in (*model.packages, *model.onnx_packages) if _key(package) not in converted]
    for package in others:
        check_hashes(model.path, package.files)
        shutil.rmtree(work / package.path, ignore_errors=True)
        # the onnx library rejects weight files that are hard links
        copy = shutil.copyfile if package.format == "onnx" else link_or_copy
        shutil.copytree(model.path / package.path, work / package.path, copy_function=copy)
    return others


def fingerprint_of(model: Bundle, options: Sequence[Any], networks: Sequence[str], target: ConversionTarget) -> str:
    """Return a hash of the model, the options and the code. An unfinished conversion resumes if the hash is equal."""
    parts = [
        model.identity,
        target.name,
        code_fingerprint(target),
        networks,
        [dataclasses.asdict(option) for option in options],
    ]
    return hashlib.sha256(json.dumps(parts, default=sorted).encode()).hexdigest()


def _resume(work: Path, fingerprint: str, overwrite: bool, target: ConversionTarget) -> list[PackageRecord]:
    """Prepare the folder ``work``, and return the intact packages that an interrupted conversion left in it.

    Args:
        work: Folder in which the conversion collects its packages.
        fingerprint: Hash from ``fingerprint_of``.
        overwrite: Whether to delete what a conversion with another hash left in the folder.
        target: Format of the packages.

    Raises:
        UserError: The folder holds another unfinished conversion and ``overwrite`` is false, or it holds other files.
    """
    progress_file = work / PROGRESS_FILE
    if progress_file.is_file():
        progress = read_json(progress_file)
        if isinstance(progress, dict) and progress.get("fingerprint") == fingerprint:
            for unfinished in (*work.glob(".*"), *work.glob("packages/.*")):
                shutil.rmtree(unfinished, ignore_errors=True)
            packages = read_section(progress, str(progress_file), convertible_networks(target.name), target.name)
            intact = [package for package in packages if _is_intact(work, package)]
            for package in packages:
                if package not in intact:
                    shutil.rmtree(work / package.path, ignore_errors=True)
            return intact
        if not overwrite:
            raise UserError(
                f"{work} holds an unfinished conversion of another model, of other networks or with other "
                "options: finish it with the same command, or add overwrite=True to start over"
            )
    elif work.exists() and any(not entry.name.startswith(f".{PROGRESS_FILE}.") for entry in work.iterdir()):
        raise UserError(f"{work} exists and is not an unfinished conversion: move it, or choose another destination")
    shutil.rmtree(work, ignore_errors=True)
    _save_progress(work, fingerprint, [], target)
    return []


def _is_intact(work: Path, package: PackageRecord) -> bool:
    try:
        check_hashes(work, package.files)
    except UserError:
        return False
    return True


def _save_progress(work: Path, fingerprint: str, done: list[PackageRecord], target: ConversionTarget) -> None:
    with replacing(work / PROGRESS_FILE) as path:
        path.write_text(
            json.dumps({"fingerprint": fingerprint, target.name: section(done)}, indent=1), encoding="utf-8"
        )


def _check_disk_space(
    destination: Path, model: Bundle, networks: Sequence[str], options: Sequence[Any], target: ConversionTarget
) -> None:
    """Raise UserError if a disk has too little room for the packages or for temporary files.

    The temporary files are as large as the largest network's weights. Until the functions of the largest package are
    merged, the packages need extra room.
    """
    values = [weights_of(model, network) for network in networks]
    width = max(PACKAGES[target.name][option.precision].bytes for option in options)
    largest = width * max(values)
    parent = next(folder for folder in destination.absolute().parents if folder.is_dir())
    for folder, needed, advice in (
        (parent, (len(options) + 2) * width * sum(values) + target.unmerged * largest, "choose another destination"),
        (Path(tempfile.gettempdir()), 2 * largest, "set TMPDIR to another folder"),
    ):
        free = shutil.disk_usage(folder).free
        if free < needed:
            unit, name, digits = (1e9, "GB", 1) if needed >= 1e9 else (1e6, "MB", 0)
            raise UserError(
                f"converting needs about {needed / unit:.{digits}f} {name} at {folder} and "
                f"{free / unit:.{digits}f} {name} are free: delete something, {advice}, or convert fewer "
                "networks"
            )
