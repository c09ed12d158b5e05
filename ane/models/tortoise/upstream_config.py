"""Network configs from the constructor arguments of upstream's classes, as a config.json has them."""

import difflib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ane.bundles.family import Config
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError

# Arguments of upstream's classes that affect only training, or parameters that inference never reads.
TRAINING_ONLY = {
    "autoregressive.pth": {"checkpointing", "mel_length_compression"},
    "diffusion_decoder.pth": {"dropout", "layer_drop", "unconditioned_percentage", "use_fp16"},
    "clvp2.pth": {"speech_seq_len", "text_mask_percentage", "text_seq_len", "voice_mask_percentage",
                  "wav_token_compression"},
    "cvvp.pth": {"cond_mask_percentage", "dropout", "speech_mask_percentage"},
    "classifier.pth": {"distribute_zero_label", "dropout"},
    "hifidecoder.pth": {"inference_padding"},      # upstream stores it and does not use it
}

# Arguments for which only the official value is supported: others change the network's structure or the mels.
FIXED = {
    "autoregressive.pth": {"train_solo_embeddings": False, "types": 1, "use_mel_codes_as_input": True},
    "clvp2.pth": {"use_xformers": True},
    "cvvp.pth": {"latent_multiplier": 1, "mel_channels": 80},
    "diffusion_decoder.pth": {"in_channels": 100, "out_channels": 200},
    "vocoder.pth": {"n_mel_channels": 100, "hop_length": 256},
    "hifidecoder.pth": {"conv_post_bias": True, "conv_post_weight_norm": True, "conv_pre_weight_norm": True,
                        "resblock_type": "1"},
}


def configs(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A config for every network, by name: those given for its file, the official values for the rest.

    ``values`` maps file names ("autoregressive.pth") to constructor arguments, directly or under the key "constructor".
    Keys that start with an underscore and the key "trained" are ignored. ``where`` begins messages.

    Raises:
        UserError: not such a mapping, an unknown file, an unknown argument, or an invalid value.
    """
    files = {network.file for network in NETWORKS.values()}
    for file in values:
        if file not in files and file not in ("trained", "mel_norms.pth") and not file.startswith("_"):
            raise UserError(f"{where}: {file!r} is none of the checkpoints' names{_suggestion(file, files)}")
    found = {}
    for name, network in NETWORKS.items():
        arguments = _arguments(values, network.file, where)
        found[name] = network.config.from_upstream({**dict(network.defaults), **arguments})
        found[name].check(f"{where}: {network.file}")
    return found


def _arguments(values: Mapping[str, Any], file: str, where: str) -> dict[str, Any]:
    """The arguments given for ``file``. Raises UserError for an unknown one, or one of the wrong type."""
    entry = values.get(file, {})
    if isinstance(entry, Mapping) and "constructor" in entry:
        entry = entry["constructor"]
    if not isinstance(entry, Mapping):
        raise UserError(f"{where}: {file} must map upstream's constructor arguments to values, not {entry!r}")
    official: dict[str, Config] = {}
    for network in NETWORKS.values():
        if network.file == file:
            official |= dict.fromkeys(asdict(network.official()), network.official())
    fixed = FIXED.get(file, {})
    ignored = TRAINING_ONLY.get(file, set())
    for name, value in entry.items():
        if name in fixed:
            if value != fixed[name]:
                raise UserError(f"{where}: {file}: {name}={value!r} is not supported, only "
                                f"{fixed[name]!r}")
        elif name in official:
            official[name].check_value(name, value, f"{where}: {file}")
        elif name not in ignored:
            known = {*official, *fixed, *ignored}
            raise UserError(f"{where}: {file}: unknown constructor argument {name!r}{_suggestion(name, known)}")
    return dict(entry)


def _suggestion(name: str, known: set[str]) -> str:
    """The end of a message about an unknown name: similar known ones, else all."""
    near = difflib.get_close_matches(name, sorted(known), 3)
    return f"; do you mean {' or '.join(near)}?" if near else f"; known: {', '.join(sorted(known))}"
