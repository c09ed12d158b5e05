"""A whole model to a bundle with packages: resumable network by network, published whole or not at all."""

import dataclasses
import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from ane.bundles import Model
from ane.models.tortoise.networks import NETWORKS
from ane.bundles.bundle import Bundle, check_destination, write_bundle
from ane.bundles.hashes import check_hash
from ane.bundles.packages import PackageRecord, read_section, section
from ane.bundles.weights import layout
from ane.system.errors import UserError
from ane.system.files import link_or_copy, read_json, replacing
from converters.coreml.graph import ct
from converters.coreml.package import Options, seal, write_package
from converters.proof.accepted_warnings import STRICT, refused, remaining
from converters.proof.parity import measured
from converters.provenance import described
from converters.tortoise.buckets import GRAPHS, check_buckets

Progress = Callable[[str, str], None]       # network, what is done with it
PROGRESS_FILE = "progress.json"
WIDTH = {**dict.fromkeys(("fp32", "int8", "int4"), 4),          # bytes of a weight while converting
         **dict.fromkeys(("fp16", "8bit", "6bit", "4bit"), 2)}


class Choice(Protocol):
    """One set of options: of a precision."""

    precision: str

    def stored(self, network: str) -> str: ...


class Target(Protocol):
    """A format of packages.

    Attributes:
        name: of ``ane.bundles.packages.FORMATS``. networks: what can be converted, in order.
        functions: of the package that has most; each is saved with weights of its own first.
    """

    name: str
    networks: Collection[str]
    functions: int

    def check(self, options: Sequence[Any], model: Model) -> None:
        """Raise UserError for options that cannot be, and for a machine that cannot convert."""

    def versions(self) -> tuple[str, ...]:
        """Of the libraries that have a part in a package."""

    def package(self, model: Model, network: str, options: Any, work: Path, progress: Callable[[str], None],
                licence: str) -> PackageRecord:
        """Make and measure a package. Raises UserError when it falls below its bar or cannot be written."""


class CoreML:
    """Core ML packages, a ``Target``."""

    name, networks, functions = "coreml", GRAPHS, 16

    def check(self, options: Sequence[Options], model: Model) -> None:
        if sys.platform == "win32":
            raise UserError("conversion runs on macOS and Linux: coremltools has no Windows build")
        for option in options:
            check_buckets(option, model)

    def versions(self) -> tuple[str, ...]:
        return (ct.__version__,)

    def package(self, model: Model, network: str, options: Options, work: Path, progress: Callable[[str], None],
                licence: str) -> PackageRecord:
        package = write_package(model, network, options, work, lambda function: progress(f"building {function}"))
        broken = refused(work / package.path) if network in STRICT else []
        if broken:
            raise UserError(f"{package.path} holds what the Neural Engine refuses, {broken[0]}: it is not published")
        functions = measured(model, package, work, lambda function: progress(f"measuring {function}"))
        return seal(work, package, functions, remaining(work / package.path), licence)


CORE_ML = CoreML()


def convert(model: Model, destination: Path, options: Sequence[Choice], networks: Sequence[str] | None = None,
            overwrite: bool = False, progress: Progress = lambda network, doing: None,
            target: Target = CORE_ML) -> Bundle:
    """Write ``model`` with packages of the target's format as a bundle.

    What is made lies in ``<destination>.converting`` until all is made; a conversion that was interrupted goes on there
    with the network it was at, as long as model, options and this program are the same. Packages that the model has
    already, and that are not made anew, come along.

    Args:
        options: one for each precision to be in the bundle; the first is what the runtime takes unless told otherwise.
        networks: what to convert (default: all that can be and that the model has).
        progress: called as work on a network goes on.

    Raises:
        UserError: the destination is taken, another process converts to it, no room on the disk, a package below its
            parity bar, an unknown network.
    """
    destination = Path(os.path.abspath(destination))
    chosen = _networks(model, networks, target)
    target.check(options, model)
    check_destination(destination, overwrite)
    _check_room(destination, model, chosen, options, target)
    with _alone(destination):
        work = destination.with_name(f"{destination.name}.converting")
        fingerprint = _fingerprint(model, options, chosen, target)
        done = _begin(work, fingerprint, overwrite, target)
        licence = described(model)["licence"]
        for option in options:
            for network in chosen:
                if (target.name, network, option.stored(network)) in map(_key, done):
                    continue
                done.append(target.package(model, network, option, work, partial(progress, network), licence))
                _note(work, fingerprint, done, target)
        progress("bundle", "writing")
        packages = done + _brought(model, work, {_key(package) for package in done})
        bundle = write_bundle(model, destination, name=model.name if isinstance(model, Bundle) else destination.name,
                              packages=packages, built=work, overwrite=overwrite, **described(model))
        shutil.rmtree(work)
    return bundle


