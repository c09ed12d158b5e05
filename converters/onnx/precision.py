"""Quantises the decoder's matrix products with ONNX Runtime's tools.

``int8`` stores weights in 8 bits with a scale for each column, and rounds the other factor to 8 bits at run time
(dynamic quantisation). ``int4`` stores weights in 4 bits with a scale for every 32, and rounds nothing else. (For fp16
the networks are traced in fp16, with norms and the residual stream in float32 as on torch.)
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.system.errors import UserError
from converters.coreml.graph import quiet

if TYPE_CHECKING:
    import onnx_ir

BLOCK = 32              # weights that share a scale in int4
QUANTISED = {"int8": ("MatMulInteger", "DynamicQuantizeMatMul"), "int4": ("MatMulNBits",)}


def quantise(model: "onnx_ir.Model", precision: str) -> "onnx_ir.Model":
    """The graph with its matrix products quantised to ``precision``, "int8" or "int4".

    Raises:
        UserError: ONNX Runtime left a product unquantised, which it does silently when it does not recognise a weight
            as a constant.
    """
    import onnx_ir as ir

    products = sum(node.op_type == "MatMul" and node.inputs[1].const_value is not None for node in model.graph)
    with quiet():
        proto = _quantise_proto(ir.to_proto(ir.external_data.load_to_model(model)), precision)
    done = sum(node.op_type in QUANTISED[precision] for node in proto.graph.node)
    if done != products:
        raise UserError(f"ONNX Runtime quantised {done} of {products} products of {model.graph.name} to {precision}; "
                        "install the version of onnxruntime that pyproject.toml names")
    return ir.from_proto(proto)


def _quantise_proto(proto: Any, precision: str) -> Any:
    if precision == "int4":
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(proto, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        return quantizer.model.model
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # unsigned: with signed weights, ONNX Runtime's kernels for CPUs without VNNI add up in 16 bits, which overflow;
    # with VNNI both take the same kernels
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(proto, path, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QUInt8,
                         use_external_data_format=True)
        return onnx.load(path)
