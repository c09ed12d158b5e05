"""Map the keys in upstream's checkpoints to our networks, and the arguments of upstream's classes to our configs.

transformers (4.36 to 4.57) stores the same weights under other keys. Its ClvpModelForConditionalGeneration has the
decoder and CLVP, and its UnivNetModel has the vocoder. Its scripts models/clvp/convert_clvp_to_hf.py and
models/univnet/convert_univnet.py rename upstream's keys. The scripts also split the joint q, k and v weights of the
decoder and the conditioning encoder into three tensors. This module undoes both changes.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ane.bundles.family import Config
from ane.bundles.torch_checkpoint import (
    SHOWN,
    Entries,
    folded_key,
    match_entries,
    nearest_surplus,
    pattern,
    sources,
    summarise_keys,
)
from ane.bundles.weights import layout
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError


def networks_of(file: str) -> list[str]:
    """Return the names of the networks whose parameters upstream stores in ``file``."""
    return [name for name, network in NETWORKS.items() if network.file == file]


def main_networks(file: str) -> list[str]:
    """Return the networks whose weights are always in an official file.

    Some files also hold an encoder for their network, under keys with a prefix. This function leaves such encoders out,
    because trainers may not store an encoder that they did not train.
    """
    return [name for name in networks_of(file) if not NETWORKS[name].prefix]


def lacks_network(name: str, entries: Entries) -> bool:
    """Return whether a file has no key of the encoder ``name``. Returns False for a network without a prefix."""
    prefix = NETWORKS[name].prefix
    return bool(prefix) and not any(folded_key(key).startswith(prefix) for key in entries)


def match(name: str, configs: Mapping[str, Any], entries: Entries, path: Path) -> dict[str, tuple[str, ...]]:
    """Find the entries of a file from which each parameter of network ``name`` is computed (``sources``).

    Returns the names of the entries, by the network's key.

    Raises:
        UserError: A key is missing, is not a float tensor, or has another shape than in the network.
    """
    return match_entries(
        layout(NETWORKS[name], configs[name]).shapes,
        entries,
        path,
        lambda key: _why_missing(key, entries, path, configs, name),
        lambda: _why_misshapen(entries, path, configs, NETWORKS[name].file),
        NETWORKS[name].prefix,
    )


def check_surplus(entries: Entries, used: set[str], path: Path) -> None:
    """Check that the networks use every layer in the file. Otherwise only a part of a larger model would be loaded.

    Raises:
        UserError: The file has more layers than the config says.
    """
    used_keys = {folded_key(key) for key in used}
    patterns = {pattern(key) for key in used_keys}
    surplus = sorted(
        key for key in entries if folded_key(key) not in used_keys and pattern(folded_key(key)) in patterns
    )
    if surplus:
        raise UserError(
            f"{path} has more layers than the network that the config describes, for example {surplus[0]} (surplus: "
            f"{summarise_keys(surplus, SHOWN)}): {_size_hint(path)}"
        )


# Keys in upstream's files that speech does not need: buffers of old transformers releases, and the embeddings of GPT-2,
# which Tortoise replaces.
UNNEEDED = re.compile(r"gpt\.h\.\d+\.attn\.(masked_)?bias|gpt\.w[tp]e\.weight")
# Upstream's class for generation (GPT2InferenceModel in its autoregressive.py) stores the decoder's layers again under
# the left names. They have the same weights as the right names.
COPY = {
    f"inference_model.{copied}.": f"{own}."
    for copied, own in (
        ("transformer", "gpt"),
        ("text_pos_embedding", "mel_pos_embedding"),
        ("embeddings", "mel_embedding"),
        ("lm_head.0", "final_norm"),
        ("lm_head.1", "mel_head"),
    )
}


def is_unneeded(key: str, networks: Iterable[str], configs: Mapping[str, Any]) -> bool:
    """Return whether ``key``, an entry of a file with ``networks``, is known to be unnecessary for speech."""
    copied = next((start for start in COPY if key.startswith(start)), None)
    if copied and "autoregressive" in networks:
        own = COPY[copied] + key.removeprefix(copied)
        return (
            bool(UNNEEDED.fullmatch(own)) or own in layout(NETWORKS["autoregressive"], configs["autoregressive"]).shapes
        )
    return bool(UNNEEDED.fullmatch(key)) or any(
        NETWORKS[name].prefix + unused == key for name in networks for unused in NETWORKS[name].unused(configs[name])
    )


def looks_like(entries: Entries, file: str, configs: Mapping[str, Any]) -> str | None:
    """Guess which other official file the entries come from, for a message about ``file``.

    Returns a file whose keys, ignoring layer numbers, are all among ``entries``. If there are several such files, the
    function prefers the file with most keys, and then a file whose shapes match ``configs``. Returns ``None`` if there
    is no such file.
    """
    present = {pattern(folded_key(key)) for key in entries}
    best: tuple[int, bool, str | None] = (0, False, None)
    for other in {network.file for network in NETWORKS.values()} - {file}:
        wanted = _patterns(other, configs)
        if wanted <= present:
            best = max(best, (len(wanted), _fits(other, configs, entries), other))
    return best[2]


def _patterns(file: str, configs: Mapping[str, Any], networks: Iterable[str] | None = None) -> set[str]:
    """Return the keys of networks in an official file, without layer numbers. ``None`` means its main networks."""
    return {
        pattern(NETWORKS[name].prefix + key)
        for name in (main_networks(file) if networks is None else networks)
        for key in layout(NETWORKS[name], configs[name]).shapes
    }


def lacking_keys(entries: Entries, file: str, configs: Mapping[str, Any]) -> list[str]:
    """Return the keys of an official file, without layer numbers, that ``entries`` lacks.

    Returns [] if half the keys or more are lacking, because then the entries do not come from this file.
    """
    wanted = _patterns(file, configs)
    lacking = sorted(wanted - {pattern(folded_key(key)) for key in entries})
    return lacking if 2 * len(lacking) < len(wanted) else []


def renamed_key(key: str, entries: Entries, file: str, configs: Mapping[str, Any]) -> str:
    """Name the entries that may be the missing ``key`` of an official file (see ``nearest_surplus``)."""
    return nearest_surplus(key, entries, _patterns(file, configs, networks_of(file)))


def _why_missing(key: str, entries: Entries, path: Path, configs: Mapping[str, Any], name: str) -> str:
    if not any(isinstance(entry, torch.Tensor) for entry in entries.values()):
        found = summarise_keys(map(str, entries), SHOWN) or "nothing"
        return f"the file has no tensors, only {found}; it must hold a state dict"
    if lacks_network(name, entries) and _patterns(NETWORKS[name].file, configs) <= {
        pattern(folded_key(present)) for present in entries
    }:
        return f"the file lacks the whole {name}: name a bundle that has it, with base=NAME"
    file = NETWORKS[name].file
    if other := looks_like(entries, file, configs):
        return f"it has the keys of {other}, so the file is misnamed"
    if renamed := renamed_key(key, entries, file, configs):
        return renamed
    layer = re.match(r".*\.\d+\.", key)
    if layer and any(present.startswith(layer[0]) for present in entries):
        return f"other keys of {layer[0]} are there, so the file is damaged, or its trainer left the key out"
    if pattern(key) in {pattern(folded_key(present)) for present in entries}:
        return f"other layers have it, so the file has fewer layers than its config or is damaged; {_size_hint(path)}"
    return f"this is not upstream's {file}, or a damaged copy of it"


def _why_misshapen(entries: Entries, path: Path, configs: Mapping[str, Any], file: str) -> str:
    other = looks_like(entries, file, configs)
    if other and _fits(other, configs, entries):
        return f"it fits {other}, so the file is misnamed"
    return _size_hint(path)


def _fits(file: str, configs: Mapping[str, Any], entries: Entries) -> bool:
    """Return whether ``entries`` have the keys and the shapes of the main networks in an official file."""
    found = [
        (sources(NETWORKS[name].prefix + key, entries), shape)
        for name in main_networks(file)
        for key, shape in layout(NETWORKS[name], configs[name]).shapes.items()
    ]
    return all(source and tuple(entries[source[-1]].shape) == shape for source, shape in found)


def _size_hint(path: Path) -> str:
    return (
        f"if the model has another size, write its constructor arguments to {path.parent / 'config.json'} "
        "or to a file that you give with config=FILE"
    )


# Arguments of upstream's classes that affect only training, or only parameters that inference never reads.
TRAINING_ONLY = {
    "autoregressive.pth": {"checkpointing", "mel_length_compression"},
    "diffusion_decoder.pth": {"dropout", "layer_drop", "unconditioned_percentage", "use_fp16"},
    "clvp2.pth": {
        "speech_seq_len",
        "text_mask_percentage",
        "text_seq_len",
        "voice_mask_percentage",
        "wav_token_compression",
    },
    "hifidecoder.pth": {"inference_padding"},  # upstream stores it and does not use it
}

# Keys of a config that we ignore: our own, and the files of upstream's networks that its default speech does not use.
NOT_READ = ("trained", "mel_norms.pth", "classifier.pth", "cvvp.pth")

# Arguments for which we support only the official value. Other values change the structure of the network or the mels.
FIXED = {
    "autoregressive.pth": {"train_solo_embeddings": False, "types": 1, "use_mel_codes_as_input": True},
    "clvp2.pth": {"use_xformers": True},
    "diffusion_decoder.pth": {"in_channels": 100, "out_channels": 200},
    "vocoder.pth": {"n_mel_channels": 100, "hop_length": 256},
    "hifidecoder.pth": {
        "conv_post_bias": True,
        "conv_post_weight_norm": True,
        "conv_pre_weight_norm": True,
        "resblock_type": "1",
    },
}


def configs(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Build a config for every network, by network name. Arguments that ``values`` lacks get the official values.

    Args:
        values: Constructor arguments by file name ("autoregressive.pth"), at the top level or under the key
            "constructor". The key "trained" and keys that start with an underscore are ignored.
        where: Beginning of messages, such as the name of the file with ``values``.

    Raises:
        UserError: The mapping has another layout, or a file, an argument or a value is unknown or invalid.
    """
    files = {network.file for network in NETWORKS.values()}
    for file in values:
        if file not in files and file not in NOT_READ and not file.startswith("_"):
            raise UserError(f"{where}: {file!r} is not the name of an official checkpoint{_suggestion(file, files)}")
    found = {}
    for name, network in NETWORKS.items():
        arguments = _arguments(values, network.file, where)
        found[name] = network.config.from_upstream({**dict(network.defaults), **arguments})
        found[name].check(f"{where}: {network.file}")
    return found


