"""Writes a network as an ONNX package: a graph for each function, their weights in one file."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.backends.onnx.selection import ONNX_PRECISIONS, stored_precision
from ane.backends.torch.backend import DTYPES, TorchBackend
from ane.bundles import Model
from ane.bundles.hashes import record
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.version import version
from converters.functions import check_precision, convertible_networks, network_spec, onnx_graphs
from converters.onnx.graph import OPSET
from converters.onnx.precision import QUANTISED, quantise
from converters.onnx.weights import WeightFile
from converters.origin import weights_sha256
from converters.proof.parity import measure_parity

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class OnnxOptions:
    """Options of a conversion. ``precision``: one of ``ane.backends.onnx.selection.ONNX_PRECISIONS``."""

    precision: str = "fp32"

    def stored(self, network: str) -> str:
        return stored_precision(network_spec(network), self.precision)


class OnnxTarget:
    """``converters.conversion.ConversionTarget`` that makes ONNX packages."""

    name = "onnx"
    unmerged = 4

    @property
    def networks(self) -> tuple[str, ...]:
        return convertible_networks(self.name)

    def check(self, options: Sequence[OnnxOptions], model: Model) -> None:
        """Raise UserError when a library is not installed, or for an unknown precision."""
        require_libraries()
        for option in options:
            if option.precision not in ONNX_PRECISIONS:
                raise UserError(f"precision={option.precision}: ONNX packages are in {', '.join(ONNX_PRECISIONS)}")
            check_precision(model, option.precision, "quantised", QUANTISED)

    def versions(self) -> tuple[str, ...]:
        import onnx
        import onnxruntime
        import torch

        return torch.__version__, onnx.__version__, onnxruntime.__version__

    def package(self, model: Model, network: str, options: OnnxOptions, work: Path,
                progress: Callable[[str], None], licence: str) -> PackageRecord:
        package = write_package(model, network, options, work, lambda function: progress(f"building {function}"))
        functions = measure_parity(model, package, work, lambda function: progress(f"measuring {function}"))
        return replace(package, functions=functions)


def require_libraries() -> None:
    """Raise UserError when a library that writes ONNX packages is not installed."""
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        raise UserError(f"ONNX packages need {error.name}: pip install 'tortoise-ane[onnx]'") from error
    del onnx, onnxruntime, onnxscript


def write_package(model: Model, network: str, options: OnnxOptions, bundle: Path,
                  progress: Callable[[str], None] = lambda function: None) -> PackageRecord:
    """Write ``bundle``/packages/<network>-<precision>.onnx, atomically; each graph passes ONNX's checker.

    ``progress`` is called with each function's name. The record has no parity yet.

    Raises:
        UserError: the folder cannot be written, or the checker refuses a graph.
    """
    import onnx_ir as ir

    precision = options.stored(network)
    path = f"packages/{network}-{precision}.onnx"
    traced = "fp16" if precision == "fp16" else "fp32"
    functions = {}
    with replacing(bundle / path, directory=True) as package:
        weights = WeightFile(package)
        for name, graph in onnx_graphs(network, load_reference(model, network, traced), DTYPES[traced]).items():
            progress(name)
            full = bundle / f"packages/{network}-{traced}.onnx/{name}.onnx"
            # tracing is slow: reuse the full-precision graph if this conversion has traced it
            exported = ir.load(full) if precision in QUANTISED and full.is_file() else graph.export()
            if precision in QUANTISED:
                exported = quantise(exported, precision)
            weights.move(exported)
            exported.producer_name, exported.producer_version = "tortoise-ane", version()
            file = package / f"{name}.onnx"
            ir.save(exported, file)
            _check(file, f"{network}, function {name}, in {precision}", infer_shapes=precision not in QUANTISED)
            functions[name] = FunctionRecord(name, {}, {})
    files = sorted(file.relative_to(bundle).as_posix() for file in (bundle / path).iterdir())
    return PackageRecord(network, precision, path, [record(bundle, file) for file in files], functions,
                         source=_origin(model, network, options), format="onnx")


def _check(file: Path, what: str, infer_shapes: bool) -> None:
    """Raise UserError for a graph that ONNX's checker refuses. ``infer_shapes``: check shapes and types too."""
    import onnx

    try:
        onnx.checker.check_model(str(file), full_check=infer_shapes)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"{what}: ONNX's checker refuses the graph: {line[:300]}. It is not published: choose another "
                        "--precision, or other versions of torch and onnx") from error


def load_reference(model: Model, network: str, precision: str) -> "nn.Module":
    """The reference network in ``precision`` as the torch backend computes it, without the host's tables."""
    module = TorchBackend(model, "cpu", precision, keep=True, exact=True).network(network)
    stage = model.family.stages.decoder
    if stage is not None and network == stage.network:
        for table, key in stage.tables.items():
            if table not in stage.tied:
                delattr(module, key.partition(".")[0])
    return module


def _origin(model: Model, network: str, options: OnnxOptions) -> dict[str, Any]:
    """What a package was made from, with which options and versions."""
    torch, onnx, onnxruntime = OnnxTarget().versions()
    return {"model": model.name, "weights_sha256": weights_sha256(model, network), "opset": OPSET,
            "options": asdict(options), "created_by": f"tortoise-ane {version()}", "torch": torch, "onnx": onnx,
            "onnxruntime": onnxruntime}
