"""Fewer bits a weight, by ONNX Runtime's own tools, for the decoder's products.

``int8`` stores weights in 8 bits, a scale a column, and rounds what they meet to 8 bits as it comes (dynamic
quantisation). ``int4`` stores weights in 4 bits, a scale for every 32, and rounds nothing else. fp16 is no matter of
tools: the networks themselves are traced in it, norms and the residual stream in float32 as on torch.
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.system.errors import UserError
from converters.quiet import quiet

if TYPE_CHECKING:
    import onnx_ir

BLOCK = 32              # weights that share a scale in 4 bits
QUANTISED = {"int8": ("MatMulInteger", "DynamicQuantizeMatMul"), "int4": ("MatMulNBits",)}


def quantised(model: "onnx_ir.Model", precision: str) -> "onnx_ir.Model":
    """The graph with its products of weights in ``precision``, "int8" or "int4".

    Raises:
        UserError: ONNX Runtime left a product with a weight as it was; it does so, without a word, where it does not
            see that the weight is a constant.
    """
    import onnx_ir as ir

    products = sum(_weighed(node) for node in model.graph)
    with quiet():
        proto = _narrowed(ir.to_proto(ir.external_data.load_to_model(model)), precision)
    made = sum(node.op_type in QUANTISED[precision] for node in proto.graph.node)
    if made != products:
        raise UserError(f"ONNX Runtime quantised {made} of {products} products of {model.graph.name} to {precision}; "
                        "install the version of onnxruntime that pyproject.toml names")
    return ir.from_proto(proto)


def _weighed(node: Any) -> bool:
    """Whether a node is a product with a weight."""
    return node.op_type == "MatMul" and node.inputs[1].const_value is not None


def _narrowed(proto: Any, precision: str) -> Any:
    if precision == "int4":
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(proto, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        return quantizer.model.model
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(proto, path, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8,
                         use_external_data_format=True)
        return onnx.load(path)