def _arguments(values: Mapping[str, Any], file: str, where: str) -> dict[str, Any]:
    """Return the arguments given for ``file``. Raises UserError if an argument is unknown or has the wrong type."""
    entry = values.get(file, {})
    if isinstance(entry, Mapping) and "constructor" in entry:
        entry = entry["constructor"]
    if not isinstance(entry, Mapping):
        raise UserError(
            f"{where}: {file} must be an object of upstream's constructor arguments and their values, not {entry!r}"
        )
    official: dict[str, Config] = {}
    for name in networks_of(file):
        config = NETWORKS[name].official()
        official |= dict.fromkeys(asdict(config), config)
    fixed = FIXED.get(file, {})
    ignored = TRAINING_ONLY.get(file, set())
    for name, value in entry.items():
        if name in fixed:  # type: ignore[operator]
            if value != fixed[name]:
                raise UserError(f"{where}: {file}: {name}={value!r} is not supported, only {fixed[name]!r}")
        elif name in official:
            official[name].check_value(name, value, f"{where}: {file}")
        elif name not in ignored:
            known = {*official, *fixed, *ignored}
            raise UserError(f"{where}: {file}: unknown constructor argument {name!r}{_suggestion(name, known)}")
    return dict(entry)


def _suggestion(name: str, known: set[str]) -> str:
    """Return the end of a message about an unknown name.

    The end suggests similar known names, or lists all known names.
    """
    near = difflib.get_close_matches(name, sorted(known), 3)
    return f"; do you mean {' or '.join(near)}?" if near else f"; known: {', '.join(sorted(known))}"


