"""Writes a network as a Core ML package: builds its functions, compresses them, merges them with shared weights."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from ane.bundles import Model
from ane.bundles.hashes import record
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.bundles.weights import skeleton
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.version import version
from converters.coreml.compress import COMPRESSIONS, compressed
from converters.coreml.graph import ct
from converters.coreml.merge import merge
from converters.coreml.options import CoreMLOptions
from converters.models import graph_builder
from converters.provenance import weights_sha256

ON_GPU = frozenset({"univnet"})     # long rows and a kernel per frame are slow on the Neural Engine
LAYOUT = "(batch, channels, 1, sequence)"


def load_reference(model: Model, network: str) -> nn.Module:
    """The reference network with the model's weights as stored, memory-mapped."""
    module = skeleton(model.family.networks[network], model.config(network))
    module.load_state_dict(model.tensors(network), assign=True)
    return module.eval().requires_grad_(False)


def write_package(model: Model, network: str, options: CoreMLOptions, bundle: Path,
                  progress: Callable[[str], None] = lambda function: None,
                  functions: Collection[str] | None = None) -> PackageRecord:
    """Write ``bundle``/packages/<network>-<precision>.mlpackage, atomically; ``functions``: only these.

    Each function is built, compressed and saved alone, then added to the package, which stores shared weights once.
    ``progress`` is called with each function's name. The record has no files and no parity yet; ``finish_package``
    adds them.

    Raises:
        UserError: the folder cannot be written, the disk is full.
    """
    stored = options.stored(network)
    path = f"packages/{network}-{stored}.mlpackage"
    builder, reference = graph_builder("coreml", network), load_reference(model, network)
    scale = builder.scale_of(network, reference)
    graphs = [graph for graph in builder.graphs_of(network, reference, model, options, scale)
              if functions is None or graph.name in functions]
    with replacing(bundle / path, directory=True) as package, \
            tempfile.TemporaryDirectory(prefix=".functions.", dir=bundle) as folder:
        def saved() -> Iterator[tuple[str, Path]]:
            for graph in graphs:
                progress(graph.name)
                made = graph.build(options.style(network))
                made = compressed(made, COMPRESSIONS[stored]) if stored in COMPRESSIONS else made
                part = Path(folder) / f"{graph.name}.mlpackage"
                made.save(str(part))
                del made
                yield graph.name, part
                shutil.rmtree(part)

        package.rmdir()
        with writing(bundle):
            merge(saved(), package)
        _make_readable(package)
    records = {graph.name: FunctionRecord(graph.kind, dict(graph.bucket), {}) for graph in graphs}
    return PackageRecord(network, stored, path, [], records, scale,
                         "CPU_AND_GPU" if network in ON_GPU else "CPU_AND_NE", _origin(model, network, options))


@contextmanager
def writing(bundle: Path) -> Iterator[None]:
    """Convert errors of writing a package to UserError: the disk is full, permission is missing.

    coremltools writes to the temporary folder first.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write a package below {bundle} or in {tempfile.gettempdir()}: "
                        f"{error.strerror or error}") from error
    except RuntimeError as error:
        if "FileWriter" not in str(error):      # coremltools' native library raises this when it cannot write
            raise
        raise UserError(f"cannot write a package below {bundle} or in {tempfile.gettempdir()}: is the disk full? Free "
                        "space, or set TMPDIR to another folder") from error


def finish_package(bundle: Path, package: PackageRecord, functions: dict[str, FunctionRecord],
                   warnings: list[dict[str, Any]], licence: str) -> PackageRecord:
    """Write the measurements into the package's metadata; return the record with them and the files' hashes."""
    path = bundle / package.path
    model = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    spec = ct.proto.Model_pb2.Model()
    spec.ParseFromString(model.read_bytes())
    metadata = spec.description.metadata
    metadata.shortDescription = f"{package.source['family']}, {package.network}, {package.precision}"
    metadata.license = licence
    metadata.author = package.source["created_by"]
    for key, value in (("layout", LAYOUT), ("source", package.source), ("scale", package.scale),
                       ("functions", {name: asdict(function) for name, function in functions.items()})):
        metadata.userDefined[key] = value if isinstance(value, str) else json.dumps(value)
    with replacing(model) as temporary:
        temporary.write_bytes(spec.SerializeToString())
    files = sorted(file.relative_to(bundle).as_posix() for file in path.rglob("*") if file.is_file())
    return PackageRecord(package.network, package.precision, package.path, [record(bundle, file) for file in files],
                         functions, package.scale, package.compute_units, package.source, warnings)


def _origin(model: Model, network: str, options: CoreMLOptions) -> dict[str, Any]:
    return {"model": model.name, "family": model.family.title, "weights_sha256": weights_sha256(model, network),
            "layout": LAYOUT,
            "options": asdict(options) | {"wide": sorted(options.wide)},
            "created_by": f"tortoise-ane {version()}", "coremltools": ct.__version__}


def _make_readable(package: Path) -> None:
    """Set the umask's permissions; coremltools creates some files that only their owner can read."""
    umask = os.umask(0)
    os.umask(umask)
    for path in (package, *package.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
