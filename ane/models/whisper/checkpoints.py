"""Import Whisper checkpoints: OpenAI's .pt file, a Hugging Face folder, or CTranslate2's model.bin.

All three have the same tensors under different names.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ane.bundles.contents import Contents
from ane.bundles.state_dicts import StateDict, find_state_dict, plain_names
from ane.bundles.surplus import Surplus
from ane.bundles.torch_checkpoint import assemble, load_pickle, match_entries, nearest_surplus, read_safetensors
from ane.bundles.weights import PRECISION_NAMES, layout
from ane.models.whisper.alignment_heads import find_alignment_heads
from ane.models.whisper.ctranslate2 import is_ctranslate2, read_ctranslate2
from ane.models.whisper.networks import WHISPER_NETWORKS
from ane.models.whisper.tokenizer_files import find_tokenizer
from ane.models.whisper.tokens import SpecialTokens
from ane.system.errors import UserError
from ane.system.files import no_such_file, read_json

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
CTRANSLATE2 = "model.bin"
# OpenAI's name of each size → Hugging Face's name.
SIZES = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}
# Parts of Hugging Face's tensor names → parts of OpenAI's names. They are replaced in this order.
RENAMED = (
    (r"^model\.", ""),
    (r"\.layers\.", ".blocks."),
    (r"\.self_attn_layer_norm\.", ".attn_ln."),
    (r"\.encoder_attn_layer_norm\.", ".cross_attn_ln."),
    (r"\.final_layer_norm\.", ".mlp_ln."),
    (r"\.self_attn\.", ".attn."),
    (r"\.encoder_attn\.", ".cross_attn."),
    (r"\.q_proj\.", ".query."),
    (r"\.k_proj\.", ".key."),
    (r"\.v_proj\.", ".value."),
    (r"\.out_proj\.", ".out."),
    (r"\.fc1\.", ".mlp.0."),
    (r"\.fc2\.", ".mlp.2."),
    (r"\.embed_positions\.weight$", ".positional_embedding"),
    (r"\.embed_tokens\.", ".token_embedding."),
    (r"^encoder\.layer_norm\.", "encoder.ln_post."),
    (r"^decoder\.layer_norm\.", "decoder.ln."),
)
TIED = ("proj_out.weight", "lm_head.weight")  # copies of the token embedding, which some files have
PARTS = ("encoder.", "decoder.")
IGNORED = ("alignment_heads",)  # tensors that are skipped: this one is a buffer in older .pt files


def openai_name(key: str) -> str:
    """Convert a tensor's name to OpenAI's. An OpenAI name stays unchanged."""
    for pattern, replacement in RENAMED:
        key = re.sub(pattern, replacement, key)
    return key


def find_whisper_weights(path: Path) -> Path | None:
    """Find the Whisper weights at ``path`` without loading them.

    ``path`` is a file, or a folder with a single weights file. Returns the .pt file, model.bin, or the Hugging Face
    folder. Returns ``None`` if there are no Whisper weights.
    """
    if os.path.isfile(path):
        return path if path.suffix == ".pt" or is_ctranslate2(path) else None
    if os.path.isfile(path / CTRANSLATE2) and is_ctranslate2(path / CTRANSLATE2):
        return path / CTRANSLATE2
    if os.path.isfile(path / CONFIG):
        try:
            content = read_json(path / CONFIG)
        except UserError:
            return None
        return path if isinstance(content, dict) and content.get("model_type") == "whisper" else None
    found = list(path.glob("*.pt")) if os.path.isdir(path) else []
    return found[0] if len(found) == 1 else None


def is_whisper(path: Path) -> bool:
    """Return whether a file or folder is a Whisper checkpoint.

    Raises:
        UserError: A .pt file is damaged.
    """
    weights = find_whisper_weights(path)
    if weights is None or (os.path.isdir(path) and any(path.glob("*.pth"))):  # a folder with .pth files is Tortoise's
        return False
    if weights.suffix != ".pt":
        return True
    content = load_pickle(weights)  # FastSpeech checkpoints have the same suffix
    if not isinstance(content, Mapping) or "dims" not in content:
        return False
    return any(key.startswith(PARTS) for key in find_state_dict(content, weights).entries)


def import_whisper(path: Path, precision: str | None = None, ignore_unknown: bool = False) -> Contents:
    """Read a checkpoint in one of the three layouts.

    Args:
        path: A .pt file or model.bin, a folder with such a file, or a folder with config.json and model.safetensors.
        precision: Precision in which to store the parameters. ``None`` keeps the precision of the checkpoint.
        ignore_unknown: Whether to accept tensors that belong neither to the encoder nor to the decoder.

    Raises:
        UserError: The file does not exist or holds another model. Or the checkpoint is damaged or incomplete, has
            tensors that belong to neither network, or has a vocabulary that is not Whisper's.
    """
    weights, folder, files = whisper_files(path)
    read = read_hugging_face if weights == folder else read_openai if weights.suffix == ".pt" else read_ctranslate2
    sizes, entries = read(weights)
    special = SpecialTokens.of(sizes["n_vocab"])
    heads = find_alignment_heads(weights, sizes["n_text_layer"], sizes["n_text_head"])
    configs = {
        name: network.config.from_upstream({**sizes, "alignment_heads": heads})
        for name, network in WHISPER_NETWORKS.items()
    }
    used = {key for name in WHISPER_NETWORKS for key in check_network(name, configs[name], sizes, entries, files[0])}
    surplus = Surplus()
    whole = find_state_dict(load_pickle(weights), weights) if read is read_openai else StateDict({}, {})
    surplus.add(files[0].name, (key for key in entries if key not in used), {"dims"}.__contains__, whole.siblings)
    if os.path.isdir(path):
        surplus.add_files(path, files)
    if not ignore_unknown:
        surplus.refuse_unknown()

    def tensors(network: str) -> dict[str, torch.Tensor]:
        prefix = WHISPER_NETWORKS[network].prefix
        return {
            key: assemble((prefix + key,), entries)
            for key in layout(WHISPER_NETWORKS[network], configs[network]).shapes
        }

    return Contents(
        "whisper",
        path,
        configs=configs,
        tensors=tensors,
        surplus=surplus,
        notes=whole.notes,
        precision=precision or PRECISION_NAMES.get(entries["decoder.token_embedding.weight"].dtype, "fp32"),
        tokenizer=find_tokenizer(folder, special.multilingual),
    )


def whisper_files(path: Path) -> tuple[Path, Path, list[Path]]:
    """Find the files of a checkpoint.

    Returns:
        The path that ``find_whisper_weights`` finds, the folder with the other files, and a list of the weight files.

    Raises:
        UserError: There is no Whisper checkpoint, or it lacks a file.
    """
    if not os.path.exists(path):
        raise UserError(f"{path}: {no_such_file(path)}")
    weights = find_whisper_weights(path)
    if weights is None:
        raise UserError(
            f"{path} is not a Whisper checkpoint: give a .pt file from OpenAI, a CTranslate2 folder with "
            f"{CTRANSLATE2}, or a Hugging Face folder with {CONFIG} (model_type whisper) and {WEIGHTS}"
        )
    if os.path.isdir(weights):
        return weights, weights, hugging_face_files(weights)
    return weights, weights.parent, [weights]


def check_network(
    network: str, config: Any, sizes: Mapping[str, int], entries: Mapping[str, torch.Tensor], where: Path
) -> set[str]:
    """Check the keys, types and shapes of a network's tensors.

    Returns the keys. Raises UserError if anything is wrong.
    """
    entry, size = WHISPER_NETWORKS[network], sizes[{"encoder": "n_audio_layer", "decoder": "n_text_layer"}[network]]
    found = {key.split(".")[2] for key in entries if key.startswith(f"{entry.prefix}blocks.")}
    if len(found) != size:
        raise UserError(
            f"{where} is damaged: its sizes say that the {network} has {size} layers, but there are tensors for "
            f"{len(found)}"
        )
    config.check(str(where))
    shapes = layout(entry, config).shapes
    fault = "the file is damaged, or its sizes describe another model"
    needed = [entry.prefix + key for key in shapes]
    match_entries(
        shapes, entries, where, lambda key: nearest_surplus(key, entries, needed) or fault, lambda: fault, entry.prefix
    )
    return {entry.prefix + key for key in shapes}


def read_openai(path: Path) -> tuple[dict[str, int], dict[str, torch.Tensor]]:
    """Read the sizes ("dims") and the tensors ("model_state_dict") in a .pt file.

    Raises:
        UserError: The file is not a Whisper checkpoint, or is damaged.
    """
    content = load_pickle(path)
    if (
        not isinstance(content, Mapping)
        or "dims" not in content
        or not (found := find_state_dict(content, path)).wrappers
    ):
        raise UserError(f"{path} is not a Whisper checkpoint: it has no dims and model_state_dict")
    if not isinstance(content["dims"], Mapping):
        raise UserError(f"{path} is damaged: its dims must be a dict")
    return check_sizes(content["dims"], {name: name for name in SIZES}, path), named_tensors(found.entries, path)


def read_hugging_face(folder: Path) -> tuple[dict[str, int], dict[str, torch.Tensor]]:
    """Read the sizes of a Hugging Face folder, and map its tensors into memory.

    Raises:
        UserError: A file is missing or damaged, or belongs to another model.
    """
    tensors: dict[str, torch.Tensor] = {}
    for path in hugging_face_files(folder):
        tensors |= read_safetensors(path)
    return check_sizes(read_json(folder / CONFIG), SIZES, folder / CONFIG), named_tensors(tensors, folder)


def hugging_face_files(folder: Path) -> list[Path]:
    """List the safetensors files of a folder: model.safetensors, or the shards that the index lists.

    Raises:
        UserError: A file is missing, or the index is damaged.
    """
    if os.path.isfile(folder / WEIGHTS):
        return [folder / WEIGHTS]
    if not os.path.isfile(folder / INDEX):
        raise UserError(f"{folder} has no {WEIGHTS}: download it from the model's repository")
    files = [folder / name for name in shard_names(folder / INDEX)]
    for file in files:
        if not os.path.isfile(file):
            raise UserError(f"{folder} has no {file.name}, which {INDEX} lists: download it too")
    return files


def shard_names(index: Path) -> list[str]:
    """Read the file names of the shards from an index, without folders. Raises UserError if the index is damaged."""
    content = read_json(index)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
        raise UserError(f"{index} is damaged: it has no weight_map of file names")
    return list(dict.fromkeys(Path(name).name for name in shards.values()))


def check_sizes(stated: Mapping[str, Any], names: Mapping[str, str], where: Path) -> dict[str, int]:
    """Check that the sizes in a file are positive integers, and return them under OpenAI's names.

    Args:
        stated: Content of the file.
        names: For OpenAI's name of each size, the name of the size in the file.
        where: Path of the file, for the message.

    Raises:
        UserError: A size is not a positive integer.
    """
    for name in names.values():
        value = stated.get(name)
        if type(value) is not int or value < 1:
            raise UserError(f"{where}: {name} must be a positive whole number, got {value!r}")
    return {ours: stated[name] for ours, name in names.items()}


def named_tensors(tensors: Mapping[str, Any], where: Path) -> dict[str, torch.Tensor]:
    """Rename tensors to OpenAI's names, and drop copies of the token embedding. Unknown names stay unchanged.

    Raises:
        UserError: A value is not a tensor.
    """
    found = {}
    for key, tensor in plain_names(tensors).items():
        if key in (*TIED, *IGNORED):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise UserError(f"{where}: {key} must be a tensor, not {type(tensor).__name__}")
        name = openai_name(key)
        found[name if name.startswith(PARTS) else key] = tensor
    return found
