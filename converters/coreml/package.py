"""Writes a network as a Core ML package: builds its functions, compresses them, merges them with shared weights."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import nn

from ane.bundles import Model
from ane.bundles.hashes import record
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.bundles.weights import skeleton
from ane.system.checked import checked, read_record
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.version import version
from converters.coreml.graph import Style, ct, quiet
from converters.coreml.merge import merge
from converters.functions import GraphRequest, coreml_graphs, network_spec, scale_of, weights_sha256

ON_GPU = frozenset({"univnet"})     # long rows and a kernel per frame are slow on the Neural Engine
LAYOUT = "(batch, channels, 1, sequence)"


@dataclass(frozen=True)
class Compression:
    """A way to store weights: 8-bit linear by channel, 6- and 4-bit palettes by k-means.

    The gain depends on the chip: 4-bit palettes are streamed as stored from the M1 on; 8-bit weights are expanded to
    fp16 on an M1 and streamed from the M3 or M5 on (sources conflict; measure with ``ane bench``).
    """

    bits: int
    palette: bool


COMPRESSIONS = {"8bit": Compression(8, palette=False), "6bit": Compression(6, palette=True),
                "4bit": Compression(4, palette=True)}
PRECISIONS = ("fp16", "fp32", *COMPRESSIONS)


@checked
class CoreMLOptions:
    """One set of options, for packages of one precision.

    Attributes:
        precision: one of ``PRECISIONS``.
        lanes: column counts of the decoder's step functions.
        caches: kinds of kv-cache to build step functions for: "io", "state".
        buckets: lengths by kind of function, instead of the model's defaults (``converters.functions``).
    """

    precision: Literal["fp16", "fp32", "8bit", "6bit", "4bit"] = "fp16"
    lanes: tuple[Annotated[int, Field(ge=1)], ...] = (1, 16)
    caches: tuple[Literal["io", "state"], ...] = ("io", "state")
    buckets: dict[str, tuple[Annotated[int, Field(ge=1)], ...]] = field(default_factory=dict)

    def style(self, network: str) -> Style:
        return Style("fp32" if self.stored(network) == "fp32" else "fp16")

    def stored(self, network: str) -> str:
        """The precision of a network's package: some networks are always fp32, and only the largest are compressed."""
        spec = network_spec(network)
        if not spec.fp16_package:
            return "fp32"
        return self.precision if self.precision not in COMPRESSIONS or spec.compressed else "fp16"

    @classmethod
    def of(cls, package: PackageRecord) -> "CoreMLOptions":
        """The options that a package was made with. Raises UserError when its record does not state them."""
        stated = deepcopy(package.source.get("options"))
        # earlier versions also had another form of attention, and operations in float32 in fp16 graphs
        if not isinstance(stated, dict) or stated.pop("heads", "matmul") != "matmul" or stated.pop("wide", []) or (
                set(stated) != {item.name for item in fields(cls)}):
            raise UserError(f"{package.path}: bundle.json does not state the options it was made with: convert the "
                            "model again")
        return read_record(cls, stated, package.path, ": convert the model again")


def compressed(model: Any, compression: Compression) -> Any:
    """Compress the weights of a one-function MLModel, except those of 2048 values or fewer. Raises UserError when
    palettes need scikit-learn, which is not installed."""
    if compression.palette and find_spec("sklearn") is None:
        raise UserError(f"{compression.bits}-bit palettes are made with scikit-learn: pip install "
                        "'.[palettes]', or choose precision=8bit")
    optimize = ct.optimize.coreml
    with quiet():
        if compression.palette:
            config = optimize.OpPalettizerConfig(mode="kmeans", nbits=compression.bits)
            return optimize.palettize_weights(model, optimize.OptimizationConfig(global_config=config))
        # with a zero point for each channel, since trained weights are not centred: 1.4 dB more in the embedded decoder
        config = optimize.OpLinearQuantizerConfig(mode="linear", dtype=f"uint{compression.bits}")
        return optimize.linear_quantize_weights(model, optimize.OptimizationConfig(global_config=config))


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
    reference = load_reference(model, network)
    scale = scale_of(network, reference)
    graphs = [graph for graph in coreml_graphs(network, GraphRequest(reference, model, options, scale))
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
            "options": asdict(options),
            "created_by": f"tortoise-ane {version()}", "coremltools": ct.__version__}


def _make_readable(package: Path) -> None:
    """Set the umask's permissions; coremltools creates some files that only their owner can read."""
    umask = os.umask(0)
    os.umask(umask)
    for path in (package, *package.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
