"""Make a tiny Whisper checkpoint with random weights, in the layouts of OpenAI, Hugging Face and CTranslate2."""

import json
import shutil
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from ane.models.whisper.checkpoints import SIZES
from ane.models.whisper.networks import WhisperDecoder, WhisperDecoderConfig, WhisperEncoder, WhisperEncoderConfig

# part of multilingual.tiktoken: all single bytes, and the tokens of the symbols and of the texts in COVERED_TEXTS
RANKS = Path(__file__).with_name("multilingual.tiktoken")
COVERED_TEXTS = {
    "Hello world.",
    " The quick brown fox jumps over the lazy dog.",
    " It's 3.50, isn't it?",
    "naïve café — ok",
    " 1234567",
    "\n\n  two",
    "Hello there, friend.",
    " Hello there, friend.",
}
VALUES = ("weight", "bias")
KNOWN_TOKENS = 256  # ids below this are single bytes, which RANKS contains


@dataclass(frozen=True)
class RandomSizes:
    """Sizes under OpenAI's names; a window has 4 s, so that tests are quick."""

    n_mels: int = 80
    n_audio_ctx: int = 200
    n_audio_state: int = 8
    n_audio_head: int = 2
    n_audio_layer: int = 1
    n_vocab: int = 51865
    n_text_ctx: int = 64
    n_text_state: int = 8
    n_text_head: int = 2
    n_text_layer: int = 2


def random_tensors(sizes: RandomSizes, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights by OpenAI's keys. Tokens that RANKS may lack, and languages, are unlikely."""
    dims = asdict(sizes)
    networks = {
        "encoder": WhisperEncoder(WhisperEncoderConfig.from_upstream(dims)),
        "decoder": WhisperDecoder(WhisperDecoderConfig.from_upstream(dims)),
    }
    random = torch.Generator().manual_seed(seed)
    tensors = {
        f"{name}.{key}": torch.randn(value.shape, generator=random) * 0.4
        for name, network in networks.items()
        for key, value in network.state_dict().items()
    }
    for key, tensor in tensors.items():
        if "ln" in key and key.endswith("weight"):
            tensor += 1
    tensors["decoder.token_embedding.weight"] *= 4
    first_special = 50257 if sizes.n_vocab > 51864 else 50256
    tensors["decoder.token_embedding.weight"][KNOWN_TOKENS:first_special] *= 0.01
    return tensors


def hugging_face_name(key: str) -> str:
    """OpenAI's name of a tensor → Hugging Face's."""
    if key.endswith(("encoder.positional_embedding", "decoder.positional_embedding")):
        return f"model.{key.replace('positional_embedding', 'embed_positions.weight')}"
    for ours, theirs in (
        ("blocks", "layers"),
        ("cross_attn_ln", "encoder_attn_layer_norm"),
        ("cross_attn.", "encoder_attn."),
        ("attn_ln", "self_attn_layer_norm"),
        (".attn.", ".self_attn."),
        ("mlp_ln", "final_layer_norm"),
        ("mlp.0", "fc1"),
        ("mlp.2", "fc2"),
        ("query", "q_proj"),
        ("key", "k_proj"),
        ("value", "v_proj"),
        ("attn.out.", "attn.out_proj."),
        ("token_embedding", "embed_tokens"),
        ("ln_post", "layer_norm"),
        ("decoder.ln.", "decoder.layer_norm."),
    ):
        key = key.replace(ours, theirs)
    return f"model.{key}"


def write_openai(folder: Path, sizes: RandomSizes | None = None, seed: int = 0) -> Path:
    """Write a .pt file with the rank file beside it; returns its path."""
    sizes = sizes or RandomSizes()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"dims": asdict(sizes), "model_state_dict": random_tensors(sizes, seed)}, folder / "random.pt")
    shutil.copy(RANKS, folder / RANKS.name)
    return folder / "random.pt"


