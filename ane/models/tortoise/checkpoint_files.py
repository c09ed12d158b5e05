"""Find Tortoise's checkpoint files in a folder, and recognise which networks are in a file whose name is not official.

Files can differ from the official files. DL-Art-School and its forks save only a fine-tuned decoder (N_gpt.pth,
N_gpt_ema.pth). Trainers put the state dict into another dict ({"model": …, "optimizer": …}), or start its keys with
"module.". Other programs store safetensors, or put the files into a folder models/. transformers uses other keys.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ane.bundles import Bundle
from ane.bundles.hub import CHECKPOINTS
from ane.bundles.state_dicts import StateDict, find_state_dict
from ane.bundles.torch_checkpoint import SHOWN, Entries, load_pickle, read_safetensors, summarise_keys
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.upstream_keys import configs, held_files, lacking_keys, looks_like, networks_of, renamed_key
from ane.models.vocoders.bigvgan import BigVGANConfig, is_bigvgan
from ane.system.errors import UserError
from ane.system.files import no_such_file, read_json
from ane.text.other_languages import LANGUAGES
from ane.text.tokenizer import Tokenizer

PATTERNS = (*(f"*{suffix}" for suffix in CHECKPOINTS), "pytorch_model.bin")
WRAPPERS = tuple(dict.fromkeys(network.wrapper for network in NETWORKS.values() if network.wrapper))
OFFICIAL = tuple(dict.fromkeys(network.file for network in NETWORKS.values()))
REQUIRED = ("autoregressive.pth", "diffusion_decoder.pth", "vocoder.pth", "clvp2.pth")
MEL_NORMS = "mel_norms.pth"
BIGVGAN = "bigvgan_24khz_100band.pth"


def read_entries(path: Path) -> StateDict:
    """Read the state dict in a file.

    Raises:
        UserError: The file does not hold a state dict, or holds several.
    """
    if path.suffix == ".safetensors":
        return find_state_dict(read_safetensors(path), path)
    loaded = load_pickle(path)
    if not isinstance(loaded, Mapping):
        if isinstance(loaded, tuple) and loaded and all(isinstance(each, Tensor) for each in loaded):
            raise UserError(
                f"{path} does not hold a network but a tuple of tensors, which may be the latents of a voice: "
                "give it to `ane voices add` or `-v`"
            )
        raise UserError(f"{path} contains a {type(loaded).__name__}, not a state dict: is it a renamed file?")
    return find_state_dict(loaded, path, WRAPPERS)


def has_networks(path: Path) -> bool:
    """Return whether a file holds Tortoise networks. Raises UserError if it is damaged or a network lacks keys."""
    entries = read_entries(path).entries
    if not (names := _names(entries)):
        for file in REQUIRED:
            if lacking := lacking_keys(entries, file, configs({}, "")):
                renamed = renamed_key(lacking[0], entries, file, configs({}, ""))
                raise UserError(
                    f"{path} has most keys of Tortoise's {file}, but it lacks {summarise_keys(lacking, SHOWN)}"
                    f"{renamed and f' ({renamed})'}: get the file again, or save the whole network"
                )
    return bool(names)


def _names(entries: Entries) -> tuple[str, ...]:
    found = looks_like(entries, "", configs({}, ""))
    return (found,) if found else held_files(entries)


def find_files(path: Path) -> dict[str, Path]:
    """Find the checkpoints at ``path``, a directory or one file. Returns them by their official file names.

    Raises:
        UserError: ``path`` does not exist, or is a file without Tortoise networks. Or two files of a directory could be
            the same official file.
    """
    if os.path.isfile(path):
        entries = read_entries(path).entries
        if names := _names(entries):
            return dict.fromkeys(names, path)
        raise UserError(f"{path} does not hold a Tortoise network, but {summarise_keys(entries, SHOWN) or 'nothing'}")
    if not os.path.isdir(path):
        raise UserError(f"checkpoint directory {path} does not exist")
    folders = [path, path / "models"]
    found = next(
        filter(
            None, ({name: folder / name for name in OFFICIAL if os.path.isfile(folder / name)} for folder in folders)
        ),
        {},
    )
    if not set(REQUIRED) <= set(found):  # only then, because reading the keys of every file takes seconds
        others = {
            file: _names(read_entries(file).entries)
            for file in sorted(file for folder in folders for pattern in PATTERNS for file in folder.glob(pattern))
            if file not in found.values() and file.name != MEL_NORMS
        }
        for name in (name for name in REQUIRED if name not in found):
            rivals = [str(file.relative_to(path)) for file in others if name in others[file]]
            if len(rivals) > 1:
                raise UserError(
                    f"{path} has {len(rivals)} checkpoints that could be the official file {name}: "
                    f"{', '.join(rivals)}: give one of them"
                )
        for file, names in others.items():
            found = dict.fromkeys(names, file) | found
    return {name: found[name] for name in OFFICIAL if name in found}


def check_complete(path: Path, files: Mapping[str, Path], base: Bundle | None) -> None:
    """Raise UserError unless every network that speech needs is in the files or in ``base``."""
    missing = [
        name for name in REQUIRED if name not in files and not (base and set(networks_of(name)) <= set(base.networks))
    ]
    if not missing:
        return
    if os.path.isfile(path / "bundle.json"):
        raise UserError(f"{path} is a bundle, not a directory of checkpoints: use bundle={path}")
    if os.path.isfile(path / "model_index.json"):
        raise UserError(
            f"{path} is a pipeline of diffusers, whose layout `ane` does not read (no release of diffusers has "
            "Tortoise): get the official files that the pipeline was converted from"
        )
    found = f"; of the official files it has {', '.join(files)}" if files else ", nor any other checkpoint"
    if os.path.isfile(path):
        found = f": it is {' and '.join(files)}"
    raise UserError(
        f"{path} has no {', '.join(missing)}{found}: add the official files (or `ane import hub`), or name "
        "a bundle that has them: base=NAME"
    )


def is_official_config(path: Path) -> bool:
    """Return whether a config.json has our layout or upstream's layout.

    Coqui, BigVGAN and transformers have files of the same name with other contents.
    """
    if not os.path.isfile(path):
        return False
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # the file is damaged, and the code that reads it will say so
    return not isinstance(stated, dict) or not (
        {"model", "model_args"} <= set(stated) or "upsample_rates" in stated or "model_type" in stated
    )


def check_vocoder(path: Path) -> None:
    """Raise UserError if the file at ``path`` does not exist or does not hold a BigVGAN vocoder."""
    if not os.path.isfile(path):
        raise UserError(f"vocoder {path}: {no_such_file(path)}", "vocoder")
    entries = read_entries(path).entries
    if not is_bigvgan(entries):
        raise UserError(
            f"vocoder {path} is not a BigVGAN, which would have activation_post.act.alpha, but holds "
            f"{summarise_keys(entries, SHOWN) or 'nothing'}: give bigvgan_24khz_100band.pth or bigvgan_generator.pt",
            "vocoder",
        )


def bigvgan_arguments(path: Path) -> dict[str, Any]:
    """Read a BigVGAN's sizes from the JSON file next to it, which has the same name or is called config.json.

    Returns {} if there is no such file, which means that the BigVGAN has the official sizes.
    """
    for beside in (path.with_suffix(".json"), path.parent / "config.json"):
        stated = read_json(beside) if os.path.isfile(beside) else None
        if isinstance(stated, dict) and "upsample_rates" in stated:
            known = {field.name for field in fields(BigVGANConfig)}
            return {key: value for key, value in stated.items() if key in known}
    return {}


def states_vocabulary(config: Mapping[str, Any]) -> bool:
    """Return whether a config contains the decoder's number of text tokens, at its top level or in "constructor"."""
    stated = config.get("autoregressive.pth", {})
    return "number_text_tokens" in (stated.get("constructor", stated) if isinstance(stated, Mapping) else {})


