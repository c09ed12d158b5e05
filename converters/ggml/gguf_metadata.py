"""What a GGUF file says of the model in it: the standard keys as far as they fit, the rest under ``tortoise.``."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import gguf

from ane.bundles import Model
from ane.system.version import version
from converters.ggml.gguf_layout import PRECISIONS
from converters.provenance import described, weights_sha256

ARCHITECTURE = "tortoise"
TOKENIZER = "tortoise"      # BPE of characters, none of the algorithms that llama.cpp knows: it must not try one


def add_metadata(writer: gguf.GGUFWriter, model: Model, networks: Sequence[str], voices: Sequence[str],
                 precision: str) -> None:
    """Add all keys.

    ``general.*`` name the model, its licence and source; the decoder's sizes stand under the usual keys
    (``tortoise.block_count`` …); each network's config field by field under ``tortoise.<network>.``, beside the
    SHA-256 of the file that its weights came from.
    """
    origin = described(model)
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
        stated = dataclasses.asdict(model.config(network)) | {"weights_sha256": weights_sha256(model, network)}
        for key, value in stated.items():
            _add(writer, f"{ARCHITECTURE}.{network}.{key}", value)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """A value in the type that suits it; lists of lists, which ggml cannot read, become JSON."""
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
    writer.add_context_length(1 + config.text_positions + config.code_positions)    # the voice is one column
    writer.add_vocab_size(config.number_mel_codes)
    writer.add_layer_norm_eps(1e-5)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], model: Model) -> None:
    """Vocabulary, merges and special tokens, and the whole of it as Hugging Face has it.

    Ids outside the vocabulary are left to ``tortoise.autoregressive.start_text_token``: upstream's is one.
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