def write_hugging_face(
    folder: Path, sizes: RandomSizes | None = None, seed: int = 0, shards: int = 1, tied: bool = False
) -> Path:
    """Write a Hugging Face folder with the rank file in it; ``tied`` adds proj_out.weight. Returns the folder."""
    sizes = sizes or RandomSizes()
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {hugging_face_name(key): tensor for key, tensor in random_tensors(sizes, seed).items()}
    if tied:
        tensors["proj_out.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        places = {}
        for shard in range(shards):
            name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            part = dict(list(tensors.items())[shard::shards])
            save_file(part, folder / name)
            places |= dict.fromkeys(part, name)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    config = {"model_type": "whisper", **{theirs: asdict(sizes)[ours] for ours, theirs in SIZES.items()}}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(RANKS, folder / RANKS.name)
    return folder


def write_ctranslate2(folder: Path, sizes: RandomSizes | None = None, seed: int = 0, **changes: np.ndarray) -> Path:
    """Write model.bin with the rank file and config.json beside it; ``changes`` are added. Returns the folder."""
    sizes = sizes or RandomSizes()
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {key: tensor.numpy() for key, tensor in random_tensors(sizes, seed).items()}
    variables = {
        f"{side}/{name}": arrays[f"{side}.{ours}"]
        for side, ours, name in (
            ("encoder", "positional_embedding", "position_encodings/encodings"),
            ("decoder", "positional_embedding", "position_encodings/encodings"),
            ("decoder", "token_embedding.weight", "embeddings/weight"),
            *(("encoder", f"conv{index}.{kind}", f"conv{index}/{kind}") for index in (1, 2) for kind in VALUES),
        )
    }

    def add(name: str, *keys: str, norm: bool = False) -> None:
        for kind, theirs in (("weight", "gamma" if norm else "weight"), ("bias", "beta" if norm else "bias")):
            zero = np.zeros(sizes.n_audio_state, np.float32)  # Whisper's keys have no bias
            variables[f"{name}/{theirs}"] = np.concatenate([arrays.get(f"{key}.{kind}", zero) for key in keys])

    for side, layers in (("encoder", sizes.n_audio_layer), ("decoder", sizes.n_text_layer)):
        add(f"{side}/layer_norm", "encoder.ln_post" if side == "encoder" else "decoder.ln", norm=True)
        variables[f"{side}/num_heads"] = np.array(sizes.n_text_head, np.int16)
        for index in range(layers):
            theirs, ours = f"{side}/layer_{index}", f"{side}.blocks.{index}"
            add(f"{theirs}/self_attention/layer_norm", f"{ours}.attn_ln", norm=True)
            add(f"{theirs}/self_attention/linear_0", *(f"{ours}.attn.{name}" for name in ("query", "key", "value")))
            add(f"{theirs}/self_attention/linear_1", f"{ours}.attn.out")
            add(f"{theirs}/ffn/layer_norm", f"{ours}.mlp_ln", norm=True)
            add(f"{theirs}/ffn/linear_0", f"{ours}.mlp.0")
            add(f"{theirs}/ffn/linear_1", f"{ours}.mlp.2")
            if side == "decoder":
                add(f"{theirs}/attention/layer_norm", f"{ours}.cross_attn_ln", norm=True)
                add(f"{theirs}/attention/linear_0", f"{ours}.cross_attn.query")
                add(f"{theirs}/attention/linear_1", f"{ours}.cross_attn.key", f"{ours}.cross_attn.value")
                add(f"{theirs}/attention/linear_2", f"{ours}.cross_attn.out")
    types = {np.dtype(kind): code for code, kind in enumerate((np.float32, np.int8, np.int16, np.int32, np.float16))}

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    variables |= changes
    parts = [struct.pack("<I", 6), text("WhisperSpec"), struct.pack("<II", 3, len(variables))]
    for name, array in variables.items():
        parts += [
            text(name),
            struct.pack(f"<B{array.ndim}IBI", array.ndim, *array.shape, types[array.dtype], array.nbytes),
            array.tobytes(),
        ]
    parts += [struct.pack("<I", 1), text("decoder/projection/weight"), text("decoder/embeddings/weight")]
    (folder / "model.bin").write_bytes(b"".join(parts))
    (folder / "config.json").write_text(json.dumps({"alignment_heads": [[1, 0], [0, 1]]}))
    shutil.copy(RANKS, folder / RANKS.name)
    return folder
