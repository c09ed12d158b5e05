"""A whole model to a bundle with Core ML packages: resumable network by network, published whole or not at all."""

import dataclasses
import hashlib
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ane.errors import UserError
from ane.files import read_json, replacing
from ane.model import Model
from ane.model.bundle import Bundle, check_destination, write_bundle
from ane.model.packages import PackageRecord, read_section, section
from ane.model.weights import layout
from ane.version import version
from converters.buckets import GRAPHS
from converters.parity import measured
from converters.remaining import remaining
from converters.to_coreml import Options, seal, write_package

Progress = Callable[[str, str], None]       # network, what is done with it
PROGRESS_FILE = "progress.json"
HALF = 2                                    # bytes of a weight in fp16
FUNCTIONS = 12                              # of the package that has most; each is saved with weights of its own first


def convert(model: Model, destination: Path, options: Sequence[Options], networks: Sequence[str] | None = None,
            overwrite: bool = False, progress: Progress = lambda network, doing: None) -> Bundle:
    """Write ``model`` with Core ML packages as a bundle.

    What is made lies in ``<destination>.converting`` until all is made; a conversion that was interrupted goes on there
    with the network it was at, as long as model and options are the same.

    Args:
        options: one for each precision to be in the bundle; the first is what the runtime takes unless told otherwise.
        networks: what to convert (default: all that can be and that the model has).
        progress: called as work on a network goes on.

    Raises:
        UserError: the destination is taken, no room on the disk, a package below its parity bar, an unknown network.
    """
    if sys.platform == "win32":
        raise UserError("conversion runs on macOS and Linux: coremltools has no Windows build")
    chosen = _networks(model, networks)
    check_destination(destination, overwrite)
    work = destination.with_name(f"{destination.name}.converting")
    done = _begin(work, model, options, overwrite)
    _check_room(work, model, chosen)
    for option in options:
        for network in chosen:
            key = (network, option.stored(network))
            if any((package.network, package.precision) == key for package in done):
                continue
            done.append(_package(model, network, option, work, progress))
            _note(work, model, options, done)
    progress("bundle", "writing")
    bundle = write_bundle(model, destination, name=model.name if isinstance(model, Bundle) else destination.name,
                          packages=done, built=work, overwrite=overwrite, **_described(model))
    shutil.rmtree(work)
    return bundle


def _package(model: Model, network: str, options: Options, work: Path, progress: Progress) -> PackageRecord:
    package = write_package(model, network, options, work, lambda function: progress(network, f"building {function}"))
    functions = measured(model, package, work, lambda function: progress(network, f"measuring {function}"))
    return seal(work, package, functions, remaining(work / package.path), _described(model)["licence"])


def _networks(model: Model, wanted: Sequence[str] | None) -> list[str]:
    for network in wanted or ():
        if network not in GRAPHS:
            raise UserError(f"--stages {network}: no such network; there are {', '.join(GRAPHS)}")
        model.require(network)
    return [network for network in GRAPHS if network in (wanted or model.networks)]


def _described(model: Model) -> dict[str, Any]:
    """What a bundle passes on of itself."""
    if not isinstance(model, Bundle):
        return {"licence": "", "description": "", "source": {"checkpoints": str(model.path)}}
    manifest = model.manifest
    return {"licence": manifest.licence, "description": manifest.description, "source": manifest.source}


def _fingerprint(model: Model, options: Sequence[Options]) -> str:
    """Changes with anything that changes what a conversion makes."""
    stated = [model.identity, version(), [dataclasses.asdict(option) for option in options]]
    return hashlib.sha256(json.dumps(stated, default=sorted).encode()).hexdigest()


def _begin(work: Path, model: Model, options: Sequence[Options], overwrite: bool) -> list[PackageRecord]:
    """The packages that an earlier run left in ``work``; a run of something else is thrown away, if that is allowed."""
    noted = work / PROGRESS_FILE
    if noted.is_file():
        stated = read_json(noted)
        if stated.get("fingerprint") == _fingerprint(model, options):
            found = read_section(stated, str(noted))
            return [package for package in found if (work / package.path).is_dir()]
        if not overwrite:
            raise UserError(f"{work} holds a conversion of another model or with other options, not finished: finish "
                            "it with those, or add --force to begin anew")
    elif work.exists() and any(work.iterdir()):
        raise UserError(f"{work} is in the way and is no unfinished conversion: move it, or choose another -o")
    shutil.rmtree(work, ignore_errors=True)
    _note(work, model, options, [])
    return []


def _note(work: Path, model: Model, options: Sequence[Options], done: list[PackageRecord]) -> None:
    with replacing(work / PROGRESS_FILE) as path:
        path.write_text(json.dumps({"fingerprint": _fingerprint(model, options), "coreml": section(done)}, indent=1),
                        encoding="utf-8")


def _check_room(work: Path, model: Model, networks: Sequence[str]) -> None:
    """Refuse to begin without room for the packages, the functions of the largest before merging, and the weights."""
    sizes = [HALF * sum(math.prod(shape) for shape in layout(network, model.config(network)).shapes.values())
             for network in networks]
    for place, needed, advice in ((work.parent, 3 * sum(sizes) + FUNCTIONS * max(sizes), "choose another -o"),
                                  (Path(tempfile.gettempdir()), 2 * max(sizes), "set TMPDIR to another folder")):
        free = shutil.disk_usage(place).free
        if free < needed:
            raise UserError(f"converting needs about {needed / 1e9:.1f} GB at {place} and {free / 1e9:.1f} GB are "
                            f"free: make room, {advice}, or convert fewer --stages")
