"""Metadata of a GGUF file: standard keys where they apply, others under ``tortoise.``."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import gguf

from ane.bundles import Model
from ane.system.version import version
from converters.ggml.gguf_layout import PRECISIONS
from converters.provenance import provenance_of, weights_sha256

ARCHITECTURE = "tortoise"
TOKENIZER = "tortoise"      # BPE of characters, which llama.cpp does not implement; it refuses an unknown name


def add_metadata(writer: gguf.GGUFWriter, model: Model, networks: Sequence[str], voices: Sequence[str],
                 precision: str) -> None:
    """Add all keys.

    ``general.*``: the model's name, licence and source. ``tortoise.block_count`` and other usual keys: the decoder's
    sizes. ``tortoise.<network>.*``: each network's config, and the SHA-256 of the file with its weights.
    """
    origin = provenance_of(model)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(model.name)
    writer.add_file_type(PRECISIONS[precision])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for add, text in ((writer.add_license, origin["licence"]), (writer.add_description, origin["description"])):
        if text:
            add(text)
    if "repository" in origin["source"]:
        writer.add_source_repo_url(f"https://huggingface.co/{origin['source']['repository']}")
    _add_decoder(writer, model.config("autoregressive"))
    _add_tokenizer(writer, json.loads(model.tokenizer), model)
    own = {"created_by": f"tortoise-ane {version()}", "trained": model.trained, "clones": model.clones,
           "default_voice": model.default_voice, "networks": list(networks), "voices": list(voices),
           "source": json.dumps(origin["source"]), "settings": json.dumps(dict(model.settings))}
    for key, value in own.items():
        _add(writer, f"{ARCHITECTURE}.{key}", value)
    for network in networks:
        config = model.config(network)
        stated = dataclasses.asdict(config) | {"weights_sha256": weights_sha256(model, network)}
        for key, value in stated.items():
            if key not in config.without_effect:
                _add(writer, f"{ARCHITECTURE}.{network}.{key}", value)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a value by its type; nested lists, which ggml cannot read, as JSON."""
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], list | tuple):
            writer.add_string(key, json.dumps(value))
        else:
            writer.add_array(key, list(value))
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_int32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _add_decoder(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.layers)
    writer.add_embedding_length(config.model_dim)
    writer.add_feed_forward_length(4 * config.model_dim)
    writer.add_head_count(config.heads)
    writer.add_context_length(1 + config.text_positions + config.code_positions)    # the voice takes one position
    writer.add_vocab_size(config.number_mel_codes)
    writer.add_layer_norm_eps(1e-5)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], model: Model) -> None:
    """Add vocabulary, merges and special tokens, and the whole tokenizer as Hugging Face JSON.

    A start or stop id outside the vocabulary, such as upstream's start, is only in ``tortoise.autoregressive.*``.
    """
    bpe, config = tokenizer["model"], model.config("autoregressive")
    unknown = bpe.get("unk_token")
    special = {token["id"] for token in tokenizer.get("added_tokens", []) if token.get("special")}
    tokens = {id: token for token, id in bpe["vocab"].items()}
    tokens |= {token["id"]: token["content"] for token in tokenizer.get("added_tokens", [])}
    kinds = gguf.TokenType
    ids = range(max(tokens) + 1)
    writer.add_tokenizer_model(TOKENIZER)
    writer.add_token_list([tokens.get(id, f"[UNUSED{id}]") for id in ids])
    writer.add_token_types([kinds.UNUSED if id not in tokens else kinds.UNKNOWN if tokens[id] == unknown
                            else kinds.CONTROL if id in special else kinds.NORMAL for id in ids])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe.get("merges", [])]
    if merges:
        writer.add_token_merges(merges)
    if unknown in bpe["vocab"]:
        writer.add_unk_token_id(bpe["vocab"][unknown])
    for add, id in ((writer.add_bos_token_id, config.start_text_token),
                    (writer.add_eos_token_id, config.stop_text_token)):
        if id in tokens:
            add(id)
    writer.add_string(gguf.Keys.Tokenizer.HF_JSON, model.tokenizer)
