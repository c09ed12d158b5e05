"""Reads CTranslate2's model.bin of a Whisper model, the layout of faster-whisper.

    u32 version · name of the kind · u32 revision · u32 count, and the variables: name · u8 rank · u32 a dimension ·
    u8 type · u32 bytes · data          (little endian; a name: u16 bytes, then those, the last of them zero)
"""

import math
import struct
from pathlib import Path

import numpy as np
import torch

from ane.system.errors import UserError

KIND = "WhisperSpec"
TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
# part of a network or of a block → OpenAI's names of what it holds, one above the other
NAMES = {
    "self_attention/layer_norm": "attn_ln", "self_attention/linear_0": "attn.query attn.key attn.value",
    "self_attention/linear_1": "attn.out", "attention/layer_norm": "cross_attn_ln",
    "attention/linear_0": "cross_attn.query", "attention/linear_1": "cross_attn.key cross_attn.value",
    "attention/linear_2": "cross_attn.out", "ffn/layer_norm": "mlp_ln", "ffn/linear_0": "mlp.0",
    "ffn/linear_1": "mlp.2", "encoder/conv1": "conv1", "encoder/conv2": "conv2", "encoder/layer_norm": "ln_post",
    "decoder/layer_norm": "ln", "decoder/embeddings": "token_embedding",
}
VALUES = {"gamma": "weight", "beta": "bias"}


def is_ctranslate2(path: Path) -> bool:
    """Whether a file begins as a Whisper model of CTranslate2 does."""
    with open(path, "rb") as file:
        return file.read(6 + len(KIND))[6:] == KIND.encode()


def read_ctranslate2(path: Path) -> tuple[dict[str, int], dict[str, torch.Tensor]]:
    """Sizes and tensors of a model.bin, under OpenAI's names. Raises UserError when it is damaged or quantised."""
    variables = read_variables(path)
    tensors: dict[str, torch.Tensor] = {}
    for name, array in variables.items():
        part, _, value = name.rpartition("/")
        side, _, within = part.partition("/")
        block, _, part = within.partition("/") if "/" in within else ("", "", part)
        if value.endswith("_scale"):
            raise UserError(f"{path} is quantised ({name}): convert the model with --quantization float16")
        prefix = f"{side}.blocks.{block.removeprefix('layer_')}." if block else f"{side}."
        parts = NAMES.get(part, "").split()         # none: a fact, such as the number of heads
        for ours, rows in zip(parts, np.array_split(array, len(parts)) if parts else (), strict=True):
            if not ours.endswith("key") or value != "bias" or rows.any():       # keys have no bias; here it is zero
                tensors[f"{prefix}{ours}.{VALUES.get(value, value)}"] = torch.from_numpy(rows)
    try:
        sizes = {"n_mels": tensors["encoder.conv1.weight"].shape[1],
                 "n_vocab": len(tensors["decoder.token_embedding.weight"])}
        for side, ours in (("encoder", "audio"), ("decoder", "text")):
            positions = variables[f"{side}/position_encodings/encodings"]
            tensors[f"{side}.positional_embedding"] = torch.from_numpy(positions)
            context, width = positions.shape
            blocks = {key.split(".")[2] for key in tensors if key.startswith(f"{side}.blocks.")}
            sizes |= {f"n_{ours}_ctx": context, f"n_{ours}_state": width, f"n_{ours}_layer": len(blocks),
                      f"n_{ours}_head": int(variables[f"{side}/num_heads"])}
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise UserError(f"{path} lacks tensors of Whisper ({error}): get it again") from error
    return sizes, tensors


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """The variables by name. Raises UserError when the file is none of CTranslate2's Whisper models, or damaged."""
    def number(code: str) -> int:
        return struct.unpack(f"<{code}", file.read(struct.calcsize(code)))[0]

    def name() -> str:
        return file.read(number("H")).rstrip(b"\0").decode()

    try:
        with open(path, "rb") as file:
            if number("I") < 4 or name() != KIND:
                raise ValueError("it is too old, or another kind of model")
            number("I")
            found = {}
            for _ in range(number("I")):
                key, shape = name(), [number("I") for _ in range(number("B"))]
                kind, size = np.dtype(TYPES[number("B")]), number("I")
                if size != math.prod(shape) * kind.itemsize:
                    raise ValueError(f"{key} has {size} bytes for shape {shape}")
                found[key] = np.frombuffer(bytearray(file.read(size)), kind).reshape(shape)
            return found
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise UserError(f"{path} cannot be read as a Whisper model of CTranslate2 ({error}): get it again") from error
