"""Read the weights of a Whisper model that CTranslate2 converted. faster-whisper uses such models.

The file model.bin has this layout:

    u32 version · name of the model's class · u32 revision · u32 number of variables · the variables
    a variable: name · u8 rank · u32 for each dimension · u8 type · u32 number of bytes · data

All numbers are little endian. A name is its length as u16, then its bytes, of which the last one is zero.
"""

import math
import struct
from pathlib import Path

import numpy as np
import torch

from ane.system.errors import UserError

KIND = "WhisperSpec"
TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
# CTranslate2's name of a layer → OpenAI's names of the layers that CTranslate2 joins to this one.
NAMES = {
    "self_attention/layer_norm": "attn_ln",
    "self_attention/linear_0": "attn.query attn.key attn.value",
    "self_attention/linear_1": "attn.out",
    "attention/layer_norm": "cross_attn_ln",
    "attention/linear_0": "cross_attn.query",
    "attention/linear_1": "cross_attn.key cross_attn.value",
    "attention/linear_2": "cross_attn.out",
    "ffn/layer_norm": "mlp_ln",
    "ffn/linear_0": "mlp.0",
    "ffn/linear_1": "mlp.2",
    "encoder/conv1": "conv1",
    "encoder/conv2": "conv2",
    "encoder/layer_norm": "ln_post",
    "decoder/layer_norm": "ln",
    "decoder/embeddings": "token_embedding",
}
VALUES = {"gamma": "weight", "beta": "bias"}


def is_ctranslate2(path: Path) -> bool:
    """Return whether a file begins like a Whisper model in CTranslate2's format."""
    with open(path, "rb") as file:
        return file.read(6 + len(KIND))[6:] == KIND.encode()


def read_ctranslate2(path: Path) -> tuple[dict[str, int], dict[str, torch.Tensor]]:
    """Read the sizes and tensors of a model.bin, and rename them to OpenAI's names.

    Raises:
        UserError: The file is damaged or quantised.
    """
    variables = read_variables(path)
    tensors: dict[str, torch.Tensor] = {}
    for name, array in variables.items():
        part, _, value = name.rpartition("/")
        side, _, within = part.partition("/")
        block, _, part = within.partition("/") if "/" in within else ("", "", part)
        if value.endswith("_scale"):
            raise UserError(f"{path} is quantised ({name}): convert the model with --quantization float16")
        prefix = f"{side}.blocks.{block.removeprefix('layer_')}." if block else f"{side}."
        parts = NAMES.get(part, "").split()  # empty for a variable that is not a layer, such as the number of heads
        for ours, rows in zip(parts, np.array_split(array, len(parts)) if parts else (), strict=True):
            if (
                not ours.endswith("key") or value != "bias" or rows.any()
            ):  # CTranslate2 stores zeros for the biases that keys lack
                tensors[f"{prefix}{ours}.{VALUES.get(value, value)}"] = torch.from_numpy(rows)
    try:
        sizes = {
            "n_mels": tensors["encoder.conv1.weight"].shape[1],
            "n_vocab": len(tensors["decoder.token_embedding.weight"]),
        }
        for side, ours in (("encoder", "audio"), ("decoder", "text")):
            positions = variables[f"{side}/position_encodings/encodings"]
            tensors[f"{side}.positional_embedding"] = torch.from_numpy(positions)
            context, width = positions.shape
            blocks = {key.split(".")[2] for key in tensors if key.startswith(f"{side}.blocks.")}
            sizes |= {
                f"n_{ours}_ctx": context,
                f"n_{ours}_state": width,
                f"n_{ours}_layer": len(blocks),
                f"n_{ours}_head": int(variables[f"{side}/num_heads"]),
            }
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise UserError(f"{path} lacks a tensor of Whisper ({error}): get the file again") from error
    return sizes, tensors


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """Read the variables of a model.bin, by name.

    Raises:
        UserError: The file is damaged, or is not a Whisper model in CTranslate2's format.
    """

    def number(code: str) -> int:
        return struct.unpack(f"<{code}", file.read(struct.calcsize(code)))[0]

    def name() -> str:
        return file.read(number("H")).rstrip(b"\0").decode()

    try:
        with open(path, "rb") as file:
            if number("I") < 4 or name() != KIND:
                raise ValueError("it is too old, or it is another model")
            number("I")
            found = {}
            for _ in range(number("I")):
                key, shape = name(), [number("I") for _ in range(number("B"))]
                kind, size = np.dtype(TYPES[number("B")]), number("I")
                if size != math.prod(shape) * kind.itemsize:
                    raise ValueError(f"{key} of shape {shape} cannot have {size} bytes")
                found[key] = np.frombuffer(bytearray(file.read(size)), kind).reshape(shape)
            return found
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise UserError(f"{path} cannot be read as CTranslate2's Whisper ({error}): get the file again") from error
