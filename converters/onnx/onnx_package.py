"""Write a network as an ONNX package: one graph per function, and one file that has every weight once.

The precisions are:

- ``int8`` stores the weights of the decoder's matrix products in 8 bits, with one scale per column. At run time, the
  other factor of a product is rounded to 8 bits with a single scale (dynamic quantisation). Whisper's networks have one
  scale per 32 numbers instead, because their largest values would leave few of the 8 bits to all other values. This
  raises the SNR of the encoder of Whisper base from 14.8 dB to 30.7 dB.
- ``int4`` stores these weights in 4 bits, with one scale per 32 weights. Nothing else is rounded.
- ``fp16``: the networks are traced in fp16. Norms and the residual stream stay in float32, as in the torch backend.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.backends.onnx.providers import onnxruntime_module
from ane.backends.torch.backend import DTYPES, TorchBackend
from ane.bundles import Bundle
from ane.bundles.hashes import record
from ane.bundles.package_records import FunctionRecord, PackageRecord
from ane.bundles.precisions import ONNX, stored_precision
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.reports import switch_off_reports
from ane.system.version import version
from converters.coreml.graph import quiet
from converters.descriptions import describe, notes
from converters.function_table import check_precision, network_spec, onnx_graphs, weights_sha256
from converters.onnx.graph import OPSET
from converters.proof.parity import measure_parity

if TYPE_CHECKING:
    import onnx_ir
    from torch import nn

WEIGHTS_FILE = "weights.bin"
ALIGNMENT = 4096  # ONNX Runtime can memory-map a tensor only if the tensor begins at a page boundary
MIN_BYTES = 1024  # smaller tensors stay in the graph
BLOCK = 32  # number of weights that share a scale, in ``BLOCKWISE`` networks and in all weights with fewer than 8 bits
QUANTISED = ("MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits")
BLOCKWISE = ("encoder", "decoder")  # Whisper's networks


@dataclass(frozen=True)
class OnnxOptions:
    """Options for the packages of one precision. ``precision`` is a name in ``ane.bundles.precisions.ONNX``."""

    precision: str = "fp32"

    def stored(self, network: str) -> str:
        return stored_precision(ONNX, network_spec(network), self.precision)


class OnnxTarget:
    """A ``converters.conversion.ConversionTarget`` that makes ONNX packages."""

    name = "onnx"
    unmerged = 4

    def check(self, options: Sequence[OnnxOptions], model: Bundle) -> None:
        """Raise UserError if a library is not installed, or if a precision is unknown or has no effect."""
        require_libraries()
        for option in options:
            if option.precision not in ONNX:
                raise UserError(f"precision={option.precision}: ONNX packages are in {', '.join(ONNX)}")
            check_precision(model, option.precision, ONNX[option.precision])

    def versions(self) -> tuple[str, ...]:
        import onnx
        import torch

        onnxruntime = onnxruntime_module()
        return torch.__version__, onnx.__version__, onnxruntime.__version__

    def package(
        self,
        model: Bundle,
        network: str,
        options: OnnxOptions,
        work: Path,
        progress: Callable[[str], None],
        licence: str,
    ) -> PackageRecord:
        package = write_package(
            model, network, options, work, lambda function: progress(f"building {function}"), licence
        )
        functions = measure_parity(model, package, work, lambda function: progress(f"measuring {function}"))
        return replace(package, functions=functions)


def require_libraries() -> None:
    """Raise UserError if one of the libraries that write ONNX packages is not installed."""
    switch_off_reports()
    try:
        import onnx
        import onnxruntime  # noqa: TID251
        import onnxscript
    except ImportError as error:
        raise UserError(f"ONNX packages need {error.name}: pip install '.[onnx]'") from error
    del onnx, onnxruntime, onnxscript


def write_package(
    model: Bundle,
    network: str,
    options: OnnxOptions,
    bundle: Path,
    progress: Callable[[str], None] = lambda function: None,
    licence: str = "",
) -> PackageRecord:
    """Write the package ``bundle``/packages/<network>-<precision>.onnx. The folder appears when it is complete.

    Args:
        model: The model.
        network: Name of the network.
        options: Options of the package.
        bundle: Folder of the bundle, in which the package is written.
        progress: Function that is called with the name of each function before the function is built.
        licence: Licence of the model, which each graph records.

    Returns:
        The record of the package, without measurements.

    Raises:
        UserError: The folder cannot be written, or ONNX's checker rejects a graph.
    """
    import onnx_ir as ir

    precision = options.stored(network)
    path = f"packages/{network}-{precision}.onnx"
    bits = ONNX[precision].bits
    traced = "fp16" if precision == "fp16" else "fp32"
    functions = {}
    with replacing(bundle / path, directory=True) as package:
        weights = WeightFile(package)
        for name, graph in onnx_graphs(network, load_reference(model, network, traced), DTYPES[traced]).items():
            progress(name)
            full = bundle / f"packages/{network}-{traced}.onnx/{name}.onnx"
            # tracing is slow, so if this conversion has already written the graph in full precision, quantise that
            # graph
            exported = ir.load(full) if bits and full.is_file() else graph.export()
            if bits:
                exported = quantise(exported, network, precision, bits)
            weights.move(exported)
            explain(exported, name, f"{model.family.title}, {network}, {precision}", network, licence)
            file = package / f"{name}.onnx"
            ir.save(exported, file)
            _check(file, f"{network}, function {name}, in {precision}", infer_shapes=not bits)
            functions[name] = FunctionRecord(name, {}, {})
    files = sorted(file.relative_to(bundle).as_posix() for file in (bundle / path).iterdir())
    return PackageRecord(
        network,
        precision,
        path,
        [record(bundle, file) for file in files],
        functions,
        source=_origin(model, network, options),
        format="onnx",
    )


def explain(graph: "onnx_ir.Model", kind: str, title: str, network: str, licence: str) -> None:
    """Add a title, the producer, the licence, and descriptions of the inputs and outputs to a graph."""
    graph.producer_name, graph.producer_version, graph.doc_string = "tortoise-ane", version(), f"{title}: {kind}"
    graph.metadata_props.update(notes("onnx", network, (kind,)), licence=licence, layout="batch first")
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        value.doc_string = describe("onnx", kind, str(value.name))


def _check(file: Path, what: str, infer_shapes: bool) -> None:
    """Raise UserError if ONNX's checker rejects a graph. With ``infer_shapes``, it also checks shapes and types."""
    import onnx

    try:
        onnx.checker.check_model(str(file), full_check=infer_shapes)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(
            f"{what}: ONNX's checker rejects the graph: {line[:300]}. The package is not published: choose another "
            "--precision, or other versions of torch and onnx"
        ) from error


