"""A network of ``ane.models.tortoise.networks`` as an ONNX package: a graph for each function, their weights in one file."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.backends.onnx.selection import PRECISIONS, stored_precision
from ane.backends.torch.backend import DTYPES, TorchBackend
from ane.bundles import Model
from ane.bundles.hashes import record
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.version import version
from converters.onnx import precision as bits
from converters.onnx.export import OPSET, exported
from converters.onnx.weights import Weights
from converters.proof.onnx_parity import measured
from converters.provenance import weights_sha256
from converters.tortoise.onnx_graphs import GRAPHS, graphs_of

if TYPE_CHECKING:
    from torch import nn

TABLES = ("text_embedding", "mel_embedding", "text_pos_embedding", "mel_pos_embedding")     # the host looks them up


@dataclass(frozen=True)
class OnnxOptions:
    """What a conversion makes: ``precision`` is of ``ane.backends.onnx.selection.PRECISIONS``."""

    precision: str = "fp32"

    def stored(self, network: str) -> str:
        """The precision that a network really gets."""
        return stored_precision(network, self.precision)


class Onnx:
    """ONNX as a ``converters.conversion.Target``."""

    name = "onnx"
    networks: Collection[str] = GRAPHS
    functions = 3                               # at most, each with weights of its own while it is made

    def check(self, options: Sequence[OnnxOptions], model: Model) -> None:
        """Raises UserError when what makes ONNX packages is not installed, or for a precision that there is not."""
        require()
        for option in options:
            if option.precision not in PRECISIONS:
                raise UserError(f"--precision {option.precision}: of ONNX there are {', '.join(PRECISIONS)}")

    def versions(self) -> tuple[str, ...]:
        """Of what has a part in a package."""
        import onnx
        import onnxruntime
        import torch

        return torch.__version__, onnx.__version__, onnxruntime.__version__

    def package(self, model: Model, network: str, options: OnnxOptions, work: Path,
                progress: Callable[[str], None], licence: str) -> PackageRecord:
        package = write_package(model, network, options, work, lambda function: progress(f"building {function}"))
        functions = measured(model, package, work, lambda function: progress(f"measuring {function}"))
        return replace(package, functions=functions)


def require() -> None:
    """Raises UserError when what makes ONNX packages is not installed."""
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        raise UserError(f"--to onnx needs {error.name}: pip install 'tortoise-ane[onnx]'") from error
    del onnx, onnxruntime, onnxscript


def write_package(model: Model, network: str, options: OnnxOptions, bundle: Path,
                  progress: Callable[[str], None] = lambda function: None) -> PackageRecord:
    """Write ``bundle``/packages/<network>-<precision>.onnx, whole or not at all; each graph passes ONNX's checker.

    ``progress`` is called with each function's name. The record states no parity yet.

    Raises:
        UserError: the place cannot be written, or a graph does not pass.
    """
    import onnx_ir as ir

    precision = options.stored(network)
    path = f"packages/{network}-{precision}.onnx"
    traced = "fp16" if precision == "fp16" else "fp32"
    functions = {}
    with replacing(bundle / path, directory=True) as package:
        weights = Weights(package)
        for graph in graphs_of(network, twin(model, network, traced), DTYPES[traced]):
            progress(graph.name)
            full = bundle / f"packages/{network}-{traced}.onnx/{graph.name}.onnx"
            # tracing takes long: what this conversion has traced for the full precision serves again
            made = ir.load(full) if precision in bits.QUANTISED and full.is_file() else exported(graph)
            if precision in bits.QUANTISED:
                made = bits.quantised(made, precision)
            weights.take(made)
            made.producer_name, made.producer_version = "tortoise-ane", version()
            file = package / f"{graph.name}.onnx"
            ir.save(made, file)
            _check(file, f"{network}, function {graph.name}, in {precision}", whole=precision not in bits.QUANTISED)
            functions[graph.name] = FunctionRecord(graph.kind, {}, {})
    files = sorted(file.relative_to(bundle).as_posix() for file in (bundle / path).iterdir())
    return PackageRecord(network, precision, path, [record(bundle, file) for file in files], functions,
                         source=_origin(model, network, options), format="onnx")


def _check(file: Path, what: str, whole: bool) -> None:
    """Raise UserError for a graph that ONNX's checker refuses; ``whole``: shapes and types are inferred too."""
    import onnx

    try:
        onnx.checker.check_model(str(file), full_check=whole)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"{what}: ONNX's checker refuses the graph: {line[:300]}. It is not written: choose another "
                        "--precision, or other versions of torch and onnx") from error


def twin(model: Model, network: str, precision: str) -> "nn.Module":
    """The reference network in ``precision``, as torch computes in it, without the tables that the host looks up."""
    network = TorchBackend(model, "cpu", precision, keep=True, packed=False).network(network)
    for table in TABLES:
        if hasattr(network, table):
            delattr(network, table)
    return network


def _origin(model: Model, network: str, options: OnnxOptions) -> dict[str, Any]:
    """What a package was made from, and how."""
    torch, onnx, onnxruntime = Onnx().versions()
    return {"model": model.name, "weights_sha256": weights_sha256(model, network), "opset": OPSET,
            "options": asdict(options), "created_by": f"tortoise-ane {version()}", "torch": torch, "onnx": onnx,
            "onnxruntime": onnxruntime}
