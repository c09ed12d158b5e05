"""Names, shapes and types of a network's tensors in a GGUF file.

ggml multiplies a matrix by rows of inputs, quantises it in blocks of 32 along a row, and limits names to 63 bytes. So
matrices are stored as (out, in), as llama.cpp stores GPT-2's: the decoder's, which are (in, out), are transposed, and a
convolution with kernel size 1 is stored as a matrix. Other shapes and names are upstream's, with parts of long names
abbreviated.
"""

import math
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import torch
from torch import nn

from ane.bundles.weights import layout, skeleton
from ane.models.tortoise.networks.autoregressive import Conv1D
from ane.system.errors import UserError
from converters.models import network_spec

Type = gguf.GGMLQuantizationType

PRECISIONS = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16,
              "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0}
NAME_BYTES = 63             # GGML_MAX_NAME is 64 with its terminating zero; ggml refuses longer names
ABBREVIATIONS = ((".relative_pos_embeddings.relative_attention_bias.", ".relative_bias."),
                 (".conditioning_timestep_integrator.", ".timestep_integrator."),
                 ("_transformer.transformer.attn_layers.", "_transformer."))
FP16_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of the file.

    Attributes:
        name: in the file.
        shape: in NumPy's order; ggml lists axes in reverse.
        type: ggml's type.
        key: the tensor's key in the network's state dict.
        transposed: whether the network stores it transposed.
    """

    name: str
    shape: tuple[int, ...]
    type: Type
    key: str = ""
    transposed: bool = False

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in bytes for types with blocks, else ``shape``."""
        return self.shape if self.type in (Type.F32, Type.F16) else gguf.quant_shape_to_byte_shape(
            self.shape, self.type)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype({Type.F32: np.float32, Type.F16: np.float16}.get(self.type, np.uint8))

    @property
    def bytes(self) -> int:
        return math.prod(self.stored_shape) * self.dtype.itemsize


def gguf_tensors(network: str, config: Any, precision: str) -> list[GgufTensor]:
    """The tensors of ``network`` at ``config``, in the order of its state dict."""
    matrices = matrix_layers(network, config)
    found = []
    for key, shape in layout(network_spec(network), config).shapes.items():
        transposed = matrices.get(key) is Conv1D
        name = f"{network}.{key}"
        for long, short in ABBREVIATIONS:
            name = name.replace(long, short)
        shape = shape[::-1] if transposed else trimmed(shape)
        found.append(GgufTensor(
            name, shape, stored_type(network, shape, key in matrices, precision), key, transposed))
    return found


def matrix_layers(network: str, config: Any) -> dict[str, type[nn.Module]]:
    """Keys of the weights that are used as matrices, and the type of layer of each."""
    return {f"{name}.weight": type(module) for name, module in skeleton(network_spec(network), config).named_modules()
            if isinstance(module, Conv1D | nn.Linear) or (isinstance(module, nn.Conv1d) and module.kernel_size == (1,))}


def trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without trailing axes of size 1, which would be ggml's rows: (1024, 512, 1) → (1024, 512)."""
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape or (1,)


def stored_type(network: str, shape: tuple[int, ...], is_matrix: bool, precision: str) -> Type:
    """The type that a tensor is stored in.

    f32: tensors with one axis longer than 1 (norms, biases), and all of UnivNet (``Network.fp16_package``). Blocks, if
    requested: matrices of the compressed networks (``Network.compressed``) whose rows are a multiple of 32 long. f16:
    all others: embeddings, kernels larger than 1, and the other networks.
    """
    if precision == "f32" or not network_spec(network).fp16_package or math.prod(shape) == max(shape):
        return Type.F32
    blocks = Type[precision.upper()]
    if is_matrix and network_spec(network).compressed and shape[-1] % gguf.GGML_QUANT_SIZES[blocks][0] == 0:
        return blocks
    return Type.F16


def encode(entry: GgufTensor, tensor: torch.Tensor, where: str) -> np.ndarray:
    """A tensor of the network in the file's form: ``entry.stored_shape``, ``entry.dtype``.

    Raises:
        UserError: a value is NaN or infinite, or beyond the range of fp16, the type of the blocks' scales.
    """
    wide = tensor.detach().float().numpy()
    wide = np.ascontiguousarray(wide.T if entry.transposed else wide).reshape(entry.shape)
    largest = float(np.abs(wide).max(initial=0.0))
    if not math.isfinite(largest):
        raise UserError(f"{where}: {entry.key} holds NaN or infinite values: the file is damaged or its training "
                        "diverged")
    if entry.type != Type.F32 and largest > FP16_MAX:
        raise UserError(f"{where}: {entry.key} holds a value of {largest:.4g}, beyond the range of fp16 (65504); use "
                        "--precision f32")
    return gguf.quantize(wide, entry.type)
