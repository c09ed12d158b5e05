"""Convert a network to a Core ML package: build its functions, compress and merge them, and check the result.

The check has two parts. ``converters.proof.lint`` looks for operations that the Neural Engine rejects or runs slowly.
``converters.proof.parity`` measures how much the outputs differ from the PyTorch network's outputs.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from ane.backends.mil.package import Package
from ane.bundles import Bundle
from ane.bundles.hashes import record
from ane.bundles.package_records import FunctionRecord, PackageRecord
from ane.bundles.precisions import CORE_ML
from ane.bundles.weights import skeleton
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.version import version
from converters.coreml.coreml_options import CoreMLOptions, check_options
from converters.coreml.graph import ct, quiet
from converters.coreml.merge import merge, merged_functions
from converters.descriptions import describe, notes
from converters.function_table import check_precision, coreml_graphs, scale_of, weights_sha256
from converters.proof.lint import REFUSED, STRICT, lint
from converters.proof.parity import measure_parity

ON_GPU = frozenset({"univnet"})  # UnivNet's long rows, and its separate kernel for each frame, slow the Neural Engine
LAYOUT = "(batch, channels, 1, sequence)"


def replace_by_compressed(model: Any, bits: int) -> None:
    """Compress the weights of a package with one function, except weights with at most 2048 values.

    Args:
        model: The package as coremltools' MLModel, which is not up to date afterwards.
        bits: Bits per weight.

    Raises:
        UserError: ``bits`` is less than 8, and scikit-learn, which makes such palettes, is not installed.
    """
    palette = bits < 8
    if palette and find_spec("sklearn") is None:
        raise UserError(
            f"{bits}-bit palettes are made with scikit-learn: pip install '.[palettes]', or choose precision=8bit"
        )
    optimize = ct.optimize.coreml
    with quiet():
        if palette:
            config = optimize.OpPalettizerConfig(mode="kmeans", nbits=bits)
            small = optimize.palettize_weights(model, optimize.OptimizationConfig(global_config=config))
        else:
            # uint8 has a zero point for each channel, because the mean of trained weights is not 0. This gains 1.4 dB
            # in the decoder of `demo`
            config = optimize.OpLinearQuantizerConfig(mode="linear", dtype="uint8")
            small = optimize.linear_quantize_weights(model, optimize.OptimizationConfig(global_config=config))
    shutil.rmtree(model.package_path)
    shutil.move(small.package_path, model.package_path)  # otherwise coremltools keeps it until the process ends


def load_reference(model: Bundle, network: str) -> nn.Module:
    """Load the PyTorch network with the model's weights in their stored precision. The weights are memory-mapped."""
    module = skeleton(model.family.networks[network], model.config(network))
    module.load_state_dict(model.tensors(network), assign=True)
    return module.eval().requires_grad_(False)


def write_package(
    model: Bundle,
    network: str,
    options: CoreMLOptions,
    bundle: Path,
    progress: Callable[[str], None] = lambda function: None,
    functions: Collection[str] | None = None,
    resume: bool = False,
    keeping: Callable[[str], None] = lambda function: None,
) -> PackageRecord:
    """Write the package ``bundle``/packages/<network>-<precision>.mlpackage. The folder appears when it is complete.

    Each function is first built, compressed and saved as a separate package. This package is then added to the final
    package, which stores weights that several functions share only once.

    Args:
        model: The model.
        network: Name of the network.
        options: Options of the package.
        bundle: Folder of the bundle, in which the package is written.
        progress: Function that is called with the name of each function before the function is built.
        functions: Names of the functions to write. ``None`` means all functions.
        resume: Whether to keep the functions that an interrupted call with the same arguments has written.
        keeping: Function that is called with the name of each function that is kept.

    Returns:
        The record of the package. It has no hashes of files and no measurements. ``finish_package`` adds them.

    Raises:
        UserError: The folder cannot be written, or the disk is full.
    """
    stored = options.stored(network)
    path = f"packages/{network}-{stored}.mlpackage"
    reference = load_reference(model, network)
    scale = scale_of(network, reference)
    graphs = [
        graph
        for graph in coreml_graphs(network, options.request(reference, model, scale))
        if functions is None or graph.name in functions
    ]
    package, unfinished = bundle / path, (bundle / path).with_suffix(".unfinished")
    if not resume:
        shutil.rmtree(unfinished, ignore_errors=True)
    elif package.exists():  # the interrupted call wrote the whole package, but did not measure it
        package.rename(unfinished)
    done = merged_functions(unfinished)
    for name in done:
        keeping(name)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".functions.", dir=bundle) as folder:

        def saved() -> Iterator[tuple[str, Path]]:
            for graph in graphs[len(done) :]:
                progress(graph.name)
                part = Path(folder) / f"{graph.name}.mlpackage"
                whole = graph.build(options.style(network), part)
                if bits := CORE_ML[stored].bits:
                    replace_by_compressed(whole, bits)
                del whole
                yield graph.name, part
                shutil.rmtree(part)

        with writing(bundle):
            merge(saved(), unfinished)
        _make_readable(unfinished)
    shutil.rmtree(package, ignore_errors=True)
    unfinished.rename(package)
    records = {graph.name: FunctionRecord(graph.kind, dict(graph.bucket), {}) for graph in graphs}
    return PackageRecord(
        network,
        stored,
        path,
        [],
        records,
        scale,
        "CPU_AND_GPU" if network in ON_GPU else "CPU_AND_NE",
        _origin(model, network, options),
    )