def load_reference(model: Bundle, network: str, precision: str) -> "nn.Module":
    """Load the PyTorch network as the torch backend runs it in ``precision``, but without embedding tables."""
    module = TorchBackend(model, "cpu", precision, keep=True, exact=True).network(network)
    stage = model.family.stages.decoder
    if stage is not None and network == stage.network:
        for table, key in stage.tables.items():
            if table not in stage.tied:
                delattr(module, key.partition(".")[0])
    return module


def _origin(model: Bundle, network: str, options: OnnxOptions) -> dict[str, Any]:
    """Describe the origin of a package for its record: the model, the options, and the versions of libraries."""
    torch, onnx, onnxruntime = OnnxTarget().versions()
    return {
        "model": model.name,
        "weights_sha256": weights_sha256(model, network),
        "opset": OPSET,
        "options": asdict(options),
        "created_by": f"tortoise-ane {version()}",
        "torch": torch,
        "onnx": onnx,
        "onnxruntime": onnxruntime,
    }


# Weights


class WeightFile:
    """The file ``folder``/weights.bin, which stores the large tensors of all graphs in a package."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.offsets: dict[str, int] = {}
        (folder / WEIGHTS_FILE).touch()

    def move(self, model: "onnx_ir.Model") -> None:
        """Move the graph's large tensors into the file, and make the graph refer to them. Store equal tensors once."""
        import onnx_ir as ir

        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= MIN_BYTES:
                offset = self._write(tensor)
                value.const_value = ir.ExternalTensor(
                    WEIGHTS_FILE,
                    offset,
                    tensor.nbytes,
                    tensor.dtype,
                    shape=tensor.shape,
                    name=value.name,
                    base_dir=self.folder,
                )

    def _write(self, tensor: Any) -> int:
        data = tensor.tobytes()
        key = hashlib.sha256(data).digest(), len(data)
        if key not in self.offsets:
            with (self.folder / WEIGHTS_FILE).open("ab") as file:
                end = file.seek(0, os.SEEK_END)
                file.write(bytes(-end % ALIGNMENT))
                self.offsets[key] = file.tell()
                file.write(data)
        return self.offsets[key]


# Precision


def quantise(model: "onnx_ir.Model", network: str, precision: str, bits: int) -> "onnx_ir.Model":
    """Quantise the matrix products of a graph to ``bits`` bits with ONNX Runtime's tools, and return the new graph.

    Raises:
        UserError: A product was not quantised. ONNX Runtime raises no error if it does not recognise a product's weight
            as a constant. It only leaves this product unchanged.
    """
    import onnx_ir as ir

    products = sum(node.op_type == "MatMul" and node.inputs[1].const_value is not None for node in model.graph)
    with quiet():
        proto = _quantise_proto(ir.to_proto(ir.external_data.load_to_model(model)), network, bits)
    done = sum(node.op_type in QUANTISED for node in proto.graph.node)
    if done != products:
        raise UserError(
            f"ONNX Runtime quantised {done} of {products} products of {model.graph.name} to {precision}: "
            "install the version of onnxruntime that pyproject.toml names"
        )
    return ir.from_proto(proto)


def _quantise_proto(proto: Any, network: str, bits: int) -> Any:
    if bits < 8 or network in BLOCKWISE:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer  # noqa: TID251

        quantizer = MatMulNBitsQuantizer(proto, bits=bits, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        return quantizer.model.model
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: TID251

    # The weights are unsigned. With signed weights, ONNX Runtime's kernels for CPUs without VNNI add products in 16
    # bits, which overflow. On CPUs with VNNI, both types use the same kernels
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(
            proto,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QUInt8,
            use_external_data_format=True,
        )
        return onnx.load(path)
