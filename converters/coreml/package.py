"""A network of ``ane.models.tortoise.networks`` as a Core ML package: its functions built, compressed, merged with the weights once."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import nn

from ane.bundles import Model
from ane.models.tortoise.networks import NETWORKS
from ane.bundles.hashes import record
from ane.bundles.packages import ALWAYS_FP32, COMPRESSED, FunctionRecord, PackageRecord
from ane.bundles.weights import skeleton
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.version import version
from converters.coreml.compress import COMPRESSIONS, compressed
from converters.coreml.graph import Graph, Style, ct
from converters.coreml.merge import merge
from converters.provenance import weights_sha256
from converters.tortoise.buckets import graphs_of, scale_of

PRECISIONS = ("fp16", "fp32", *COMPRESSIONS)
GPU = frozenset({"univnet"})        # long rows and kernels by place: no work for the Neural Engine
LAYOUT = "(batch, channels, 1, sequence)"


@dataclass(frozen=True)
class Options:
    """What a conversion makes.

    Attributes:
        precision: of ``PRECISIONS``.
        heads, wide: see ``Style``.
        lanes: column counts of the decoder's step functions.
        caches: kinds of kv-cache to build steps for: "io", "state".
        buckets: lengths by kind, in place of those that suit the model (``converters.tortoise.buckets``).
    """

    precision: str = "fp16"
    heads: str = "matmul"
    wide: frozenset[str] = frozenset()
    lanes: tuple[int, ...] = (1, 8, 16, 32)
    caches: tuple[str, ...] = ("io", "state")
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def style(self, network: str) -> Style:
        return Style("fp32" if self.stored(network) == "fp32" else "fp16", self.wide, self.heads)

    def stored(self, network: str) -> str:
        """The precision a network really gets: UnivNet is always fp32, what is small or heard is not compressed."""
        if network in ALWAYS_FP32:
            return "fp32"
        return self.precision if self.precision not in COMPRESSIONS or network in COMPRESSED else "fp16"


    @classmethod
    def of(cls, package: PackageRecord) -> "Options":
        """Those that a package was made with.

        Raises:
            UserError: its record does not state them.
        """
        stated = package.source.get("options")
        if not isinstance(stated, dict) or set(stated) != {item.name for item in fields(cls)}:
            raise UserError(f"{package.path}: bundle.json does not say with which options it was made: convert the "
                            "model again")
        return cls(stated["precision"], stated["heads"], frozenset(stated["wide"]), tuple(stated["lanes"]),
                   tuple(stated["caches"]), {kind: tuple(sizes) for kind, sizes in stated["buckets"].items()})


def load_twin(model: Model, network: str) -> nn.Module:
    """The reference network with the model's weights as they are stored, memory-mapped."""
    twin = skeleton(NETWORKS[network], model.config(network))
    twin.load_state_dict(model.tensors(network), assign=True)
    return twin.eval().requires_grad_(False)


def write_package(model: Model, network: str, options: Options, bundle: Path,
                  progress: Callable[[str], None] = lambda function: None) -> PackageRecord:
    """Write ``bundle``/packages/<network>-<precision>.mlpackage, whole or not at all.

    Each function is built, compressed and saved alone; then all are merged into one package, which holds what weights
    they share once. ``progress`` is called with each function's name, then with "merging". The record states no files
    and no parity yet: ``seal`` does, when they are known.

    Raises:
        UserError: the place cannot be written, the disk is full.
    """
    stored = options.stored(network)
    path = f"packages/{network}-{stored}.mlpackage"
    twin = load_twin(model, network)
    scale = scale_of(network, twin)
    graphs = graphs_of(network, twin, model, options, scale)
    with replacing(bundle / path, directory=True) as package, \
            tempfile.TemporaryDirectory(prefix=".functions.", dir=bundle) as parts:
        built = {graph.name: Path(parts) / f"{graph.name}.mlpackage" for graph in graphs}
        for graph in graphs:
            progress(graph.name)
            with writing(bundle):
                _built(graph, options.style(network), stored).save(str(built[graph.name]))
        progress("merging")
        package.rmdir()
        with writing(bundle):
            merge(built, package)
        _open_to_readers(package)
    functions = {graph.name: FunctionRecord(graph.kind, dict(graph.bucket), {}) for graph in graphs}
    return PackageRecord(network, stored, path, [], functions, scale,
                         "CPU_AND_GPU" if network in GPU else "CPU_AND_NE", _origin(model, network, options))


@contextmanager
def writing(bundle: Path) -> Iterator[None]:
    """Tell in a line that a package cannot be written; coremltools writes one to the temporary folder first.

    Raises:
        UserError: no room, no permission.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write a package below {bundle} or in {tempfile.gettempdir()}: "
                        f"{error.strerror or error}") from error
    except RuntimeError as error:
        if "FileWriter" not in str(error):      # what coremltools' native library says when it cannot write
            raise
        raise UserError(f"cannot write a package below {bundle} or in {tempfile.gettempdir()}: is the disk full? Make "
                        "room, or set TMPDIR to a folder with more") from error


def seal(bundle: Path, package: PackageRecord, functions: dict[str, FunctionRecord], warnings: list[dict[str, Any]],
         licence: str) -> PackageRecord:
    """Write what was measured into the package's own metadata, and give the record with it and the files' hashes."""
    path = bundle / package.path
    model = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    spec = ct.proto.Model_pb2.Model()
    spec.ParseFromString(model.read_bytes())
    metadata = spec.description.metadata
    metadata.shortDescription = f"Tortoise, {package.network}, {package.precision}"
    metadata.license = licence
    metadata.author = package.source["created_by"]
    for key, value in (("layout", LAYOUT), ("source", package.source), ("scale", package.scale),
                       ("functions", {name: asdict(function) for name, function in functions.items()})):
        metadata.userDefined[key] = value if isinstance(value, str) else json.dumps(value)
    with replacing(model) as temporary:
        temporary.write_bytes(spec.SerializeToString())
    files = sorted(file.relative_to(bundle).as_posix() for file in path.rglob("*") if file.is_file())
    return PackageRecord(package.network, package.precision, package.path, [record(bundle, file) for file in files],
                         functions, package.scale, package.units, package.source, warnings)


def _built(graph: Graph, style: Style, stored: str) -> Any:
    model = graph.build(style)
    return compressed(model, COMPRESSIONS[stored]) if stored in COMPRESSIONS else model


def _origin(model: Model, network: str, options: Options) -> dict[str, Any]:
    """What a package was made from, and how."""
    return {"model": model.name, "weights_sha256": weights_sha256(model, network), "layout": LAYOUT,
            "options": asdict(options) | {"wide": sorted(options.wide)},
            "created_by": f"tortoise-ane {version()}", "coremltools": ct.__version__}


def _open_to_readers(package: Path) -> None:
    """Give all files the permissions of any new file; coremltools makes some that only their owner reads."""
    umask = os.umask(0)
    os.umask(umask)
    for path in (package, *package.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