@contextmanager
def writing(bundle: Path) -> Iterator[None]:
    """Within the ``with`` block, raise UserError if a package cannot be written, such as when the disk is full.

    The message also names the temporary folder, because coremltools writes there first.
    """
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write a package below {bundle} or in {tempfile.gettempdir()}: {error.strerror or error}"
        ) from error
    except RuntimeError as error:
        if "FileWriter" not in str(error):  # coremltools' native library raises this when it cannot write
            raise
        raise UserError(
            f"cannot write a package below {bundle} or in {tempfile.gettempdir()}: is the disk full? Free "
            "space, or set TMPDIR to another folder"
        ) from error


def finish_package(
    bundle: Path,
    package: PackageRecord,
    functions: dict[str, FunctionRecord],
    warnings: list[dict[str, Any]],
    licence: str,
) -> PackageRecord:
    """Write measurements and descriptions into the package's metadata, and complete the package's record.

    Args:
        bundle: Folder of the bundle.
        package: Record from ``write_package``.
        functions: Records of the functions with their measurements, by name.
        warnings: Broken rules of lint.
        licence: Licence of the model.

    Returns:
        The record with the measurements, the warnings and the hashes of the package's files.
    """
    path = bundle / package.path
    model = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    spec = ct.proto.Model_pb2.Model()
    spec.ParseFromString(model.read_bytes())
    metadata = spec.description.metadata
    metadata.shortDescription = f"{package.source['family']}, {package.network}, {package.precision}"
    metadata.license, metadata.versionString = licence, version()
    metadata.author = package.source["created_by"]
    kinds = dict.fromkeys(function.kind for function in functions.values())
    for key, value in {
        "layout": LAYOUT,
        "source": package.source,
        "scale": package.scale,
        "functions": {name: asdict(function) for name, function in functions.items()},
        **notes("coreml", package.network, kinds),
    }.items():
        metadata.userDefined[key] = value if isinstance(value, str) else json.dumps(value)
    for function in spec.description.functions:
        for value in (*function.input, *function.output, *function.state):
            value.shortDescription = describe("coreml", functions[function.name].kind, value.name)
    with replacing(model) as temporary:
        temporary.write_bytes(spec.SerializeToString())
    files = sorted(file.relative_to(bundle).as_posix() for file in path.rglob("*") if file.is_file())
    return replace(package, files=[record(bundle, file) for file in files], functions=functions, warnings=warnings)


def _origin(model: Bundle, network: str, options: CoreMLOptions) -> dict[str, Any]:
    return {
        "model": model.name,
        "family": model.family.title,
        "weights_sha256": weights_sha256(model, network),
        "layout": LAYOUT,
        "options": asdict(options),
        "created_by": f"tortoise-ane {version()}",
        "coremltools": ct.__version__,
    }


def _make_readable(package: Path) -> None:
    """Give all files the permissions that the umask allows, because coremltools lets only the owner read some files."""
    umask = os.umask(0)
    os.umask(umask)
    for path in (package, *package.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)


class CoreMLTarget:
    """A ``converters.conversion.ConversionTarget`` that makes .mlpackage folders."""

    name = "coreml"
    unmerged = 1

    def check(self, options: Sequence[CoreMLOptions], model: Bundle) -> None:
        for option in options:
            check_precision(model, option.precision, CORE_ML[option.precision])
            check_options(option, model)

    def versions(self) -> tuple[str, ...]:
        return (ct.__version__,)

    def package(
        self,
        model: Bundle,
        network: str,
        options: CoreMLOptions,
        work: Path,
        progress: Callable[[str], None],
        licence: str,
    ) -> PackageRecord:
        package = write_package(
            model,
            network,
            options,
            work,
            lambda function: progress(f"building {function}"),
            resume=True,
            keeping=lambda function: progress(f"keeping {function}"),
        )
        try:
            broken = lint(Package(work / package.path))
            if network in STRICT and broken and broken[0].rule.severity == REFUSED:
                raise UserError(
                    f"{package.path} contains an operation that the Neural Engine rejects, {broken[0].rule.id}: "
                    f"{broken[0].example}. The package is not published"
                )
            functions = measure_parity(model, package, work, lambda function: progress(f"measuring {function}"))
        except UserError:
            shutil.rmtree(work / package.path)  # the next run must not resume from weights that may be damaged
            raise
        return finish_package(work, package, functions, [rule.record() for rule in broken], licence)