def edition(target: Target = CORE_ML) -> str:
    """A digest of what makes packages: this program's converters, and the versions of the libraries."""
    digest = hashlib.sha256("\n".join(target.versions()).encode())
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


@contextmanager
def _alone(destination: Path) -> Iterator[None]:
    """One process at a time works on a destination. Raises UserError when another does."""
    place = destination.with_name(f".{destination.name}.converting.lock")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place, timeout=0):
            yield
        place.unlink(missing_ok=True)
    except Timeout as error:
        raise UserError(f"another process is converting to {destination}: wait for it, or choose another -o") from error
    except OSError as error:
        raise UserError(f"cannot write {place.parent}: {error.strerror or error}; choose another -o") from error


def _key(package: PackageRecord) -> tuple[str, str, str]:
    return package.format, package.network, package.precision


def _brought(model: Model, work: Path, made: set[tuple[str, str, str]]) -> list[PackageRecord]:
    """The packages that a model has already, of any format, save those made anew, in ``work``."""
    brought = [package for those in ("packages", "onnx_packages") for package in getattr(model, those, [])
               if _key(package) not in made]
    for package in brought:
        for file in package.files:
            check_hash(model.path, file)
        shutil.rmtree(work / package.path, ignore_errors=True)
        # onnx refuses weights that have another name in the file system
        copied = shutil.copyfile if package.format == "onnx" else link_or_copy
        shutil.copytree(model.path / package.path, work / package.path, copy_function=copied)
    return brought


def _networks(model: Model, wanted: Sequence[str] | None, target: Target) -> list[str]:
    if wanted is not None and not wanted:
        raise UserError(f"--stages names no network; there are {', '.join(target.networks)}")
    for network in wanted or ():
        if network not in target.networks:
            raise UserError(f"--stages {network}: no such network; there are {', '.join(target.networks)}")
        model.require(network)
    return [network for network in target.networks if network in (wanted or model.networks)]


def _fingerprint(model: Model, options: Sequence[Choice], networks: Sequence[str], target: Target) -> str:
    """Changes with anything that changes what a conversion makes."""
    stated = [model.identity, target.name, edition(target), networks,
              [dataclasses.asdict(option) for option in options]]
    return hashlib.sha256(json.dumps(stated, default=sorted).encode()).hexdigest()


def _begin(work: Path, fingerprint: str, overwrite: bool, target: Target) -> list[PackageRecord]:
    """The packages that an earlier run left whole in ``work``; another run's are thrown away, if that is allowed."""
    noted = work / PROGRESS_FILE
    if noted.is_file():
        stated = read_json(noted)
        if isinstance(stated, dict) and stated.get("fingerprint") == fingerprint:
            for crumbs in (*work.glob(".*"), *work.glob("packages/.*")):     # what was being written
                shutil.rmtree(crumbs, ignore_errors=True)
            return [package for package in read_section(stated, str(noted), target.networks, target.name)
                    if _whole(work, package)]
        if not overwrite:
            raise UserError(f"{work} holds a conversion of another model, of other networks or with other options, not "
                            "finished: finish it with those, or add --force to begin anew")
    elif work.exists() and any(work.iterdir()):
        raise UserError(f"{work} is in the way and is no unfinished conversion: move it, or choose another -o")
    shutil.rmtree(work, ignore_errors=True)
    _note(work, fingerprint, [], target)
    return []


def _whole(work: Path, package: PackageRecord) -> bool:
    try:
        for file in package.files:
            check_hash(work, file)
    except UserError:
        return False
    return True


def _note(work: Path, fingerprint: str, done: list[PackageRecord], target: Target) -> None:
    with replacing(work / PROGRESS_FILE) as path:
        path.write_text(json.dumps({"fingerprint": fingerprint, target.name: section(done)}, indent=1),
                        encoding="utf-8")


def _check_room(destination: Path, model: Model, networks: Sequence[str], options: Sequence[Choice],
                target: Target) -> None:
    """Refuse to begin without room for the packages, the functions of the largest before merging, and the weights."""
    values = [sum(math.prod(shape) for shape in layout(NETWORKS[network], model.config(network)).shapes.values())
              for network in networks]
    width = max(WIDTH[option.precision] for option in options)
    largest = width * max(values)
    beside = next(place for place in destination.absolute().parents if place.is_dir())
    for place, needed, advice in (
            (beside, (len(options) + 2) * width * sum(values) + target.functions * largest, "choose another -o"),
            (Path(tempfile.gettempdir()), 2 * largest, "set TMPDIR to another folder")):
        free = shutil.disk_usage(place).free
        if free < needed:
            raise UserError(f"converting needs about {needed / 1e9:.1f} GB at {place} and {free / 1e9:.1f} GB are "
                            f"free: make room, {advice}, or convert fewer --stages")