# A key by which transformers' layout is recognised → the official files that have the same weights.
HELD = {
    "speech_decoder_model.final_norm.weight": ("autoregressive.pth", "clvp2.pth"),
    "resblocks.0.kernel_predictor.input_conv.bias": ("vocoder.pth",),
}
RENAMED = [
    (re.compile(found), official)
    for found, official in (
        (r"^speech_decoder_model\.model\.decoder\.layers\.", "gpt.h."),
        (r"^speech_decoder_model\.model\.decoder\.layer_norm\.", "gpt.ln_f."),
        (r"^speech_decoder_model\.model\.decoder\.input_embeds_layer\.", "mel_embedding."),
        (r"^speech_decoder_model\.model\.decoder\.position_embeds_layer\.", "mel_pos_embedding.emb."),
        (r"^speech_decoder_model\.lm_head\.", "mel_head."),
        (r"^speech_decoder_model\.final_norm\.", "final_norm."),
        (r"^(gpt\.h\.\d+)\.input_layernorm\.", r"\1.ln_1."),
        (r"^(gpt\.h\.\d+)\.post_attention_layernorm\.", r"\1.ln_2."),
        (r"^(gpt\.h\.\d+)\.attn\.out_proj\.", r"\1.attn.c_proj."),
        (r"^conditioning_encoder\.text_token_embedding\.", "text_embedding."),
        (r"^conditioning_encoder\.text_position_embedding\.", "text_pos_embedding.emb."),
        (r"^conditioning_encoder\.mel_conv\.", "conditioning_encoder.init."),
        (r"^conditioning_encoder\.group_norms\.(\d+)\.", r"conditioning_encoder.attn.\1.norm."),
        (r"^conditioning_encoder\.mel_attn_blocks\.(\d+)\.out_proj\.", r"conditioning_encoder.attn.\1.proj_out."),
        (r"^conditioning_encoder\.mel_attn_blocks\.", "conditioning_encoder.attn."),
        (r"^(text|speech)_encoder_model\.token_embedding\.", r"\1_emb."),
        (r"^(text|speech)_encoder_model\.projection\.", r"to_\1_latent."),
        (r"^(text|speech)_encoder_model\.final_layer_norm\.", r"\1_transformer.transformer.norm."),
        (r"^(text|speech)_encoder_model\.rotary_pos_emb\.", r"\1_transformer.transformer.attn_layers.rotary_pos_emb."),
        (r"^logit_scale$", "temperature"),
        (r"^resblocks\.(\d+)\.convt_pre\.", r"res_stack.\1.convt_pre.1."),
        (r"^resblocks\.(\d+)\.resblocks\.(\d+)\.conv\.", r"res_stack.\1.conv_blocks.\2.1."),
        (r"^resblocks\.(\d+)\.kernel_predictor\.", r"res_stack.\1.kernel_predictor."),
        (r"\.kernel_predictor\.input_conv\.", ".kernel_predictor.input_conv.0."),
        (r"\.kernel_predictor\.resblocks\.(\d+)\.conv1\.", r".kernel_predictor.residual_convs.\1.1."),
        (r"\.kernel_predictor\.resblocks\.(\d+)\.conv2\.", r".kernel_predictor.residual_convs.\1.3."),
        (r"^conv_post\.", "conv_post.1."),
    )
]
# Upstream has two layers, attention and feed-forward, for each encoder layer of transformers.
ENCODER = {  # parameter in a layer of transformers → number of upstream's layer (0 or 1), and the parameter in it
    "input_rmsnorm.weight": (0, "0.0.g"),
    "self_attn.q_proj": (0, "1.wrap.to_q"),
    "self_attn.k_proj": (0, "1.wrap.to_k"),
    "self_attn.v_proj": (0, "1.wrap.to_v"),
    "self_attn.out_proj": (0, "1.wrap.to_out"),
    "post_attention_rmsnorm.weight": (1, "0.0.g"),
    "mlp.fc1": (1, "1.wrap.net.0"),
    "mlp.fc2": (1, "1.wrap.net.3"),
}
ENCODER_LAYER = re.compile(rf"^(text|speech)_encoder_model\.layers\.(\d+)\.({'|'.join(map(re.escape, ENCODER))})\b")
QUERY = re.compile(r"^(gpt\.h\.\d+\.attn|conditioning_encoder\.attn\.\d+)\.q_proj\.(weight|bias)$")