def check_vocabulary(tokenizer: str, text_tokens: int, path: Path) -> None:
    """Raise UserError if the tokenizer returns an id that the decoder has no embedding for.

    The message says whether the tokenizer comes from the tokenizer.json in ``path``, or was used because ``path`` has
    none.
    """
    own = path / "tokenizer.json"
    source = str(own) if os.path.isfile(own) else f"{path} has no tokenizer.json, and the one used in its place"
    ids = Tokenizer(tokenizer, source=source).ids
    token = max(ids, key=ids.__getitem__, default="")
    if token and ids[token] > text_tokens:
        raise UserError(
            f"{source} gives {token!r} the id {ids[token]}, but the ids of the decoder's vocabulary "
            f"end at {text_tokens}: add the tokenizer.json that the decoder was trained with"
        )


def with_vocabulary(config: Any, entries: Entries) -> Any:
    """Return the decoder's config with the number of text tokens that the decoder's weights have.

    The number is one less than the rows of the embedding table, because the stop token has a row too. Forks keep the
    official start token, 255, whatever the size of their vocabulary.
    """
    table = entries.get("text_embedding.weight")
    rows = table.shape[0] if getattr(table, "ndim", 0) == 2 else 0
    if rows < 2 or rows - 1 == config.number_text_tokens or config.start_text_token >= rows:
        return config
    return replace(config, number_text_tokens=rows - 1)


def settings_of_tokenizer(content: str) -> dict[str, Any]:
    """Return the model settings for the language that a tokenizer.json names, as forks of Tortoise write it.

    In another language, the English rules would spell numbers in English and remove accents. If we have no rules for
    the language, numbers stay digits.
    """
    try:
        language = json.loads(content)["model"]["language"]
    except (ValueError, KeyError, TypeError):
        return {}
    code = language.lower()[:2] if isinstance(language, str) else "en"
    return {} if code == "en" else {"normaliser": code if code in LANGUAGES else "basic"}