def held_files(entries: Entries) -> tuple[str, ...]:
    """List the official files whose weights a file in transformers' layout has. Returns () for any other file."""
    return next((files for key, files in HELD.items() if key in entries), ())


def official_entries(entries: Mapping[str, Any], heads: int) -> dict[str, Any]:
    """Convert a state dict from transformers' layout to upstream's keys and shapes.

    Args:
        entries: State dict in transformers' layout.
        heads: Number of attention heads, which the decoder and the conditioning encoder share.
    """
    renamed = {_official_key(key): value for key, value in entries.items()}
    for key in [key for key in renamed if QUERY.match(key)]:
        parts = [renamed.get(key.replace("q_proj", f"{name}_proj")) for name in "qkv"]
        if all(isinstance(part, Tensor) and part.shape == parts[0].shape and len(part) % heads == 0 for part in parts):
            for name in "qkv":
                del renamed[key.replace("q_proj", f"{name}_proj")]
            _join(renamed, key, parts, heads)
    for key, value in renamed.items():
        if isinstance(value, Tensor) and value.ndim == 2:
            if re.fullmatch(r"gpt\.h\.\d+\.attn\.c_proj\.weight", key):
                renamed[key] = value.T
            elif re.fullmatch(r"conditioning_encoder\.attn\.\d+\.proj_out\.weight", key):
                renamed[key] = value[..., None]
    return renamed


def _join(renamed: dict[str, Any], key: str, parts: list[Any], heads: int) -> None:
    """Join the weights of q, k and v into one tensor, in the order that the network needs.

    In GPT-2, all of q comes first, then k, then v. In the conditioning encoder, each head has its q, k and v together.
    """
    if key.startswith("gpt."):
        joined = torch.cat(parts)
        renamed[key.replace("q_proj", "c_attn")] = joined.T if joined.ndim == 2 else joined
    else:
        joined = torch.stack([part.unflatten(0, (heads, -1)) for part in parts], dim=1).flatten(0, 2)
        renamed[key.replace("q_proj", "qkv")] = joined[..., None] if joined.ndim == 2 else joined


def _official_key(key: str) -> str:
    if found := ENCODER_LAYER.match(key):
        second, part = ENCODER[found[3]]
        layer = 2 * int(found[2]) + second
        return f"{found[1]}_transformer.transformer.attn_layers.layers.{layer}.{part}{key[found.end() :]}"
    for renamed, official in RENAMED:
        key = renamed.sub(official, key)
    return key
